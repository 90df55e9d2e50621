"""The draft does what its comments say: scores by a moving average, made one after the other, and refuses NaN."""

import pytest
import torch
import torch.nn.functional as F

from snippets.examples import first_optimized_module_draft as draft_file
from snippets.examples.first_optimized_module_draft import FEATURES, STEPS, TASKS, make_draft, make_input


def test_the_average_weighs_each_transaction_by_its_age():
    draft, x = make_draft().double(), make_input(3).double()
    h = draft.embed((x - draft.mean) / draft.spread)
    normed = F.rms_norm(h, draft.scale.shape, draft.scale, 1e-6)
    h = h + draft.down(F.silu(draft.gate(normed)) * draft.up(normed))
    keep = torch.sigmoid(draft.memory)
    state = sum((1 - keep) * keep ** (STEPS - 1 - step) * h[:, step] for step in range(STEPS))
    expected = torch.cat([head(state) for head in draft.heads], -1)
    torch.testing.assert_close(draft(x), expected, rtol=1e-10, atol=1e-12)


def test_the_last_transaction_counts_most():
    draft, x = make_draft(), make_input(1)
    scores = draft(x)

    def moved(step: int) -> float:
        other = x.clone()
        other[0, step] += 1
        return float((draft(other) - scores).abs().sum())

    assert moved(STEPS - 1) > moved(0) > 0


def test_a_missing_amount_is_refused():
    x = make_input(2)
    x[1, 3, 2] = float("nan")
    with pytest.raises(ValueError, match="no amount"):
        make_draft()(x)


def test_each_draft_has_the_same_weights():
    first, second = make_draft().state_dict(), make_draft().state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_the_script_prints_the_shapes(capsys):
    draft_file.main()
    assert capsys.readouterr().out == f"{(64, STEPS, FEATURES)} in, {(64, TASKS)} out\n"
