"""Each pitfall shows its symptom, and its mend takes the symptom away."""

import pytest
import torch
from torch import nn

from snippets.reference import common_pitfalls as pitfalls
from snippets.reference.common_pitfalls import SYMPTOMS, agree, compiled, draw, entries, error, make_x, printed, reason

SEEN = {
    "skipped": "Failed to handle graph break gracefully. Skipping the function and falling back to eager.",
    "repeated": "user stack suppressed due to duplicate graph break",
    "caught": "TorchRuntimeError: RuntimeError when making fake tensor call",
    "late hook": "the hook ran never",
    "no fake": "There was no fake impl registered for <CustomOpDef(ridgepoint::double_without_fake)>",
    "alias": "Encountered aliasing during higher order op tracing",
    "unguarded": "Could not guard on data-dependent expression",
    "disabled": "Unsupported: Skip calling `torch.compiler.disable()`d function",
    "reordered": "first: tensor(101.)",
    "seed": "other numbers than eager, from the same seed",
}


def seeded_after() -> str:
    fast = compiled(pitfalls.seed_after)
    return agree(lambda x: pitfalls.seed_after(x, draw()), lambda x: fast(x, draw()))


MENDED = {
    "skipped": (lambda: reason(pitfalls.skipped_after), "no entry"),
    "repeated": (lambda: entries(pitfalls.repeated_after), "no entry"),
    "caught": (error(pitfalls.caught_after), "no error"),
    "late hook": (lambda: pitfalls.late_hook(forget=True), "the hook ran once"),
    "no fake": (error(lambda x: pitfalls.double(x).sin(), fullgraph=True), "no error"),
    "alias": (error(pitfalls.alias_after, fullgraph=True), "no error"),
    "unguarded": (error(pitfalls.unguarded_after, fullgraph=True), "no error"),
    "disabled": (error(pitfalls.calls_disabled), "no error"),
    "reordered": (lambda: printed(pitfalls.reordered_after), "first: tensor(1.)"),
    "seed": (seeded_after, "the same numbers"),
}
if tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 14):
    SEEN["caught"] = "no error"  # the page says so

names = pytest.mark.parametrize("name", SEEN)


def test_there_are_ten():
    assert list(SYMPTOMS) == list(SEEN) == list(MENDED) and len(SEEN) == 10


@names
def test_the_symptom_reads_as_on_the_page(name):
    assert SEEN[name] in SYMPTOMS[name]()


@names
def test_the_mend_takes_it_away(name):
    mended, said = MENDED[name]
    assert mended() == said


def test_the_error_that_is_not_caught_is_caught_in_eager():
    """The pitfall is the compiler's: without it the operation raises what the code catches."""
    with pytest.raises(RuntimeError) as error:
        make_x().view(6, 6)
    assert "invalid for input of size 32" in str(error.value)


def test_a_late_hook_is_seen_where_hooks_are_guarded():
    calls: list[int] = []
    module = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
    with torch._dynamo.config.patch(skip_nnmodule_hook_guards=False):
        fast = compiled(module)
        fast(make_x())
        module[0].register_forward_hook(lambda *_: calls.append(1))
        fast(make_x())
    assert len(calls) == 1


def test_compiled_numpy_draws_from_torch():
    import numpy

    fast = compiled(lambda x: x + torch.from_numpy(numpy.random.randn(8)).float())
    results = []
    for _ in range(2):
        torch.manual_seed(0)
        results.append(fast(make_x()))
    assert torch.equal(*results)
