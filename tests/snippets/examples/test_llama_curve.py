"""The data of the loss curves can be learnt, and is the same everywhere; the curves begin at the same weights."""

import itertools
from collections.abc import Callable

import pytest
import torch

pytest.importorskip("transformers", reason="a development dependency: constraints.txt names its version")

from snippets.examples import llama_curve
from snippets.examples.llama_model import TINY
from tests.benchmarks.captures import sections


def test_text_is_the_same_everywhere_and_can_be_learnt() -> None:
    first = llama_curve.text(3, 2, 40, 1000)
    assert first.shape == (3, 2, 40) and torch.equal(first, llama_curve.text(3, 2, 40, 1000))
    rows = llama_curve.text(20, 4, 200, 1000).flatten(0, 1).tolist()
    pairs = {pair for row in rows for pair in itertools.pairwise(row)}
    assert len(pairs) <= 4 * llama_curve.WORDS


def test_a_curve_is_reproducible_and_another_order_is_another_curve() -> None:
    batches = llama_curve.text(3, 1, 16, TINY["vocab_size"])
    first, again, other = (llama_curve.curve("eager", TINY, batches, order, torch.float32) for order in (0, 0, 1))
    assert first == again != other and len(first) == 3


def test_the_script_runs(script: Callable) -> None:
    done = script("snippets.examples.llama_curve")
    assert done.returncode == 0, done.stderr
    assert "distances" in sections(done.stdout)
