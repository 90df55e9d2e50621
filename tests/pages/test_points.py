"""A page names a point of its case and a metric; what it states of them must hold, or the build stops."""

import re
from pathlib import Path

import pytest
import torch

from docs.publish.errors import PublishError
from docs.publish.records import cases
from tests.benchmarks import source
from tests.benchmarks.reviewed import VERSION
from tests.benchmarks.runner import discover, load, size
from tests.pages import tiny
from tests.pages.tiny import rendered, took

READ = "docs/pages", "snippets/**/*.py", "tests/benchmarks"  # through docs.publish


@pytest.fixture
def root(root: Path) -> Path:
    wide = {"shape": {"rows": 8, "columns": 8}}
    rows = [
        tiny.row(root),
        tiny.row(root, variant="eager", time=took(2)),
        tiny.row(root, direction="backward", time=took(2)),
        tiny.row(root, variant="eager", direction="backward"),
        tiny.row(root, **wide, mode="calls", time=took(2)),
        tiny.row(root, **wide),
        tiny.row(root, variant="eager", **wide),
    ]
    tiny.write(root, tiny.record(root, rows))
    laptop = [
        tiny.row(root, **wide, mode="calls", variant=name, time=took(ms)) for name, ms in (("ours", 9), ("eager", 6))
    ]
    tiny.write(root, tiny.record(root, laptop, machine=tiny.LAPTOP, id="2026-01-01T00-00-00Z-laptop"))
    return root


@pytest.mark.parametrize(
    ("macro", "shown"),
    [
        ('gpu("ours", "small")', "1.00 ms"),
        ('gpu("ours", "small backward")', "2.00 ms"),
        ('gpu("ours", "calls")', "1.00 ms"),
        ('wall("ours", "calls")', "2.00 ms"),
        ('gain("ours", over="eager", at="small")', "2.00×"),
        ('wall("ours", "calls", machine="laptop")', "9.00 ms"),
        ('gain("ours", over="eager", at="calls", machine="laptop")', "0.667×"),
        ('memory("ours", "calls", machine="laptop")', "1.00 MB"),
        ('gpu("ours", "small", case="kernels/add")', "1.00 ms"),
    ],
)
def test_a_number_is_that_of_the_named_point(macro: str, shown: str, root: Path):
    html, page = rendered(f"{{{{ {macro} }}}}", root, case="" if "case=" in macro else "kernels/add")
    assert re.search(r">(.*)</a>", html)[1] == shown
    (entry,) = page.evidence.entries.values()
    assert entry["machine"] == ("A laptop" if "machine=" in macro else "NVIDIA H100")


@pytest.mark.parametrize(
    ("macro", "said"),
    [
        (
            'gpu("ours", "smal")',
            "point of kernels/add: expected one of small, small backward, wide backward, calls; got 'smal'",
        ),
        ('gpu("ours", "small", clock="cpu")', "clock: expected one of wall, gpu, graph, burst, sustained, got 'cpu'"),
        ('holds("ours beats eager", at="small")', "holds: expected sides with one of"),
        (
            'wall("ours", "calls", machine="laptp")',
            "machine: expected one of nvidia-h100-80gb-hbm3, laptop; got 'laptp'; did you mean",
        ),
        ('gpu("ours", "calls", machine="laptop")', "mode of kernels/add: expected one of calls; got 'device'"),
        ('gain("ours", over="eager", at="small", machine="laptop")', "shape of kernels/add: expected one of 8x8"),
    ],
)
def test_what_is_not_there_is_said_in_one_line(macro: str, said: str, root: Path):
    with pytest.raises(PublishError) as error:
        rendered(f"{{{{ {macro} }}}}", root)
    message = str(error.value)
    assert message.startswith("kernels/add.md:1: ") and "\n" not in message
    assert all(word in message for word in said.replace(";", ",").split(", ")), message


@pytest.mark.parametrize(
    ("statement", "against"),
    [
        ('holds("ours faster than eager", at="small")', 0),
        ('holds("eager slower than all", at="small")', 0),
        ('holds("ours slower than eager", at="small backward")', 0),
        ('holds("ours faster than eager", at="small, small backward")', 1),
        ('holds("ours, eager faster than eager", at="small")', 1),
        ('holds("ours faster than eager", at="small", by=1.5)', 1),
        ('holds("ours as fast as eager", at="calls", clock="gpu")', 0),
        ('holds("ours faster than quack", at="small")', 1),
        ('holds("ours slower than eager", at="calls", machine="laptop")', 0),
        ('holds("ours faster than eager", at="calls", machine="laptop")', 1),
        ('holds("ours faster than eager", at="calls", machine="laptp")', 1),
        ('holds("a less than b", a=gpu("ours", "small"), b=gpu("eager", "small"))', 0),
        ('holds("a more than b", a=gpu("ours", "small"), b=gpu("eager", "small"))', 1),
    ],
)
def test_a_statement_shows_nothing_and_is_held_against_the_records(statement: str, against: int, root: Path):
    html, page = rendered(f"Ours.{{{{ {statement} }}}}", root)
    assert html == "Ours."
    assert len(page.broken) == against, page.broken


@pytest.mark.parametrize(("milliseconds", "noted"), [(9, True), (0.5, False)])
def test_what_does_not_hold_on_this_machine_has_a_note_and_stops_nothing(milliseconds: float, noted: bool, root: Path):
    rows = [tiny.row(root, time=took(milliseconds)), tiny.row(root, variant="eager")]
    tiny.write(root, tiny.record(root, rows, day=2), "local")
    html, page = rendered('Ours.{{ holds("ours faster than eager", at="small") }}', root)
    assert not page.broken
    assert ("not so on this machine" in html) is noted
    html, _ = rendered('{{ holds("ours slower than eager", at="small backward") }}', root)
    assert html == "", "what this machine did not measure is not judged there"


@pytest.mark.parametrize(("milliseconds", "old", "noted"), [(9, False, True), (0.5, False, False), (9, True, False)])
def test_what_does_not_hold_on_another_gpu_has_a_note(milliseconds: float, old: bool, noted: bool, root: Path):
    rows = [tiny.row(root, time=took(milliseconds)), tiny.row(root, variant="eager")]
    for row in rows:
        row["sources"] = tiny.sources(root) | ({"method": VERSION - 1} if old else {})
    other = tiny.H100 | {"slug": "nvidia-h200", "name": "NVIDIA H200"}
    tiny.write(root, tiny.record(root, rows, machine=other, id="2026-01-01T00-00-00Z-nvidia-h200"))
    html, page = rendered('Ours.{{ holds("ours faster than eager", at="small") }}', root)
    assert not page.broken
    assert ("not so on the NVIDIA H200" in html) is noted


def test_no_page_names_a_point_that_is_measured_on_request_only():
    named, unshown = set(), set()
    for case, path in discover().items():
        points = cases.points(source.ROOT, case).values()
        named |= {(case, at.direction, at.shape, at.dtype) for modes in points for at in modes}
        for point in load(path).points(torch.device("cuda")):
            if not point.shown:
                unshown.add((case, point.direction, size(point.part, point.shape), point.dtype))
    assert unshown and not named & unshown
