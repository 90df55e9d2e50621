"""The versions of the block are one function, and the table says what this machine can and cannot do."""

import copy
import gc
import re

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from snippets import first_speedup
from snippets.first_speedup import VERSIONS, Better, FirstDraft, gelu, make, table, version
from snippets.validation.equivalence import check
from snippets.validation.timing import Timing
from tests.benchmarks import first_speedup as case
from tests.benchmarks.case import Point

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
# on a CPU fp32 only, as the snippet: where a virtual machine hides AMX, oneDNN's bf16 matmul ends the process
DTYPES = [torch.float32, torch.bfloat16] if DEVICE.type == "cuda" else [torch.float32]


def block(dtype: torch.dtype, tokens: int = 24) -> tuple[FirstDraft, Tensor]:
    """A small block whose norm weights are not all one, so that a forgotten weight shows."""
    torch.manual_seed(0)
    draft, x = make(width=64, heads=4, batch=2, tokens=tokens, device=DEVICE, dtype=dtype)
    for weight in (draft.norm1, draft.norm2):
        weight.normal_(1, 0.5)
    return draft, x


def in_float64(draft: FirstDraft, x: Tensor) -> Tensor:
    return Better(copy.deepcopy(draft)).requires_grad_(False).double()(x.double())


@pytest.mark.usefixtures("captured")
@pytest.mark.parametrize("name", VERSIONS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_version_is_the_first_draft(name: str, dtype: torch.dtype) -> None:
    if name == "graph" and DEVICE.type == "cpu":
        pytest.skip("a CUDA graph needs a GPU")
    draft, x = block(dtype)
    result = version(name, draft, x)()
    check({name: result}, {name: draft(x)}, {name: in_float64(draft, x)})


def test_the_float64_block_is_the_formula() -> None:
    """The reference of the other tests, written out once more, token by token."""
    draft, x = block(torch.float32, tokens=5)
    exact, x = copy.deepcopy(draft).double(), x.double()[:1]
    q, k, v = (linear(norm(x, exact.norm1)).view(5, 4, 16) for linear in (exact.q, exact.k, exact.v))
    mixed = torch.zeros(5, 4, 16, dtype=torch.float64, device=DEVICE)
    for token in range(5):
        for head in range(4):
            weights = (k[: token + 1, head] @ q[token, head] / 16**0.5).softmax(0)
            mixed[token, head] = weights @ v[: token + 1, head]
    x = x + exact.out(mixed.view(1, 5, 64))
    up = exact.up(norm(x, exact.norm2))
    expected = x + exact.down(up * torch.sigmoid(2 * (2 / torch.pi) ** 0.5 * (up + 0.044715 * up**3)))
    torch.testing.assert_close(in_float64(*block(torch.float32, tokens=5))[:1], expected, rtol=1e-12, atol=1e-12)


def norm(x: Tensor, weight: Tensor) -> Tensor:
    return x / (x.square().sum(-1, keepdim=True) / x.shape[-1] + 1e-6).sqrt() * weight


def test_gelu_by_hand_is_the_tanh_gelu() -> None:
    x = torch.linspace(-9, 9, 1001, dtype=torch.float64)
    torch.testing.assert_close(gelu(x), torch.nn.functional.gelu(x, approximate="tanh"), rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize("name", ["first-draft", "better"])
def test_a_token_sees_only_the_past(name: str) -> None:
    draft, x = block(torch.float32)
    before = version(name, draft, x)()
    x[:, 10:] += 1
    after = version(name, draft, x)()
    torch.testing.assert_close(after[:, :10], before[:, :10], rtol=0, atol=1e-6)
    assert not torch.allclose(after[:, 10:], before[:, 10:])


@pytest.mark.skipif(DEVICE.type == "cuda", reason="here the graph can be captured")
def test_a_cpu_is_told_that_the_graph_does_nothing() -> None:
    with pytest.raises(ValueError, match="does nothing on a CPU"):
        version("graph", *block(torch.float32))


@pytest.mark.skipif(DEVICE.type == "cpu", reason="a CUDA graph needs a GPU")
def test_the_graph_computes_and_does_not_remember() -> None:
    """A replay that skips its kernels would return the old output for a new input; one without its weights, noise."""
    draft, x = block(torch.bfloat16)
    replay = version("graph", draft, x)
    replay()
    gc.collect()  # a graph does not keep what it reads
    taken = [torch.full_like(draft.up.weight, torch.nan) for _ in range(8)]
    x.copy_(torch.randn_like(x))
    check({"graph": replay()}, {"graph": draft(x)}, {"graph": in_float64(draft, x)})
    assert len(taken) == 8


def test_table_arithmetic() -> None:
    timings = {"first-draft": Timing(1e-3, 2e-3, 3e-3, 9), "better": Timing(1e-3, 1e-3, 1e-3, 9)}
    left_out = {"compile-draft": "no compiler", "compile": "no compiler", "graph": "no GPU"}
    shown = table(timings, left_out, tokens=512).splitlines()
    assert shown[0].split() == ["implementation", "time", "throughput", "speedup"]
    assert shown[1].split() == ["first-draft", "2,000.0", "us", "256,000", "tokens/s", "1.00x"]
    assert shown[2] == "compile-draft     not timed: no compiler"
    assert shown[3].split() == ["better", "1,000.0", "us", "512,000", "tokens/s", "2.00x"]
    assert shown[4:] == ["compile           not timed: no compiler", "graph             not timed: no GPU"]


def test_the_command_prints_the_table(script) -> None:
    done = script("snippets.first_speedup")
    lines = done.stdout.strip().splitlines()
    assert "float32: width 512" in lines[0] or "bfloat16: width 512" in lines[0]
    assert [line.split()[0] for line in lines[2:7]] == list(VERSIONS)
    timed = VERSIONS[:-1] if DEVICE.type == "cpu" else VERSIONS
    for line in lines[2 : 2 + len(timed)]:
        assert re.search(r"[\d,.]+ us +[\d,]+ tokens/s +[\d.]+x$", line), line
    assert "building compile" in done.stderr  # progress, apart from the table


def test_the_command_has_three_blocks_to_compile_and_is_patient_for_ten_seconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Which is what its minute goes to; counted, as seconds depend on what else the machine does."""
    compiled, timed = [], []
    monkeypatch.setattr(torch, "compile", lambda model, dynamic: compiled.append(model) or model)
    monkeypatch.setattr(first_speedup, "measure", lambda calls, device, mode, patience: timed.append(patience) or {})
    monkeypatch.setattr(first_speedup, "table", lambda *arguments: "")
    first_speedup.main()
    patience = [10, 10] if DEVICE.type == "cuda" else [2]
    assert timed == patience and len(compiled) == 3 * len(patience)


def test_the_flops_of_the_benchmark_are_those_of_the_first_draft() -> None:
    """Counted op by op, but for the half of the scores that lies behind the causal mask."""
    point = Point({"width": 64, "heads": 4, "batch": 2, "tokens": 24}, "float32")
    workload = case.prepare(point, DEVICE)
    call = workload.variants["first-draft"].build()
    with FlopCounterMode(display=False) as counter:
        call()
    hidden = 2 * 2 * 24 * 24 * 64  # batch, two products, tokens², width
    assert workload.flops == counter.get_total_flops() - hidden
