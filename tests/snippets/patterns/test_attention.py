"""Every step of the attention page is the same function, and removes what the page says that it removes."""

import math

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from snippets.patterns.attention import VERSIONS, Weights, explicit, make_weights, naive, one_pass, sdpa
from snippets.validation.equivalence import check
from tests.benchmarks.case import Point
from tests.benchmarks.patterns import attention as case

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
# on a CPU fp32 only: where a virtual machine hides AMX, oneDNN's bf16 matmul ends the process
DTYPES = [torch.float32, torch.bfloat16] if DEVICE.type == "cuda" else [torch.float32]


def layer(tokens: int, dtype: torch.dtype = torch.float32, batch: int = 1) -> tuple[Tensor, Weights]:
    """An input (batch, tokens, 64) and weights for 4 heads."""
    torch.manual_seed(0)
    return torch.randn(batch, tokens, 64, device=DEVICE).to(dtype), make_weights(64, 4, DEVICE, dtype)


def by_the_formula(x: Tensor, w: Weights) -> Tensor:
    """The layer in float64, one query of one head at a time."""
    x, exact = x.double(), [weight.double() for weight in w[:5]]
    q, k, v = ((x @ weight.T).unflatten(-1, (w.heads, -1)) for weight in exact[:3])
    mixed = torch.empty_like(q)
    for batch, query, head in ((b, t, h) for b in range(q.shape[0]) for t in range(q.shape[1]) for h in range(w.heads)):
        weights = (k[batch, : query + 1, head] @ q[batch, query, head] / math.sqrt(q.shape[-1])).softmax(0)
        mixed[batch, query, head] = weights @ v[batch, : query + 1, head]
    return mixed.flatten(2) @ exact[4].T


@pytest.mark.parametrize("name", VERSIONS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_version_is_the_formula(name: str, dtype: torch.dtype) -> None:
    x, w = layer(40, dtype, batch=2)
    expected, plain = by_the_formula(x, w), naive(x, w)
    check({name: VERSIONS[name](x, w)}, {name: plain}, {name: expected})


@pytest.mark.usefixtures("captured")
@pytest.mark.parametrize("version", [sdpa, naive])
def test_compiled_is_the_formula(version) -> None:
    x, w = layer(40)
    result = torch.compile(version, dynamic=False, fullgraph=True)(x, w)
    check({"output": result}, {"output": naive(x, w)}, {"output": by_the_formula(x, w)})


@pytest.mark.parametrize("tile", [1, 7, 16, 64])
def test_tiles_of_any_size(tile: int) -> None:
    """Ragged last tiles, single keys, and one tile that holds everything."""
    q, k, v = torch.randn(3, 2, 4, 40, 16, device=DEVICE)
    exact = explicit(*(each.double() for each in (q, k, v)))
    check({"output": one_pass(q, k, v, tile)}, {"output": explicit(q, k, v)}, {"output": exact})


def test_the_running_maximum_is_needed_and_kept() -> None:
    """Scores up to 10⁴: their exponentials overflow unless the maximum is taken off, also one found late."""
    q, k, v = torch.randn(3, 1, 1, 64, 16, device=DEVICE)
    k = k * torch.linspace(1, 1e3, 64, device=DEVICE)[:, None]
    exact = explicit(*(each.double() for each in (q * 30, k, v)))
    check({"output": one_pass(q * 30, k, v, 8)}, {"output": explicit(q * 30, k, v)}, {"output": exact})


def test_the_reference_of_the_benchmark_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(case, "CHUNK", 16)
    x, w = layer(40)
    torch.testing.assert_close(case.in_float64(x, w), by_the_formula(x, w), rtol=1e-12, atol=1e-12)


def test_the_script_shows_both_lengths(script) -> None:
    lines = script("snippets.patterns.attention").stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["512", *VERSIONS, "2048", *VERSIONS]


def test_the_flops_of_the_benchmark_are_those_of_the_formula() -> None:
    """Counted op by op, but for the half of the scores that lies behind the causal mask."""
    workload = case.prepare(Point({"tokens": 40, "width": 64, "heads": 4}, "float32"), DEVICE)
    call = workload.variants["naive"].build()
    with FlopCounterMode(display=False) as counter:
        call()
    assert workload.flops == counter.get_total_flops() - 2 * 40 * 40 * 64
