"""The loss in chunks is the loss, and no more of its logits exist than a chunk's."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from snippets.examples import llama, llama_functions, llama_model
from tests.snippets.examples.test_llama_model import DTYPES, HERE, holds


def small_chunks(model: nn.Module) -> llama_model.Loss:
    """Chunks that do not divide the 64 rows."""
    return lambda tokens: llama.written_out(model, tokens, llama.block, rows=20)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_loss_in_chunks_is_the_loss(dtype: torch.dtype) -> None:
    holds(small_chunks, dtype)


def test_a_chunk_less_and_a_product_less_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = llama_functions.add_product
    calls = iter([True, True, False, True])
    monkeypatch.setattr(
        llama_functions, "add_product", lambda *which, beta: plain(*which, beta) if next(calls) else None
    )
    with pytest.raises(AssertionError, match=r"lm_head\.weight\.grad"):
        holds(small_chunks, torch.float32)
    monkeypatch.undo()
    of_chunks = Tensor.addmm_
    monkeypatch.setattr(Tensor, "addmm_", lambda self, *_, **beta: of_chunks(self, *_, **beta) if beta else self)
    with pytest.raises(AssertionError):
        holds(llama.rewritten, torch.float32)


def test_the_logits_of_all_rows_never_exist_together() -> None:
    largest = 0

    class Sizes(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            nonlocal largest
            out = func(*args, **(kwargs or {}))
            if isinstance(out, Tensor) and out.shape[-1:] == (500,) and out.dim() == 2 and out.shape[0] != 64:
                largest = max(largest, out.shape[0])
            return out

    torch.manual_seed(0)
    x, weight = torch.randn(100, 64, device=HERE), torch.randn(500, 64, device=HERE)
    target = torch.randint(500, (100,), device=HERE)
    x.requires_grad_(), weight.requires_grad_()
    with Sizes():
        llama_functions.LinearCrossEntropy.apply(x, weight, target, 32).backward()
    assert largest == 32


def test_rows_without_a_target_count_nowhere() -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(10, 64, device=HERE), torch.randn(50, 64, device=HERE)
    target = torch.randint(50, (10,), device=HERE)
    target[3:5] = -100
    x.requires_grad_(), weight.requires_grad_()
    theirs = torch.autograd.grad(3 * F.cross_entropy(x @ weight.T, target), (x, weight))
    ours = torch.autograd.grad(3 * llama_functions.LinearCrossEntropy.apply(x, weight, target, 4), (x, weight))
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other)
