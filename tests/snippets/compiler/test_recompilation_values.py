"""A number compiles again in each call, in the words of the page, and its fix has the counts of the page."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from snippets.compiler.recompilation import said
from snippets.compiler.recompilation_values import VALUES, count

PAGE = Path(__file__).parents[3] / "docs" / "pages" / "compiler" / "recompilation.md"


@pytest.mark.parametrize("value", VALUES, ids=lambda value: value.before.__name__.removesuffix("_before"))
def test_a_value_has_the_counts_and_the_words_of_the_page(value):
    with said():
        before, reasons = count(value.before)
        after, _ = count(value.after)
    rows = re.findall(r"^\| `(.+?)` \|.*\| (\d+) → (\d+) \|$", PAGE.read_text(), re.MULTILINE)
    assert (value.symptom, str(before), str(after)) in rows
    assert any(value.symptom in reason for reason in reasons)


def test_a_backend_that_compiles_nothing_shows_too_few():
    """A float that is no factor becomes a constant again in AOTAutograd, which that backend leaves out."""
    counts = {value.symptom: (count(value.before, "eager")[0], count(value.before)[0]) for value in VALUES}
    assert {symptom for symptom, (captured, compiled) in counts.items() if captured < compiled} == {
        "limit == 0.5",
        "['lr'] == 0.1",
        "['betas'][0] == 0.95",
    }


@pytest.mark.parametrize(("optimizer", "foreach", "compilations"), [
    (torch.optim.SGD, False, 6), (torch.optim.AdamW, True, 6), (torch.optim.AdamW, False, 2),
])  # fmt: skip
def test_a_learning_rate_becomes_a_symbol_only_in_some_optimizers(optimizer, foreach, compilations):
    def scene(compile: Callable) -> None:
        weight = nn.Parameter(torch.ones(4))
        weight.grad = torch.ones(4)
        made = optimizer([weight], lr=0.1, foreach=foreach)
        schedule = torch.optim.lr_scheduler.ExponentialLR(made, 0.9)
        step = compile(lambda: made.step())
        for _ in range(6):
            step()
            schedule.step()

    assert count(scene)[0] == compilations
