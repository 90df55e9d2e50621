"""The rungs of examples/llama compute the library's loss and gradients, and do what the page says of them."""

from collections.abc import Callable

import pytest
import torch

pytest.importorskip("transformers", reason="a development dependency: constraints.txt names its version")

from snippets.examples import llama, llama_model
from tests import gpu
from tests.benchmarks.captures import sections
from tests.benchmarks.examples import llama as case
from tests.snippets.examples.test_llama_model import DTYPES, holds, model, tokens, traced_only  # noqa: F401  a fixture


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", llama.RUNGS)
def test_a_rung_computes_the_loss_and_all_gradients(name: str, dtype: torch.dtype) -> None:
    holds(llama.RUNGS[name], dtype)


def test_a_rung_shares_parameters_and_leaves_the_model_alone() -> None:
    base = model()
    before = base(input_ids=tokens()).logits
    for rung in llama.RUNGS.values():
        other = llama_model.sharing(base)
        rung(other)
        assert all(a is b for a, b in zip(base.parameters(), other.parameters(), strict=True))
    assert base.config._attn_implementation == "sdpa"
    assert torch.equal(base(input_ids=tokens()).logits, before)


def test_flops_of_a_step() -> None:
    products, attention = case.flops(llama_model.LLAMA, 4, 4096).values()
    parameters = sum(
        p.numel() for n, p in model().named_parameters() if p.dim() == 2 and "embed" not in n
    )  # of the tiny one
    tiny, _ = case.flops(llama_model.TINY, 1, 1).values()
    assert tiny == 6 * parameters
    assert products == 6 * 4 * 4096 * (16 * 60_817_408 + 2048 * 128256)
    assert attention == 16 * (2 + 5) * 4 * 32 * 4096**2 * 64


def test_liger_leaves_the_library_as_it_was() -> None:
    pytest.importorskip("liger_kernel")
    from transformers.models.llama import modeling_llama as library

    before = dict(vars(library))
    case.liger(llama_model.sharing(model()))
    assert dict(vars(library)) == before


def test_the_script_runs(script: Callable) -> None:
    with gpu.room(24 * gpu.GIB):  # on a GPU it takes steps of a model of a billion parameters
        done = script("snippets.examples.llama")
    assert done.returncode == 0, done.stderr
    assert "mended" in sections(done.stdout)
