"""What keeps compilation and CUDA graphs away: what to do about a tensor that is made on the host."""

from types import SimpleNamespace

import pytest

from snippets.validation.assistant.finders.readiness import device_named
from snippets.validation.assistant.found import find
from tests.snippets.validation.planted.seen import hits, with_fault

pytestmark = pytest.mark.usefixtures("one_core")


BUFFER = "make it once, as a buffer of the module"


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("positions on host", f"{BUFFER}, or make it where it is used, with device=ids.device"),
        ("constant on host", BUFFER),  # with device= its numbers are copied all the same
        ("table on host", BUFFER),
        ("listed places", BUFFER),
    ],
)
def test_what_is_made_on_the_host_can_be_made_on_the_device_that_its_line_names(name, change):
    (found,) = hits(find(*with_fault(name)))
    assert found.change == change


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("positions.to(ids.device)", "device=ids.device"),
        ("mask.to(device=self.weight.device, dtype=x.dtype)", "device=self.weight.device"),
        ("x = self.tokens(ids) + positions.to(ids.device)", "device=ids.device"),
        ("torch.arange(4, device=q.device), mask.cuda()", "the device= of a tensor that is there already"),
    ],
)
def test_the_device_is_the_one_that_the_authors_line_names(line, expected):
    assert device_named([SimpleNamespace(text=line)]) == expected
