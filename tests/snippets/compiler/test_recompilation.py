"""What is compiled again and what mends it, as the page says it: counted, on every version of torch."""

import inspect
import re
from pathlib import Path

import pytest
import torch
from torch.fx.experimental.symbolic_shapes import ConstraintViolationError

from snippets.compiler.recompilation import (
    MENDS,
    SPECIALISED,
    STANCES,
    Counter,
    attend,
    attend_checked,
    count,
    double,
    eager_first,
    errors_of_floats,
    of_marked,
    of_unbacked,
    past_the_limit,
    said,
    stance,
)
from snippets.compiler.recompilation_values import VALUES

PAGE = Path(__file__).parents[3] / "docs" / "pages" / "compiler" / "recompilation.md"
TORCH = tuple(map(int, re.findall(r"\d+", torch.__version__)[:2]))

GRAPHS = {
    "size 5, 6, 7, 8": 2,
    "size 5, 6, 1, 0": 4,
    "number of dimensions": 3,
    "dtype": 3,
    "device": 2,
    "requires_grad": 2,
    "strides, transposed": 2,
    "int argument 5, 6, 7, 8": 2,
    "float argument .5, .6, .7, .8": 2,
    "string argument": 2,
    "list of 2, 3, 4, 5 tensors": 4,
    "int attribute 5, 6, 7, 8": 4,
    "float attribute .5, .6, .7, .8": 2,
    "grad mode": 2,
    "autocast": 2,
}


@pytest.mark.parametrize("what", SPECIALISED)
def test_what_is_specialised(what):
    graphs, reasons = count(SPECIALISED[what])
    assert graphs == GRAPHS[what]
    assert len(reasons) == graphs - 1 and all(reasons)


def rows_of_the_page() -> dict[str, tuple[int, int]]:
    """The table of symptoms: its words in code, and the counts in its last column."""
    found = re.findall(r"^\| `(.+?)` \|.*\| (\d+) → (\d+) \|$", PAGE.read_text(), re.MULTILINE)
    return {words: (int(before), int(after)) for words, before, after in found}


COMPILED = {value.symptom for value in VALUES}  # whose counts on the page are those of a backend that compiles


def test_the_table_of_symptoms_has_every_mend():
    assert set(rows_of_the_page()) == {mend.symptom for mend in MENDS} | COMPILED


@pytest.mark.parametrize("mend", MENDS, ids=lambda mend: mend.before.__name__.removesuffix("_before"))
def test_a_mend_has_the_counts_and_the_words_of_the_page(mend):
    with said():
        before, reasons = count(mend.before)
        after, _ = count(mend.after)
    if mend.symptom not in COMPILED:
        assert (before, after) == rows_of_the_page()[mend.symptom]
    assert any(mend.symptom in reason for reason in reasons)


def test_past_the_limit_a_call_runs_eagerly_and_only_the_first_says_so():
    outcomes, messages = past_the_limit([*range(2, 14), 5])
    assert outcomes == ["compiles"] * 8 + ["runs eagerly"] * 4 + ["runs its graph"]
    assert len(messages) == 1
    assert "torch._dynamo hit config.recompile_limit (8)" in messages[0]
    assert "last reason: 0/7: tensor 'x' size mismatch at index 0. expected 9, actual 10" in messages[0]


def inner(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def outer(x: torch.Tensor) -> torch.Tensor:
    return inner(x) + 1


def test_past_the_limit_what_the_function_calls_is_eager_too():
    counter = Counter()
    torch.compiler.reset()
    compiled = torch.compile(outer, backend=counter, dynamic=False)
    with said():
        for length in range(2, 14):
            compiled(torch.ones(length))
    assert (counter.compiled, counter.ran) == (8, 8)


def test_past_the_limit_the_result_is_still_right():
    torch.compiler.reset()
    compiled = torch.compile(double, backend="eager", dynamic=False)
    with said():
        for length in range(2, 14):
            assert compiled(torch.ones(length)).tolist() == [2.0] * length


def test_with_fullgraph_or_a_setting_the_limit_is_an_error():
    for options, setting in (({"fullgraph": True}, {}), ({}, {"fail_on_recompile_limit_hit": True})):
        torch.compiler.reset()
        compiled = torch.compile(double, backend="eager", dynamic=False, **options)
        with said(), torch._dynamo.config.patch(setting):
            for length in range(2, 10):
                compiled(torch.ones(length))
            with pytest.raises(torch._dynamo.exc.FailOnRecompileLimitHit):
                compiled(torch.ones(10))


def test_two_compilations_of_one_function_share_its_entries():
    counter = Counter()
    torch.compiler.reset()
    for _ in range(3):
        torch.compile(double, backend=counter)(torch.ones(5))
    assert (counter.compiled, counter.ran) == (1, 3)


def test_entries_and_a_limit_of_ones_own_are_newer_than_torch_2_11():
    options = inspect.signature(torch.compile).parameters
    bounds = inspect.signature(torch._dynamo.decorators.mark_unbacked).parameters
    for name, where in (("recompile_limit", options), ("isolate_recompiles", options), ("max", bounds)):
        assert name not in where if TORCH == (2, 11) else TORCH < (2, 13) or name in where


@pytest.mark.skipif(TORCH < (2, 13), reason="torch.compile has no isolate_recompiles")
def test_isolated_compilations_share_nothing():
    counter = Counter()
    torch.compiler.reset()
    for _ in range(3):
        torch.compile(double, backend=counter, isolate_recompiles=True)(torch.ones(5))
    assert counter.compiled == 3


def test_stances():
    assert {name: stance(name) for name in STANCES} == {
        "default": ["runs its graph", "compiles"],
        "eager_on_recompile": ["runs its graph", "runs eagerly"],
        "fail_on_recompile": ["runs its graph", "raises RuntimeError"],
        "force_eager": ["runs eagerly", "runs eagerly"],
    }
    assert eager_first((5, 6, 7, 8)) == ["runs eagerly", "compiles", "runs its graph", "runs its graph"]


def test_a_mark_on_the_first_call_is_enough_and_a_size_of_one_is_refused():
    counter = Counter()
    torch.compiler.reset()
    compiled = torch.compile(double, backend=counter)
    for length in (5, 6, 7, 1024):
        x = torch.ones(length)
        if length == 5:
            torch._dynamo.mark_dynamic(x, 0, min=2, max=1024)
        compiled(x)
    assert counter.compiled == 1
    one = torch.ones(1)
    torch._dynamo.mark_dynamic(one, 0, min=2, max=1024)
    with pytest.raises(
        ConstraintViolationError, match=r"marked .* as dynamic but your code specialized it to be a constant"
    ):
        compiled(one)


def test_a_mark_is_a_promise_and_a_perhaps_is_not():
    assert of_marked(torch._dynamo.mark_dynamic) == (
        "You marked L['x'].size()[0] as dynamic but your code specialized it to be a constant (5)"
    )
    assert of_marked(torch._dynamo.maybe_mark_dynamic).startswith("one graph")


@pytest.mark.skipif(TORCH > (2, 13), reason="a first size of 1 may have become a symbol")
def test_dynamic_true_does_not_make_a_symbol_of_a_first_size_of_1():
    for sizes, graphs in (((8, 5, 2), 1), ((1, 2, 5), 2)):
        counter = Counter()
        torch.compiler.reset()
        compiled = torch.compile(double, backend=counter, dynamic=True)
        for size in sizes:
            compiled(torch.ones(size))
        assert counter.compiled == graphs


def test_attention_needs_to_know_that_an_unbacked_length_is_not_0():
    asks = "Could not guard on data-dependent expression Eq(u"
    assert of_unbacked(attend).startswith(asks if TORCH < (2, 15) else "one graph")
    assert of_unbacked(attend_checked) == "one graph"


@pytest.mark.skipif(not torch._functorch.config.enable_autograd_cache, reason="the environment turns the cache off")
def test_the_compilers_cache_keeps_an_early_value_of_a_float_inside_eps():
    """Fixed in PyTorch? Then the page's warning goes."""
    scales = [1.0, 2.0, 3.0, 4.0]
    assert max(errors_of_floats(scales, cached=False)) < 1e-5
    assert min(errors_of_floats(scales, cached=True)[2:]) > 0.01
