"""A page shows what a sweep tried, and which of it the launch table takes."""

import pytest

from docs.publish.errors import PublishError
from docs.publish.evidence import Evidence
from docs.publish.macros import sweeps
from docs.publish.place import Place, kernel_files
from docs.publish.records.sweeps import newest
from tests.benchmarks.source import ROOT

PLACE = Place("kernels/softmax.md", "kernels/softmax/")


@pytest.mark.parametrize("kernel", kernel_files())
def test_every_point_of_the_newest_sweep_can_be_shown(kernel: str):
    for point in newest(kernel, ROOT)[0].points:
        page = Evidence()
        html = sweeps.table(ROOT, PLACE, page, kernel, point.direction, point.size, point.dtype)
        assert html.count("in the table") == 1
        assert html.count("<tr>") == 1 + len(point.tried) and len(page.entries) == 2 * len(point.tried)
        assert all(entry["machine"] == "NVIDIA H200" and entry["date"] for entry in page.entries.values())


def test_a_point_that_was_not_swept_is_refused():
    with pytest.raises(PublishError, match=r"point of the sweep of softmax: expected one of .*; got .forward 1x2"):
        sweeps.table(ROOT, PLACE, Evidence(), "softmax", "forward", "1x2", "bfloat16")
    with pytest.raises(PublishError, match=r"sweep: expected one of .*softmax"):
        sweeps.table(ROOT, PLACE, Evidence(), "softmaxx", "forward", "1x2", "bfloat16")
