"""Lines behind frames: PyTorch's and Python's own are passed over, and the source tells which call it was."""

import pytest

from snippets.validation.assistant.lines import Line
from snippets.validation.assistant.traces import call_sites, line_of, line_of_stack, union, without

SOURCE = """
def step(self, x):
    y = self.layer(x) * 2
    for _ in range(2):
        y = y.relu()
    return y.relu()
"""


@pytest.mark.parametrize(
    "frame",
    [
        "torch/nn/modules/module.py(1782): _call_impl",
        "/opt/conda/lib/python3.12/site-packages/torch/nn/functional.py(3): gelu",
        "/usr/lib/python3.12/contextlib.py(137): __enter__",
        "contextlib.py(137): __enter__",
        "<frozen os>(674): __getitem__",
        "/tmp/torchinductor_me/ab/cab.py(40): call",
        "nn.Module: Linear_0",
        "<built-in function linear>",
    ],
)
def test_frames_that_are_nobodys_code(frame):
    assert line_of(frame) is None


def test_the_innermost_own_line_of_a_call_stack():
    stack = "torch/nn/functional.py(3): gelu;model/layers.py(41): forward;train.py(9): main"
    assert line_of_stack(stack) == Line("model/layers.py", 41, "forward")


def test_calls_and_operators_are_found_in_the_source(tmp_path):
    (tmp_path / "train.py").write_text(SOURCE)
    step = Line(str(tmp_path / "train.py"), 2, "step")
    assert [(site.line, site.maybe) for site in call_sites(step, "relu")] == [(5, True), (6, False)]
    assert [site.line for site in call_sites(step, "aten::mul")] == [3]
    assert {site.called for site in call_sites(step)} == {"layer", "range", "relu"}
    assert call_sites(Line("missing.py", 1, "step"), "relu") == []


def test_spans():
    assert union([(3, 4), (0, 2), (1, 3)]) == [(0, 4)]
    assert without([(0, 10)], [(2, 3), (5, 12)]) == [(0, 2), (3, 5)]
