"""The model and its step; and what the tests of the Llama step share."""

import functools
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("transformers", reason="a development dependency: constraints.txt names its version")

from snippets.examples import llama_model
from snippets.validation.equivalence import check
from tests.benchmarks.examples import llama as case

HERE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
DTYPES = (
    (torch.float32, torch.bfloat16) if HERE.type == "cuda" else (torch.float32,)
)  # the interpreter rounds otherwise


@pytest.fixture(autouse=True)
def traced_only(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What matters here is what is captured; Inductor would take a minute."""
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="aot_eager"))
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@functools.cache
def model(dtype: torch.dtype = torch.float32, layers: int = 2) -> nn.Module:
    torch.manual_seed(0)
    return llama_model.make_model(llama_model.TINY | {"num_hidden_layers": layers}, HERE, dtype)


@functools.cache
def tokens() -> Tensor:
    return torch.randint(256, (2, 32), generator=torch.Generator().manual_seed(0)).to(HERE)


def results(rung: Callable[[nn.Module], llama_model.Loss], dtype: torch.dtype) -> dict[str, Tensor]:
    base = model(dtype)
    base.zero_grad()
    loss = rung(llama_model.sharing(base))(tokens())
    loss.backward()
    return {"loss": loss.detach()} | {f"{name}.grad": p.grad for name, p in base.named_parameters()}


@functools.cache
def expected(dtype: torch.dtype) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    names = [name for name, _ in model(dtype).named_parameters()]
    return results(llama_model.eager, dtype), case.in_float64(model(dtype), tokens(), names)


def holds(rung: Callable[[nn.Module], llama_model.Loss], dtype: torch.dtype) -> None:
    scale = {"loss": case.LOSS_IS_OFF_BY / (2 * torch.finfo(torch.float32).eps)}
    check(results(rung, dtype), *expected(dtype), scale)


def test_a_step_updates_and_forgets_the_gradients() -> None:
    torch.manual_seed(0)
    own = llama_model.make_model(llama_model.TINY, HERE, torch.float32)
    optimizer = llama_model.make_optimizer(own, lr=1e-2)
    losses = [llama_model.train_step(llama_model.eager(own), optimizer, tokens()).item() for _ in range(3)]
    assert losses == sorted(losses, reverse=True)
    assert all(p.grad is None for p in own.parameters())
