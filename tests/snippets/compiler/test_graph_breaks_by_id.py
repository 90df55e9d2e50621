"""Each id of the page is one that PyTorch prints for the code beside it, in the words of the page."""

import json
import re
from functools import cache
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from snippets.compiler.graph_breaks import find
from snippets.compiler.graph_breaks_by_id import OTHERS, asserting, asserting_plainly, ids, leaf, optimizer
from snippets.compiler.graph_breaks_mended import make_x, twelve

ROOT = Path(__file__).parents[3]
PAGE, TWELVE = ROOT / "docs/pages/compiler/graph-breaks-by-id.md", ROOT / "docs/pages/compiler/graph-breaks.md"
REGISTRY = json.loads((Path(torch.__file__).parent / "_dynamo" / "graph_break_registry.json").read_text())
ROWS = dict(re.findall(r"^\| (gb\d{4}) \| ``? ?(.+?) ?``? \|", PAGE.read_text(), re.MULTILINE))
KNOWN = tuple(map(int, re.findall(r"\d+", torch.__version__)[:2])) == (2, 13)  # other versions have other words and ids


@pytest.fixture(autouse=True)
def gradient():
    """Some functions add to it."""
    leaf.grad = torch.ones(8)


@cache
def first(name: str) -> tuple[str, str]:
    """The id and the words of a function's first break."""
    if name in OTHERS:
        return ids(OTHERS[name], make_x())[0]
    kind = twelve()[name]
    return ids(kind.before, *kind.inputs())[0]


@pytest.mark.skipif(not KNOWN, reason="the page has the ids of torch 2.13")
@pytest.mark.parametrize("name", [*twelve(), *OTHERS])
def test_a_function_breaks_with_an_id_of_the_page(name):
    number, words = first(name)
    assert ROWS[number] == words


@pytest.mark.skipif(not KNOWN, reason="the page has the ids of torch 2.13")
@pytest.mark.parametrize("name", twelve())
def test_the_page_of_the_twelve_has_the_id_of_each(name):
    (row,) = [line for line in TWELVE.read_text().splitlines() if line.startswith("|") and f"](#{name})" in line]
    assert first(name)[0] in row


@pytest.mark.skipif(not KNOWN, reason="the page has the ids of torch 2.13")
def test_every_id_of_the_page_is_provoked_and_in_the_registry():
    assert set(ROWS) == {first(name)[0] for name in [*twelve(), *OTHERS]}
    for number, words in ROWS.items():
        assert words in {entry["Gb_type"] for entry in REGISTRY[number.upper()]}


def hooked(x: torch.Tensor) -> torch.Tensor:
    x = x * leaf
    x.register_hook(lambda grad: grad * 2)
    return x.sum()


JAGGED = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)
FIXES = {
    "one_hot": lambda x: F.one_hot(x.long().abs(), num_classes=3),
    "equal": lambda x: x + (x == x).all(),
    "tensor hook": hooked,
    "nested tensor": lambda x: JAGGED * 2,
    "deepcopy": lambda x: x.sin().clone() + 1,
    "cond": lambda x: torch.cond(x.sum() > 0, lambda h: h.clone(), lambda h: h + 1, (x,)),
}
SETTINGS = {
    "mask": {"capture_dynamic_output_shape_ops": True},
    "backward": {"trace_autograd_ops": True},
    "grad": {"trace_autograd_ops": True},
    "LSTM": {"allow_rnn": True},
    "backward hook": {"compiled_autograd": True},
}


@pytest.mark.skipif(not KNOWN, reason="the page has the fixes of torch 2.13")
@pytest.mark.parametrize("name", [*FIXES, *SETTINGS])
def test_a_fix_of_the_page_leaves_one_graph(name):
    with torch._dynamo.config.patch(SETTINGS.get(name, {})):
        found = find(FIXES.get(name, OTHERS[name]), make_x())
    assert found.log == [] and len(found.graphs) == 1


def test_an_assertion_breaks_only_with_an_f_string():
    assert find(asserting, make_x()).log
    found = find(asserting_plainly, make_x())
    assert found.log == [] and len(found.graphs) == 1


def test_an_optimizers_break_leaves_its_update_whole():
    found = find(lambda: optimizer.step())
    assert "optimizer.py" in found.log[0] and len(found.graphs) == 1
