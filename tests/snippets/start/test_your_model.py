"""Your model: each fix computes the same, to float64's accuracy, and saves what the page says that it saves."""

from collections import Counter
from functools import partial

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch.utils._python_dispatch import TorchDispatchMode

from snippets.start.your_model import KINDS, SMALL

CPU = torch.device("cpu")
COSTLY = ("mm", "addmm", "bmm", "convolution", "_fft_r2c", "_fft_c2c", "_fft_c2r", "_local_scalar_dense")
SAVED = {  # the costly operations of a call, before and after
    "LoRA": ({"mm": 3}, {"mm": 1}),
    "diffusion": ({"convolution": 8}, {"convolution": 4}),
    "graph network": ({"mm": 1}, {"mm": 1}),
    "reinforcement learning": ({"mm": 32, "_local_scalar_dense": 16}, {"mm": 2}),
    "FFT": ({"_fft_r2c": 2, "_fft_c2c": 1}, {"_fft_r2c": 1, "_fft_c2r": 1}),
}


class Operations(TorchDispatchMode):
    """Counts the costly operations, and the rows that matrix products multiply."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()
        self.rows = 0

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        name = op.overloadpacket.__name__
        self.counts[name] += name in COSTLY
        self.rows += args[0].shape[0] if name == "mm" else 0
        return op(*args, **(kwargs or {}))


def counted(call) -> Operations:
    with Operations() as operations:
        call()
    return operations


def both(name: str, dtype: torch.dtype = torch.float64):
    kind = KINDS[name]
    inputs = kind.inputs(SMALL[name], CPU, dtype)
    return lambda: kind.before(*inputs), kind.fixed(*inputs)


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> list:
    """What is captured from here on, and runs as it is; the script compares what Inductor makes of it."""
    captured, usual = CompileCounterWithBackend("eager"), torch.compile
    torch.compiler.reset()
    monkeypatch.setattr(torch, "compile", partial(usual, backend=captured))
    return captured.graphs


@pytest.mark.parametrize("name", KINDS)
def test_the_fix_computes_the_same(name: str, graphs: list) -> None:
    """In one graph, if it compiles."""
    before, after = both(name)
    expected = before()
    assert expected.abs().max() > 1e-3
    for _ in range(2):
        torch.testing.assert_close(after(), expected, rtol=1e-9, atol=1e-9)
    assert len(graphs) == KINDS[name].compiled


@pytest.mark.parametrize("name", SAVED)
def test_the_fix_saves_operations(name: str) -> None:
    found = [{op: n for op, n in counted(call).counts.items() if n} for call in both(name)]
    assert found == list(SAVED[name])
