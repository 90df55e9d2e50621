"""Bytes to the CPU by hand are those that travel; what costs no time comes first."""

from collections.abc import Callable
from unittest import mock

import pytest
import torch

from snippets.examples import large_models_activations, large_models_seconds
from snippets.examples.large_models_change import Change
from tests.snippets.examples.test_large_models_shape import SHAPE, TOKENS, model


def pack_counting() -> tuple[list[int], Callable]:
    sizes: list[int] = []

    def hooks(**_: object) -> object:
        return torch.autograd.graph.saved_tensors_hooks(lambda t: (sizes.append(t.nbytes), t)[1], lambda t: t)

    return sizes, hooks


@pytest.mark.parametrize("repeat", ["", "blocks"])
def test_bytes_to_the_cpu_are_predicted(repeat: str) -> None:
    change, (sizes, hooks) = Change(offload=True, repeat=repeat), pack_counting()
    with mock.patch.object(torch.autograd.graph, "save_on_cpu", hooks):
        large_models_activations.changed(model(), change)(TOKENS)
    by_hand = SHAPE.layers * large_models_seconds.moved_by_block(SHAPE, TOKENS.numel(), change)
    assert sum(sizes) == pytest.approx(by_hand, rel=0.06)  # beside rotary tables and the norms' weights


def test_what_costs_no_time_is_listed_first(capsys: pytest.CaptureFixture[str]) -> None:
    large_models_seconds.ranked([("slow", 4e9, 0.4), ("free", 2e9, -0.1), ("quick", 3e9, 0.1), ("nothing", 0.0, 0.0)])
    assert [each.split()[0] for each in capsys.readouterr().out.splitlines()[1:]] == ["free", "quick", "slow"]
