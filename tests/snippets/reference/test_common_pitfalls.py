"""Each pitfall shows its symptom, and its mend takes the symptom away."""

import pytest
import torch

from snippets.reference import common_pitfalls as pitfalls
from snippets.reference import common_pitfalls_breaks, common_pitfalls_effects
from snippets.reference.common_pitfalls import SYMPTOMS
from snippets.reference.common_pitfalls_breaks import compiled, entries, error, reason
from snippets.reference.common_pitfalls_effects import agree, draw, printed

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
    fast = compiled(common_pitfalls_effects.seed_after)
    return agree(lambda x: common_pitfalls_effects.seed_after(x, draw()), lambda x: fast(x, draw()))


MENDED = {
    "skipped": (lambda: reason(common_pitfalls_breaks.skipped_after), "no entry"),
    "repeated": (lambda: entries(common_pitfalls_breaks.repeated_after), "no entry"),
    "caught": (error(common_pitfalls_breaks.caught_after), "no error"),
    "late hook": (lambda: common_pitfalls_effects.late_hook(forget=True), "the hook ran once"),
    "no fake": (error(lambda x: pitfalls.double(x).sin(), fullgraph=True), "no error"),
    "alias": (error(pitfalls.alias_after, fullgraph=True), "no error"),
    "unguarded": (error(common_pitfalls_breaks.unguarded_after, fullgraph=True), "no error"),
    "disabled": (error(common_pitfalls_breaks.calls_disabled), "no error"),
    "reordered": (lambda: printed(common_pitfalls_effects.reordered_after), "first: tensor(1.)"),
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
