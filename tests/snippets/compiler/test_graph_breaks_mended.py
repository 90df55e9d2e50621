"""Twelve kinds of breaks: how many before and after, what the log says, and that the result stays the same."""

import contextlib
import os
import random
from collections.abc import Iterator

import pytest
import torch

from snippets.compiler import graph_breaks_mended as mended
from snippets.compiler.graph_breaks import SKIPPED, cause, find
from snippets.compiler.graph_breaks_mended import Break, make_x, twelve
from tests.benchmarks.source import ROOT

VERSION = ".".join(torch.__version__.split(".")[:2])
TORCH = tuple(map(int, VERSION.split(".")))
ITEM = "Unsupported Tensor.item() call with capture_scalar_outputs=False"
# by kind: breaks, graphs, what the log names as the cause
EXPECTED = {
    "branch": (1, 2, "Data-dependent branching"),
    "item": (1, 2, ITEM),
    "logging": (1, 2, "logging.Logger method not supported for non-export cases"),
    "library": (2, 2, "Attempted to call function marked as skipped"),
    "mutation": (1, 2, "Unsupported Tensor.requires_grad_() call"),
    "context": (1, 0, "Unsupported context manager"),
    "generator": (1, 2, "Missing tp_iternext"),
    "autograd": (1, 3, "Data-dependent branching"),
    "hooks": (2, 3, ITEM),
    "numpy": (1, 2, "attempted to trace numpy function unsupported by PyTorch"),
    "try": (1, 0, ITEM),
    "third-party": (2, 3, "Tensor.tolist() with non-integer tensor"),
}
OTHERWISE = {  # where a version differs
    "2.11": {
        "library": (3, 2, "Attempted to call function marked as skipped"),
        "generator": (1, 2, "call_method on generator"),
        "hooks": (2, 2, ITEM),
    },
    "2.12": {
        "library": (3, 2, "Attempted to call function marked as skipped"),
        "generator": (1, 2, "call_method on generator"),
    },
    "2.14": {"generator": (2, 0, "Unexpected type in sourceless builder")},
    "2.15": {
        "library": (2, 2, "Call to a time function"),
        "generator": (2, 0, "Unexpected type in sourceless builder"),
    },
}
KNOWN = {"2.11", "2.12", "2.13", "2.14", "2.15"}  # others have been seen by nobody: there only the mend is held

kinds = pytest.mark.parametrize("name", EXPECTED)


@pytest.fixture
def kind(name: str) -> Break:
    return twelve()[name]


def test_there_are_twelve():
    assert list(twelve()) == list(EXPECTED) and len(EXPECTED) == 12


@kinds
def test_before_it_breaks_in_the_words_of_the_page(name, kind):
    found = find(kind.before, *kind.inputs())
    assert found.log, "no break: the page can drop this kind"
    if VERSION in KNOWN:
        seen = len(found.log), len(found.graphs), cause(found.log[0])
        assert seen == OTHERWISE.get(VERSION, {}).get(name, EXPECTED[name])


@kinds
def test_after_it_is_one_graph(name, kind):
    found = find(kind.after, *kind.arguments_after())
    assert found.log == [] and len(found.graphs) == 1
    torch.compiler.reset()
    torch.compile(kind.after, backend="eager", fullgraph=True)(*kind.arguments_after())


@kinds
@pytest.mark.parametrize("shift", [0.0, -1.5])  # the other side of each branch
def test_before_and_after_compute_the_same(name, kind, shift, monkeypatch):
    monkeypatch.setattr(mended, "make_x", lambda: make_x() + shift)
    expected, expected_grad = result(kind.before, kind.inputs())
    for function, inputs in ((kind.after, kind.arguments_after()), (compiled(kind.after), kind.arguments_after())):
        found, grad = result(function, inputs)
        torch.testing.assert_close(found, expected, equal_nan=True)
        torch.testing.assert_close(grad, expected_grad, equal_nan=True)


def compiled(function):
    torch.compiler.reset()
    return torch.compile(function, backend="aot_eager")


def result(function, inputs: tuple) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The output, and the gradient of the first input where it has one."""
    output = function(*inputs)
    if not inputs[0].requires_grad:
        return output.detach(), None
    grad = torch.ones_like(output)
    grad[0, 0] = float("nan")  # which the custom backward takes out
    return output.detach(), torch.autograd.grad(output, inputs[0], grad)[0]


@pytest.mark.parametrize("name", ["context", "try"])
def test_a_break_in_a_block_gives_up_the_whole_function(name):
    found = find(twelve()[name].before, *twelve()[name].inputs())
    assert found.skipped and SKIPPED in found.log[0]


# ---- what the page says beside the twelve -----------------------------------------------------------------------


def test_disabling_a_third_party_function_leaves_one_break():
    ranks = torch.compiler.disable(mended.ranks)
    found = find(lambda x: x.sin() * ranks(x[:, 0])[:, None], make_x())
    assert len(found.log) == 1 and len(found.graphs) == 2


def test_the_custom_operator_keeps_its_promises():
    torch.library.opcheck(mended.ranks_op, (torch.randn(5),))


def test_ranks_are_ranks():
    values = random.Random(0).sample(range(100), 10)
    assert mended.ranks(torch.tensor(values)).tolist() == [sorted(values).index(value) for value in values]


def in_device(x: torch.Tensor) -> torch.Tensor:
    with torch.device("cpu"):
        return x.sin()


def in_fork(x: torch.Tensor) -> torch.Tensor:
    with torch.random.fork_rng(devices=[]):
        return x.sin()


def in_anomaly(x: torch.Tensor) -> torch.Tensor:
    with torch.autograd.detect_anomaly(check_nan=False):
        return x.sin()


def in_autocast(x: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        x = x @ x.mT
        print(end="")
        return x @ x


def seeding(x: torch.Tensor) -> torch.Tensor:
    x = x.sin()
    torch.manual_seed(0)
    return x.cos()


def setting_environment(x: torch.Tensor) -> torch.Tensor:
    x = x.sin()
    os.environ["RIDGEPOINT"] = "1"
    return x.cos()


def drawing(x: torch.Tensor) -> torch.Tensor:
    return x.sin() * random.random()


@contextlib.contextmanager
def plain_context() -> Iterator[None]:
    yield


def in_plain_context(x: torch.Tensor) -> torch.Tensor:
    with plain_context():
        return x.sin()


def raising(x: torch.Tensor) -> torch.Tensor:
    try:
        raise ValueError
    except ValueError:
        return x.sin()


def starting_a_generator(x: torch.Tensor) -> torch.Tensor:
    return sum(part.sin() for part in (x + i for i in range(3)))


def counting(x: torch.Tensor) -> torch.Tensor:
    count = 0

    def further() -> torch.Tensor:
        nonlocal count
        count += 1
        return x * count

    return further() + further()


def norm_of_numpy(x: torch.Tensor) -> torch.Tensor:
    import numpy

    return torch.from_numpy(numpy.sin(x.numpy())) + torch.as_tensor(numpy.linalg.norm(x.numpy()))


@pytest.mark.parametrize("function", [seeding, setting_environment, in_autocast])
def test_what_the_page_says_breaks(function):
    found = find(function, make_x())
    assert found.log and found.graphs and not found.skipped


def test_a_random_number_breaks_before_torch_2_14():
    assert bool(find(drawing, make_x()).log) == (TORCH < (2, 14))


@pytest.mark.parametrize("function", [in_device, in_fork, in_anomaly])
def test_contexts_that_the_page_says_give_up_a_function(function):
    assert find(function, make_x()).skipped


@pytest.mark.parametrize("function", [in_plain_context, raising, starting_a_generator, counting, norm_of_numpy])
def test_what_the_page_says_does_not_break(function):
    found = find(function, make_x())
    assert found.log == [] and len(found.graphs) == 1


# ---- the page's table -------------------------------------------------------------------------------------------


def test_the_table_of_the_page_has_each_cause_and_its_counts():
    page = (ROOT / "docs/pages/compiler/graph-breaks.md").read_text()
    for name, (breaks, graphs, words) in EXPECTED.items():
        (row,) = [line for line in page.splitlines() if line.startswith("|") and f"](#{name})" in line]
        assert f"`{words}`" in row and f"| {breaks} → 0 | {graphs} → 1 |" in row, row


@pytest.mark.parametrize("harmless", (False, True))
def test_where_gives_nan_gradients_where_an_if_guarded_a_division(harmless: bool):
    """Unless the side that is not taken has an input whose gradient is finite."""
    v = torch.zeros(3, requires_grad=True)
    ok = v.detach().norm() > 0
    safe = torch.where(ok, v, torch.ones_like(v)) if harmless else v
    y = torch.where(ok, safe / safe.norm(), v)
    (gradient,) = torch.autograd.grad(y.sum(), v)
    assert y.eq(0).all() and gradient.isfinite().all() == harmless
