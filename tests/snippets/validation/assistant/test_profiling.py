"""The profile: kernels lead back to lines, and a GPU that waits is told."""

import pytest

from snippets.validation.assistant.lines import Line
from snippets.validation.assistant.profiling import Kernel, Profile, in_words, profile, slow_kernels
from snippets.validation.assistant.trace import traced
from tests.snippets.validation.planted import fusion
from tests.snippets.validation.planted.seen import made

pytestmark = pytest.mark.usefixtures("one_core")


def test_each_line_has_its_kernels_backward_included():
    subject = made(lambda: (fusion.GatedMLP(), fusion.sequence()))
    found = profile(subject, traced(subject), lambda device: {"copy": 1e12, "matrix": 1e14})
    lines = {kernel.line.text for kernel in found.kernels}
    assert "return self.down(F.silu(self.gate(x)) * self.up(x))  # fault: gated-mlp" in lines
    assert any("mm" in kernel.name or "gemm" in kernel.name.lower() for kernel in found.kernels)
    assert found.kernels == sorted(found.kernels, key=lambda kernel: -kernel.seconds)
    assert all(spent > 0 and least > 0 for spent, least in found.lines.values())
    assert 0 < found.share_busy <= 1 and len(in_words(found)) >= 3


LINE = Line("model.py", 7)


def test_a_gpu_that_waits_is_told_and_a_busy_one_is_not():
    kernels = [Kernel("add", LINE, 1e-3, 10)]
    for step, kinds in ((5e-3, ["host-bound"]), (1.1e-3, [])):
        assert [one.kind for one in slow_kernels(Profile(kernels, 1e-3, step))] == kinds


def test_a_line_far_from_its_ceiling_is_a_note():
    kernels = [Kernel("gemm", LINE, 1e-3, 1)]
    for least, kinds in ((1e-4, ["far-from-ceiling"]), (9e-4, [])):
        found = slow_kernels(Profile(kernels, 1e-3, 1e-3, lines={LINE: (1e-3, least)}))
        assert [(one.kind, one.weight) for one in found] == [(kind, "note") for kind in kinds]
