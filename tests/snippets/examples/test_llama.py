"""The rungs of examples/llama compute the library's loss and gradients, and do what the page says of them."""

import functools
from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

pytest.importorskip("transformers", reason="a development dependency: constraints.txt names its version")

from snippets.examples import llama
from snippets.validation.equivalence import check
from tests import gpu
from tests.benchmarks.captures import sections
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
    return llama.make_model(llama.TINY | {"num_hidden_layers": layers}, HERE, dtype)


@functools.cache
def tokens() -> Tensor:
    return torch.randint(256, (2, 32), generator=torch.Generator().manual_seed(0)).to(HERE)


def results(rung: Callable[[nn.Module], llama.Loss], dtype: torch.dtype) -> dict[str, Tensor]:
    base = model(dtype)
    base.zero_grad()
    loss = rung(llama.sharing(base))(tokens())
    loss.backward()
    return {"loss": loss.detach()} | {f"{name}.grad": p.grad for name, p in base.named_parameters()}


@functools.cache
def expected(dtype: torch.dtype) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    names = [name for name, _ in model(dtype).named_parameters()]
    return results(llama.eager, dtype), case.in_float64(model(dtype), tokens(), names)


def holds(rung: Callable[[nn.Module], llama.Loss], dtype: torch.dtype) -> None:
    scale = {"loss": case.LOSS_IS_OFF_BY / (2 * torch.finfo(torch.float32).eps)}
    check(results(rung, dtype), *expected(dtype), scale)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", llama.RUNGS)
def test_a_rung_computes_the_loss_and_all_gradients(name: str, dtype: torch.dtype) -> None:
    holds(llama.RUNGS[name], dtype)


def small_chunks(model: nn.Module) -> llama.Loss:
    """Chunks that do not divide the 64 rows."""
    return lambda tokens: llama.written_out(model, tokens, llama.block, rows=20)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_loss_in_chunks_is_the_loss(dtype: torch.dtype) -> None:
    holds(small_chunks, dtype)


def test_a_chunk_less_and_a_product_less_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = llama.add_product
    calls = iter([True, True, False, True])
    monkeypatch.setattr(llama, "add_product", lambda *which, beta: plain(*which, beta) if next(calls) else None)
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
        llama.LinearCrossEntropy.apply(x, weight, target, 32).backward()
    assert largest == 32


def test_rows_without_a_target_count_nowhere() -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(10, 64, device=HERE), torch.randn(50, 64, device=HERE)
    target = torch.randint(50, (10,), device=HERE)
    target[3:5] = -100
    x.requires_grad_(), weight.requires_grad_()
    theirs = torch.autograd.grad(3 * F.cross_entropy(x @ weight.T, target), (x, weight))
    ours = torch.autograd.grad(3 * llama.LinearCrossEntropy.apply(x, weight, target, 4), (x, weight))
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other)


def test_padding_is_refused_where_attention_would_not_know_of_it() -> None:
    padded = torch.ones_like(tokens())
    padded[:, :4] = 0
    for change in (llama.say_causal, llama.kernels_swapped):
        changed = llama.sharing(model())
        change(changed)
        with pytest.raises(ValueError, match="attention_mask: expected none"):
            changed(input_ids=tokens(), attention_mask=padded)


def test_causal_attention_is_wrong_beside_a_cache_and_generates_after_a_return() -> None:
    """What the page warns of, and the call that it names. The flag aligns the first query with the first key."""
    changed = llama.sharing(model()).eval()

    def off() -> float:
        with torch.no_grad():
            first = changed(input_ids=tokens()[:, :16], use_cache=True).past_key_values
            second = changed(input_ids=tokens()[:, 16:], past_key_values=first, use_cache=True).logits
            return (second - changed(input_ids=tokens()).logits[:, 16:]).abs().max().item()

    assert off() < 1e-3
    llama.say_causal(changed)
    assert off() > 0.1
    with pytest.raises(ValueError, match="attention_mask: expected none"):
        changed.generate(tokens()[:, :8], max_new_tokens=2)
    changed.set_attn_implementation("sdpa")
    assert off() < 1e-3
    assert changed.generate(tokens()[:, :8], max_new_tokens=2).shape == (2, 10)


def test_a_rung_shares_parameters_and_leaves_the_model_alone() -> None:
    base = model()
    before = base(input_ids=tokens()).logits
    for rung in llama.RUNGS.values():
        other = llama.sharing(base)
        rung(other)
        assert all(a is b for a, b in zip(base.parameters(), other.parameters(), strict=True))
    assert base.config._attn_implementation == "sdpa"
    assert torch.equal(base(input_ids=tokens()).logits, before)


@pytest.mark.parametrize("rung", [llama.layers_compiled, llama.rewritten_compiled])
def test_one_graph_serves_more_layers_than_dynamo_would_compile_anew(rung: Callable) -> None:
    layers = torch._dynamo.config.recompile_limit + 2
    torch._dynamo.utils.counters.clear()
    rung(llama.sharing(model(layers=layers)))(tokens())
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


def test_what_attention_is_given() -> None:
    one = tokens()[:1]
    as_a_flag, as_a_mask = ("none", "True", 2), ("bool (1, 1, 32, 32)", "False", 4)
    assert llama.said(llama.eager(llama.sharing(model())), one) == as_a_flag
    assert llama.traced(llama.sharing(model()), one) == as_a_mask
    assert llama.traced(llama.say_causal(llama.sharing(model())), one) == as_a_flag
    assert llama.said(llama.layers_compiled(llama.sharing(model())), one) == as_a_flag


def says_exporting() -> bool:
    """What Dynamo makes of torch.compiler.is_exporting in code that is compiled: on torch 2.11 it says yes."""
    return torch.compile(lambda x: x + 1 if torch.compiler.is_exporting() else x, backend="eager")(torch.zeros(())) == 1


@pytest.mark.parametrize("use_cache", [True, False])
def test_the_pull_request_mends_one_of_two_guards(use_cache: bool) -> None:
    other = llama.sharing(model())
    other.config.use_cache = use_cache
    with llama.first_guard_open():
        mask, is_causal, _ = llama.traced(other, tokens()[:1])
    mended = use_cache and not says_exporting()
    assert (mask == "none", is_causal == "True") == (mended, mended)


def test_adamw_compiled_is_adamw() -> None:
    updated = []
    for compiled in (False, True):
        torch.manual_seed(0)
        parameters = [nn.Parameter(torch.randn(64, 8, device=HERE)) for _ in range(3)]
        optimizer = llama.make_optimizer(nn.ParameterList(parameters), lr=1e-2)
        step = llama.update_compiled(optimizer) if compiled else optimizer.step
        for _ in range(3):
            for p in parameters:
                p.grad = torch.randn_like(p)
            step()
        updated.append(parameters)
    for one, other in zip(*updated, strict=True):
        torch.testing.assert_close(one, other)


def test_updates_beside_the_backward_are_those_after_it() -> None:
    losses, ends = [], []
    for ahead in (False, True):
        torch.manual_seed(0)
        own = llama.make_model(llama.TINY, HERE, torch.float32)
        updates = llama.UpdateAhead(own, lr=1e-2) if ahead else None
        update = updates.join if updates else llama.make_optimizer(own, lr=1e-2).step
        for _ in range(3):
            loss = llama.eager(own)(tokens())
            loss.backward()
            update()
            own.zero_grad()
            losses.append(loss.detach())
        ends.append([p.detach().clone() for p in own.parameters()])
    torch.testing.assert_close(losses[:3], losses[3:])
    for after, beside in zip(*ends, strict=True):
        torch.testing.assert_close(after, beside)
    updates.remove()
    llama.eager(own)(tokens()).backward()
    assert all(torch.equal(p, end) for p, end in zip(own.parameters(), ends[-1], strict=True))


def test_a_step_updates_and_forgets_the_gradients() -> None:
    torch.manual_seed(0)
    own = llama.make_model(llama.TINY, HERE, torch.float32)
    optimizer = llama.make_optimizer(own, lr=1e-2)
    losses = [llama.train_step(llama.eager(own), optimizer, tokens()).item() for _ in range(3)]
    assert losses == sorted(losses, reverse=True)
    assert all(p.grad is None for p in own.parameters())


def test_flops_of_a_step() -> None:
    products, attention = case.flops(llama.LLAMA, 4, 4096).values()
    parameters = sum(
        p.numel() for n, p in model().named_parameters() if p.dim() == 2 and "embed" not in n
    )  # of the tiny one
    tiny, _ = case.flops(llama.TINY, 1, 1).values()
    assert tiny == 6 * parameters
    assert products == 6 * 4 * 4096 * (16 * 60_817_408 + 2048 * 128256)
    assert attention == 16 * (2 + 5) * 4 * 32 * 4096**2 * 64


def test_liger_leaves_the_library_as_it_was() -> None:
    pytest.importorskip("liger_kernel")
    from transformers.models.llama import modeling_llama as library

    before = dict(vars(library))
    case.liger(llama.sharing(model()))
    assert dict(vars(library)) == before


def test_the_script_runs(script: Callable) -> None:
    with gpu.room(24 * gpu.GIB):  # on a GPU it takes steps of a model of a billion parameters
        done = script("snippets.examples.llama")
    assert done.returncode == 0, done.stderr
    assert "mended" in sections(done.stdout)
