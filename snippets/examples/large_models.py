"""Memory of a Llama that nearly fills one GPU: each part by hand and measured, and what each way to save it costs.

It needs transformers (5.17); torchao (0.17 with torch 2.11, 0.18 with 2.13) adds optimizer states of 8 bits. Run
`python -m snippets.examples.large_models`: Llamas of 1B, 3B and 8B on a GPU of 80 GB, a tiny one without.
"""

import gc
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from typing import TypeVar

import torch
import torch._functorch.config
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from snippets.compiler.training_checkpointing import PRODUCTS
from snippets.examples.hf_llama import LLAMA_1B, LLAMA_8B, chunked_loss
from snippets.examples.llama import TINY, Loss, make_model, sharing, shifted
from snippets.validation.memory import peak_of, record
from snippets.validation.timing import seconds_per_call

LLAMA_3B = LLAMA_1B | {"hidden_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 24}
SMALL = TINY | {"tie_word_embeddings": True}
GIB = 2**30
BEGAN, PATIENCE = time.perf_counter(), 180.0  # seconds, after which a GPU begins no further step
# --8<-- [start:change]
STATES = {"fp32": 8.0, "bf16": 4.0, "8 bit": 2 * (1 + 4 / 256), "CPU": 0.0}  # bytes a parameter; 8 bit: a scale for 256
NO_TORCHAO = "8-bit states: torchao is missing, bf16 states take their place. Install it: pip install torchao"

Sizes = Mapping[str, float]
Layer = Callable[..., Tensor]
Result = TypeVar("Result")


@dataclass(frozen=True)
class Change:
    """What is done to save memory; as it comes, nothing."""

    repeat: str = ""  # what backward computes again: "blocks", or "cheap": all but matmuls and attention
    budget: float | None = None  # blocks compiled, with this activation_memory_budget
    rows: int = 0  # of logits that exist at once; 0: all
    fused: bool = False  # the loss computes its gradients with itself, from bf16 logits of a quarter of the rows
    states: str = "fp32"
    release: bool = False  # each gradient is used up as soon as it is there
    cache: bool = True  # autocast's: until the forward ends, it holds the bf16 copy of each weight
    offload: bool = False  # what blocks keep for backward waits in the CPU's memory

    def __post_init__(self) -> None:
        if self.states not in STATES:
            raise ValueError(f"states: expected one of {', '.join(STATES)}, got {self.states!r}")
        if self.repeat not in ("", "blocks", "cheap"):
            raise ValueError(f"repeat: expected '', 'blocks' or 'cheap', got {self.repeat!r}")
        if self.rows < 0:
            raise ValueError(f"rows: expected 0 or more, got {self.rows}")
        if self.fused and self.rows:
            raise ValueError(f"fused: expected no rows beside it, since this loss chooses its own, got {self.rows}")
        if self.budget is not None and (self.repeat or self.offload):
            raise ValueError("budget: expected no repeat and no offload beside it, since the compiler decides")


# --8<-- [end:change]


# ---- by hand -------------------------------------------------------------------------------------------------------


# --8<-- [start:shape]
@dataclass(frozen=True)
class Shape:
    """The numbers of a Llama that its memory follows from."""

    width: int
    inner: int  # of the MLP
    kv: int  # width of keys, and of values
    heads: int
    words: int
    layers: int
    tied: bool

    @property
    def block(self) -> int:
        """Weights of a block's matmuls."""
        return 2 * self.width**2 + 2 * self.width * self.kv + 3 * self.width * self.inner

    @property
    def embedding(self) -> int:
        return self.words * self.width

    @property
    def parameters(self) -> int:
        norms = (2 * self.layers + 1) * self.width
        return self.layers * self.block + norms + self.embedding * (1 if self.tied else 2)


def shape_of(sizes: Sizes) -> Shape:
    width, heads = int(sizes["hidden_size"]), int(sizes["num_attention_heads"])
    return Shape(
        width=width,
        inner=int(sizes["intermediate_size"]),
        kv=width // heads * int(sizes["num_key_value_heads"]),
        heads=heads,
        words=int(sizes["vocab_size"]),
        layers=int(sizes["num_hidden_layers"]),
        tied=bool(sizes.get("tie_word_embeddings", False)),
    )


# --8<-- [end:shape]


# --8<-- [start:kept]
def kept_by_token(s: Shape, change: Change) -> int:
    """Bytes that a block keeps of a token for backward, beside copies of its weights. Autocast, residuals in fp32."""
    attention = 2 * (s.width + 2 * s.kv) + 2 * s.width + 4 * s.heads  # q, k, v; the result; a logsumexp for each head
    if change.budget is not None:
        # the block's input, the roots of both norms, gate and up; at 1 also what the matmuls read: both norms' results,
        # gate times up, and the result of o_proj, which is computed again below 1
        read = 3 * 2 * s.width + 2 * s.inner if change.budget == 1 else 0
        return 4 * s.width + 8 + attention + 4 * s.inner + read
    norm = 4 * s.width + 4 + 4 * s.width  # input, root, and the input divided by it
    casts = 2 * s.width * (3 + 2)  # each of q, k, v, gate and up has its own bf16 copy of the norm's result
    gated = 2 * s.inner * 4  # gate and its silu, up, and their product
    return 2 * norm + casts + attention + gated


# --8<-- [end:kept]


# --8<-- [start:moments]
def moments(s: Shape, tokens: int, change: Change) -> dict[str, dict[str, float]]:
    """Bytes by part, in each moment of a step that can be its peak. A byte is counted in one part only."""
    every = 2.0 * (s.layers * s.block + s.embedding)  # bf16 copies of the matmuls' weights, by autocast
    copies = every if not (change.repeat or change.offload or change.budget not in (None, 1)) else 2.0 * s.embedding
    one = float(tokens * kept_by_token(s, change))
    held = 4.0 * tokens * s.width if change.repeat == "blocks" else one
    if change.repeat == "cheap":  # each block keeps its input, and what matmuls and attention gave
        held = tokens * (4.0 * s.width + 2 * (2 * s.width + 2 * s.kv) + 2 * (2 * s.width) + 4 * s.heads + 4 * s.inner)
    blocks = 0.0 if change.offload else s.layers * held
    tail = tokens * (8.0 * s.width + (4 if change.rows else 2) * s.width)  # the last norm, and what lm_head reads
    again = one if change.repeat or change.offload else 0.0  # one block is there again, and its weights' copies
    busy = again + (2.0 * s.block if again else 0) + tokens * (8.0 * s.width + 6 * s.inner)
    staging = 6 * 4.0 * min(PIECE, s.embedding) if change.states == "CPU" else 0.0
    always = {"parameters": 4.0 * s.parameters, "state": STATES[change.states] * s.parameters + staging}
    head, rest = 4.0 * s.embedding, 4.0 * (s.parameters - s.embedding * (1 if s.tied else 2))
    first = {"activations": blocks / s.layers, "copies": copies / s.layers, "temporary": busy}
    to_come = (
        0.0 if change.release else 4.0 * (s.block - s.width * s.inner)
    )  # in the first block, down_proj has its own
    if change.release:
        early = late = head if s.tied else 0.0
    else:
        early, late = head, head + rest
    end = late + (head if s.tied or change.release else 0.0) + (0.0 if s.tied or change.release else head)
    forward, backward, kept = loss_parts(s, tokens, change)
    return {
        "loss, forward": always
        | {
            "activations": blocks + tail,
            "copies": every if change.cache and change.budget is None else copies,
            "loss": forward,
        },
        "loss, backward": always | {"activations": blocks + tail, "copies": copies - kept} | backward,
        "last block, backward": always
        | {"activations": blocks, "copies": copies, "temporary": busy, "gradients": early},
        "first block, backward": always | first | {"gradients": late - to_come},
        "embedding, backward": always | {"gradients": end, "temporary": 4.0 * tokens * s.width},
        "optimizer": always | {"gradients": 0.0 if change.release else late + (0.0 if s.tied else head)},
    }


def loss_parts(s: Shape, tokens: int, change: Change) -> tuple[float, dict[str, float], float]:
    """Bytes of the loss in forward, by part in backward, and of lm_head's copy where backward does not keep it."""
    e, dx = float(s.embedding), 2.0 * tokens * s.width
    if change.fused:  # logits and their gradient in bf16; lm_head's gradient in fp32, in backward once more in bf16
        rows = min(max(1024, -(-tokens // 4)), tokens)
        return 4.0 * rows * s.words + 4 * e + dx, {"loss": 2 * dx, "gradients": 6 * e}, 2 * e
    rows = min(change.rows or tokens, tokens)
    logits = 12.0 * rows * s.words
    if not change.rows:
        return 10.0 * rows * s.words, {"loss": logits}, 0.0
    # of the last chunk: the logits beside lm_head's copy and its gradient's sum; or that sum and a part of it.
    # Autocast's cache makes one copy for all chunks, so that the sum is bf16; without it, the sum is fp32
    sums = max(logits + 4 * e, 6 * e) if change.cache else max(logits + 6 * e, 10 * e)
    return 10.0 * rows * s.words, {"loss": min(logits, sums), "gradients": sums - min(logits, sums) + 2 * dx}, 2 * e


def predicted(s: Shape, tokens: int, change: Change) -> tuple[str, float]:
    """The moment of the peak, and its bytes."""
    sums = {name: sum(parts.values()) for name, parts in moments(s, tokens, change).items()}
    highest = max(sums, key=sums.__getitem__)
    return highest, sums[highest]


# --8<-- [end:moments]


# ---- the changes ---------------------------------------------------------------------------------------------------


# --8<-- [start:repeat]
def repeated(layer: Layer, x: Tensor, keep_products: bool = False, **options: object) -> Tensor:
    """The layer, computed again in backward; `keep_products`: but for matmuls and attention."""
    selective = {"context_fn": partial(create_selective_checkpoint_contexts, PRODUCTS)} if keep_products else {}
    return checkpoint(layer, x, use_reentrant=False, **selective, **options)


def offloaded(layer: Layer, x: Tensor, **options: object) -> Tensor:
    """The layer; what it keeps for backward goes to pinned memory of the CPU, and comes back in backward."""
    with torch.autograd.graph.save_on_cpu(pin_memory=x.is_cuda):
        return layer(x, **options)


def change_layers(model: nn.Module, change: Change) -> None:
    for layer in model.model.layers:
        if change.budget is not None:
            layer.compile(dynamic=False)
        if change.repeat:
            layer.forward = partial(repeated, layer.forward, keep_products=change.repeat == "cheap")
        if change.offload:
            layer.forward = partial(offloaded, layer.forward)


# --8<-- [end:repeat]


# --8<-- [start:chunks]
def summed_loss(x: Tensor, weight: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(F.linear(x, weight).float(), target, reduction="sum")


def loss_in_chunks(x: Tensor, weight: Tensor, target: Tensor, rows: int) -> Tensor:
    """The mean loss of x (tokens, width): logits of `rows` tokens exist at once, and again in backward."""
    parts = zip(x.split(rows), target.split(rows), strict=True)
    losses = [checkpoint(summed_loss, part, weight, classes, use_reentrant=False) for part, classes in parts]
    return torch.stack(losses).sum() / (target != -100).sum()


# --8<-- [end:chunks]


def changed(model: nn.Module, change: Change) -> Loss:
    """The loss of tokens (batch, length), under autocast to bf16; the model itself stays as it is."""
    model = sharing(model)
    change_layers(model, change)

    def loss(tokens: Tensor, labels: Tensor | None = None, **options: object) -> Tensor:
        labels = tokens if labels is None else labels
        with torch.autocast(tokens.device.type, torch.bfloat16, cache_enabled=change.cache):
            if not (change.rows or change.fused):
                return model(input_ids=tokens, labels=labels, **options).loss
            x = model.model(input_ids=tokens, **options).last_hidden_state
            if change.fused:
                return chunked_loss(x, model.lm_head.weight, labels)
            return loss_in_chunks(x.flatten(0, 1), model.lm_head.weight, shifted(labels), change.rows)

    return loss


# --8<-- [start:states]
PIECE = 2**24  # numbers that travel at once


def update(p: Tensor, g: Tensor, m: Tensor, v: Tensor, unbias_m: Tensor, unbias_v: Tensor) -> None:
    """AdamW with the usual numbers of language models; computed in fp32, m and v rounded to their own dtype."""
    m32, v32 = m.float().lerp(g, 1 - 0.9), v.float().lerp(g.square(), 1 - 0.95)
    m.copy_(m32)
    v.copy_(v32)
    p.copy_(p * (1 - LR * 0.1) - LR * (m32 / unbias_m) / ((v32 / unbias_v).sqrt() + 1e-8))


class LeanAdamW:
    """AdamW whose two states are bf16, or fp32 in the CPU's pinned memory, from where pieces come and go."""

    def __init__(self, parameters: Iterable[nn.Parameter], dtype: torch.dtype, on_cpu: bool = False) -> None:
        self.parameters, self.steps = list(parameters), 0
        gpu = self.parameters[0].is_cuda
        self.travels = on_cpu and gpu
        where = {"device": "cpu", "pin_memory": True} if self.travels else {"device": self.parameters[0].device}
        self.state = {p: {name: torch.zeros(p.numel(), dtype=dtype, **where) for name in "mv"} for p in self.parameters}
        self.update = torch.compile(update, dynamic=True) if gpu else update
        if self.travels:
            self.come, self.go = torch.cuda.Stream(), torch.cuda.Stream()
            piece = min(PIECE, max(map(torch.numel, self.parameters)))
            self.room = [[torch.empty(piece, dtype=dtype, device="cuda") for _ in "mv"] for _ in range(3)]
            self.left = [torch.cuda.Event() for _ in self.room]

    @torch.no_grad()
    def step(self) -> None:
        self.steps += 1
        unbias = torch.tensor(1 - 0.9**self.steps), torch.tensor(1 - 0.95**self.steps)
        at = 0
        for p, state in self.state.items():
            if p.grad is None:
                continue
            whole = (p.data.view(-1), p.grad.view(-1), *state.values())
            for pieces in zip(*(each.split(PIECE) for each in whole), strict=True) if self.travels else [whole]:
                if self.travels:
                    self.by_pieces(at % len(self.room), *pieces, unbias)
                    at += 1
                else:
                    self.update(*pieces, *unbias)
        if self.travels:
            self.come.wait_stream(self.go)  # the next step reads what this one writes

    def by_pieces(self, slot: int, p: Tensor, g: Tensor, m: Tensor, v: Tensor, unbias: tuple[Tensor, Tensor]) -> None:
        """Three pieces are on their way at once: one comes, one is updated, one goes."""
        here = [room[: len(p)] for room in self.room[slot]]
        with torch.cuda.stream(self.come):
            self.come.wait_event(self.left[slot])
            for to, source in zip(here, (m, v), strict=True):
                to.copy_(source, non_blocking=True)
        torch.cuda.current_stream().wait_stream(self.come)
        self.update(p, g, *here, *unbias)
        self.go.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.go):
            for to, source in zip((m, v), here, strict=True):
                to.copy_(source, non_blocking=True)
            self.left[slot].record(self.go)

    def zero_grad(self) -> None:
        for p in self.parameters:
            p.grad = None


LR = 1e-4
# --8<-- [end:states]


def optimizer_of(parameters: Iterable[nn.Parameter], states: str) -> torch.optim.Optimizer | LeanAdamW:
    settings = {"lr": LR, "betas": (0.9, 0.95), "weight_decay": 0.1}
    match states:
        case "fp32":
            return torch.optim.AdamW(parameters, fused=True, **settings)
        case "8 bit":
            from torchao.optim import AdamW8bit

            return AdamW8bit(parameters, **settings)
        case _:
            return LeanAdamW(parameters, torch.bfloat16 if states == "bf16" else torch.float32, on_cpu=states == "CPU")


# --8<-- [start:release]
class Released:
    """An optimizer for each parameter: it steps in backward, when the gradient is there, and frees the gradient."""

    def __init__(self, model: nn.Module, make: Callable[[list[nn.Parameter]], torch.optim.Optimizer | LeanAdamW]):
        for like in {p.shape: p for p in model.parameters()}.values():  # what compiles does so here, not in backward
            stand_in = nn.Parameter(torch.zeros_like(like))
            stand_in.grad = torch.zeros_like(like)
            make([stand_in]).step()
        self.optimizers = {p: make([p]) for p in model.parameters()}
        self.hooks = [p.register_post_accumulate_grad_hook(self.arrived) for p in self.optimizers]

    def arrived(self, p: Tensor) -> None:
        self.optimizers[p].step()
        p.grad = None

    @property
    def state(self) -> dict:
        return {p: state for optimizer in self.optimizers.values() for p, state in optimizer.state.items()}

    def remove(self) -> None:
        for hook in self.hooks:
            hook.remove()


# --8<-- [end:release]


Optimizer = torch.optim.Optimizer | LeanAdamW | Released


# ---- measuring -----------------------------------------------------------------------------------------------------


@dataclass
class Ran:
    """What a step took: the peak in bytes, and seconds."""

    peak: float
    seconds: float


@contextmanager
def trained(model: nn.Module, change: Change) -> Iterator[tuple[Callable[[Tensor], Tensor], Optimizer]]:
    """A step of training, and its optimizer; afterwards the model is as before, but for its weights."""
    make = partial(optimizer_of, states=change.states)
    loss_of = changed(model, change)
    optimizer: Optimizer = Released(model, make) if change.release else make(model.parameters())

    def step(tokens: Tensor) -> Tensor:
        loss = loss_of(tokens)
        loss.backward()
        if not isinstance(optimizer, Released):
            optimizer.step()
            optimizer.zero_grad()
        return loss.detach()

    budget = 1.0 if change.budget is None else change.budget
    try:
        with torch._functorch.config.patch(activation_memory_budget=budget):  # read in the first call
            yield step, optimizer
    finally:
        if isinstance(optimizer, Released):
            optimizer.remove()
        for p in model.parameters():
            p.grad = None


def measured(model: nn.Module, tokens: Tensor, change: Change) -> Ran:
    with trained(model, change) as (step, optimizer):
        for _ in range(2):  # the first step makes the states, and compiles
            step(tokens)
        if not tokens.is_cuda:
            return Ran(peak_of(record(lambda: step(tokens), model, optimizer)).nbytes, seconds(lambda: step(tokens)))
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        taken = min(seconds(lambda: step(tokens)) for _ in range(2))
        return Ran(torch.cuda.max_memory_allocated(), taken)


def seconds(call: Callable[[], object]) -> float:
    wait = torch.cuda.synchronize if torch.cuda.is_available() else int
    wait()
    start = time.perf_counter()
    call()
    wait()
    return time.perf_counter() - start


def tried(model: nn.Module, tokens: Tensor, change: Change) -> Ran | str:
    """What it took, or in one line why it did not run."""
    found = ran_or_why(lambda: measured(model, tokens, change))
    if change.budget is not None:
        torch.compiler.reset()  # the next budget is read in a first call
    return found


def ran_or_why(call: Callable[[], Result]) -> Result | str:
    """What the call gives, or in one line why it gave nothing: the others shall run all the same."""
    if torch.cuda.is_available() and time.perf_counter() - BEGAN > PATIENCE:
        return f"not run: {PATIENCE:.0f} s are over (PATIENCE)"
    found: Result | str
    try:
        found = call()
    except torch.OutOfMemoryError:
        found = "out of memory"
    except Exception as error:  # noqa: BLE001
        traceback.print_exc()
        found = f"failed: {type(error).__name__}: {(str(error).splitlines() or [''])[0][:60]}"
    emptied()
    return found


def emptied() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def rates(device: torch.device) -> dict[str, float]:
    """Of this machine, now: bf16 FLOP/s of a matmul, bytes/s of memory, and of pinned memory to and from the GPU."""
    n = 8192 if device.type == "cuda" else 256
    a, b = (torch.randn(n, n, device=device, dtype=torch.bfloat16) for _ in range(2))
    x = torch.empty(n * n * 4, device=device)
    host = torch.empty(n * n * 4, pin_memory=device.type == "cuda")
    time_of = partial(seconds_per_call, device=device, at_least=0.2)
    return {
        "matmul": 2 * n**3 / time_of(lambda: a @ b),
        "memory": 2 * x.nbytes / time_of(lambda: x.mul_(1.0)),
        "to the CPU": x.nbytes / time_of(lambda: host.copy_(x, non_blocking=True)),
        "from the CPU": x.nbytes / time_of(lambda: x.copy_(host, non_blocking=True)),
    }


def forward_seconds(model: nn.Module, tokens: Tensor) -> float:
    """The blocks' forward, which a checkpoint of blocks repeats."""
    with torch.no_grad(), torch.autocast(tokens.device.type, torch.bfloat16):
        return min(seconds(lambda: model.model(input_ids=tokens)) for _ in range(4))


# --8<-- [start:seconds]
def seconds_paid(
    s: Shape, tokens: int, length: int, change: Change, rate: Mapping[str, float], forward: float
) -> float:
    """By hand: what a step takes more, if nothing overlaps but what comes from the CPU with what goes there."""
    flops = tokens * s.layers * (2 * s.block + 2 * length * s.width)  # of a forward; attention: half of the scores
    paid = {"": 0.0, "blocks": forward, "cheap": forward - flops / rate["matmul"]}[change.repeat]
    paid += (STATES[change.states] - STATES["fp32"]) * 2 * s.parameters / rate["memory"]  # states read and written
    if change.states == "CPU":
        paid += 8 * s.parameters / min(rate["to the CPU"], rate["from the CPU"])
    if change.offload:
        paid += s.layers * moved_by_block(s, tokens, change) * (1 / rate["to the CPU"] + 1 / rate["from the CPU"])
    if change.rows:
        paid += 2 * tokens * s.embedding / rate["matmul"]  # logits again
    if change.fused:
        paid -= (36 - 6) * tokens * s.words / rate["memory"]  # bytes of a logit, read and written from matmul to matmul
    return paid


def moved_by_block(s: Shape, tokens: int, change: Change) -> float:
    """save_on_cpu copies each tensor as often as an operation saves it, and weights, too."""
    if change.repeat == "blocks":
        return 4.0 * tokens * s.width
    twice = 4 * s.width * 2 + 2 * s.width  # both norms' inputs, attention's result
    return tokens * float(kept_by_token(s, change) + twice) + 2.0 * s.block


# --8<-- [end:seconds]


# --8<-- [start:counted]
def counted(model: nn.Module, forward: Callable[[], Tensor]) -> dict[str, int]:
    """Bytes that autograd keeps for backward, each storage once: copies of weights, the loss, and activations."""
    own = {p.untyped_storage()._cdata for p in [*model.parameters(), *model.buffers()]}
    # a matmul keeps a weight transposed: by that, too, for 8192 rows of activations can have a weight's shape
    weights = {(p.t().shape, p.t().stride()) for p in model.parameters() if p.dim() == 2}
    seen: dict[int, torch.UntypedStorage] = {}
    found = dict.fromkeys(("copies", "loss", "activations"), 0)

    def pack(t: Tensor) -> Tensor:
        storage = t.untyped_storage()
        if storage._cdata not in own and storage._cdata not in seen:
            seen[storage._cdata] = storage  # held, so that no address is used twice
            copy = t.dtype == torch.bfloat16 and (t.shape, t.stride()) in weights
            part = "copies" if copy else "loss" if t.shape[-1:] == (model.config.vocab_size,) else "activations"
            found[part] += storage.nbytes()
        return t.detach()  # t can be its operation's own result: the graph would hold t, t the graph, and neither ends

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        forward()
    return found


# --8<-- [end:counted]


# ---- sections ------------------------------------------------------------------------------------------------------

EACH: dict[str, Change] = {
    "as it comes": Change(),
    "blocks checkpointed": Change(repeat="blocks"),
    "selective checkpoints": Change(repeat="cheap"),
    "blocks compiled": Change(budget=1.0),
    "compiled, budget 0.9": Change(budget=0.9),
    "loss in chunks": Change(rows=1024),
    "loss fused": Change(fused=True),
    "bf16 states": Change(states="bf16"),
    "8-bit states": Change(states="8 bit"),
    "states on the CPU": Change(states="CPU"),
    "activations on the CPU": Change(offload=True),
    "gradients released": Change(release=True),
    "checkpoints, chunks": (lean := Change(repeat="blocks", rows=1024)),
    "and no autocast cache": (lean := replace(lean, cache=False)),
    "and gradients released": (lean := replace(lean, release=True)),
    "and 8-bit states": (lean := replace(lean, states="8 bit")),
    "and inputs on the CPU": replace(lean, offload=True),
}


BATCHES = {  # rows of tokens, and what is done: a 3B that nearly fits, and an 8B whose state alone is too large
    "3B": [
        (3, "as it comes"),
        (4, "as it comes"),
        (4, "blocks compiled"),
        (4, "bf16 states"),
        (4, "selective checkpoints"),
        (4, "blocks checkpointed"),
        (4, "and gradients released"),
    ],
    "8B": [(4, "and 8-bit states")],
}


def section(name: str) -> None:
    print(f"==== {name}", flush=True)
    progress(name)


def progress(name: str) -> None:
    print(f"{time.perf_counter() - BEGAN:6.1f} s  {name}", file=sys.stderr, flush=True)


def size(nbytes: float) -> str:
    return f"{nbytes / GIB:.2f} GiB" if nbytes > 2**27 else f"{nbytes / 2**20:.2f} MiB"


def error(by_hand: float, real: float) -> str:
    return f"{100 * (by_hand / real - 1):+.1f} %" if real else "0.0 %"


def line(name: str, *cells: str) -> None:
    print(f"{name:34}" + "".join(f" {cell:>10}" for cell in cells), flush=True)


def on_gpu_only(change: Change) -> bool:
    return change.budget is not None or change.offload or change.fused or change.states in ("8 bit", "CPU")


def can_8_bit() -> bool:
    """Its optimizer is compiled, which a CPU run leaves out."""
    return torch.cuda.is_available() and find_spec("torchao") is not None


def available(change: Change) -> Change:
    return replace(change, states="bf16") if change.states == "8 bit" and not can_8_bit() else change


def parts(model: nn.Module, s: Shape, tokens: Tensor) -> None:
    """Each part of a plain step, by hand and counted; and the peak."""
    plain, count = Change(), tokens.numel()
    by_hand = moments(s, count, plain)
    loss_of = changed(model, plain)
    found = counted(model, lambda: loss_of(tokens))
    optimizer = optimizer_of(model.parameters(), "fp32")
    loss_of(tokens).backward()
    found["parameters"] = sum(p.nbytes for p in model.parameters())
    found["gradients"] = sum(p.grad.nbytes for p in model.parameters() if p.grad is not None)
    optimizer.step()
    states = (t for state in optimizer.state.values() for t in state.values())
    found["state"] = sum(t.nbytes for t in states)
    optimizer.zero_grad()
    del optimizer
    emptied()
    kept = by_hand["loss, backward"] | {"loss": 4.0 * count * s.words}
    kept["gradients"] = by_hand["optimizer"]["gradients"]
    line("", "by hand", "counted", "error")
    for name in ("parameters", "gradients", "state", "copies", "activations", "loss"):
        line(name, size(kept[name]), size(found[name]), error(kept[name], found[name]))
    moment, peak = predicted(s, count, plain)
    ran = tried(model, tokens, plain)
    if isinstance(ran, str):
        line("peak of a step", size(peak), ran)
        return
    line("peak of a step", size(peak), size(ran.peak), error(peak, ran.peak))
    print(f"peak by hand in: {moment}")


def each(model: nn.Module, s: Shape, tokens: Tensor, rate: Mapping[str, float], names: Sequence[str]) -> None:
    """Every change alone, and some together: saved and paid, by hand and measured; then the order to try them in."""
    count, forward = tokens.numel(), forward_seconds(model, tokens)
    plain = tried(model, tokens, Change())
    if isinstance(plain, str):
        print(f"as it comes: {plain}")
        return
    line("", "peak", "by hand", "error", "saved", "step", "paid", "by hand")
    order = []
    for name in names:
        change = available(EACH[name])
        progress(name)
        ran = plain if name == "as it comes" else tried(model, tokens, change)
        peak = predicted(s, count, change)[1]
        if isinstance(ran, str):
            print(f"{name:34} {ran}", flush=True)
            continue
        saved, paid = plain.peak - ran.peak, ran.seconds - plain.seconds
        guess = f"{seconds_paid(s, count, tokens.shape[1], change, rate, forward) * 1e3:+.0f} ms"
        guess = guess if change.budget is None else "not known"
        times = f"{ran.seconds * 1e3:.0f} ms", f"{paid * 1e3:+.0f} ms", guess
        line(name, size(ran.peak), size(peak), error(peak, ran.peak), size(saved), *times)
        order.append((name, saved, paid / plain.seconds))
    section("order")
    ranked(order)


def ranked(order: Iterable[tuple[str, float, float]]) -> None:
    """By GiB for a percent of time; first those that cost none."""
    listed = [each for each in order if each[1] > 0.005 * GIB or (not torch.cuda.is_available() and each[1] > 0)]
    line("", "saved", "time paid", "per percent")
    for name, saved, share in sorted(listed, key=lambda found: (found[2] > 0.01, -found[1] / max(found[2], 0.01))):
        line(name, size(saved), f"{100 * share:+.1f} %", "free" if share <= 0.01 else size(saved / share / 100))


def largest(s: Shape, room: float, change: Change, length: int) -> int:
    """The most rows of `length` tokens whose step fits, by hand."""
    rows = 0
    while rows < 1024 and predicted(s, (rows + 1) * length, change)[1] <= room:
        rows += 1
    return rows


def large(
    device: torch.device, models: Mapping[str, Sizes], length: int, batches: Mapping[str, Sequence[tuple[int, str]]]
) -> None:
    """What fits: by hand the most rows, then the steps themselves."""
    gpu = device.type == "cuda"
    room = torch.cuda.get_device_properties(device).total_memory - 1.0 * GIB if gpu else 2.0**26
    together = available(EACH["and 8-bit states"])
    print(f"room: {size(room)}; rows of {length} tokens that fit by hand: as it comes, and together")
    for name, sizes in models.items():
        line(name, *(f"{largest(shape_of(sizes), room, change, length)}" for change in (Change(), together)))
    line("", "by hand", "peak", "error", "step", "tokens/s")
    for name, runs in batches.items():
        s = shape_of(models[name])
        model = ran_or_why(partial(make_model, models[name], device, torch.float32))
        if isinstance(model, str):
            line(name, model)
            continue
        for rows, way in runs:
            change = available(EACH[way])
            tokens = torch.randint(s.words, (rows, length), device=device)
            title = f"{name}, {rows} rows: {way}"
            progress(title)
            peak, ran = predicted(s, tokens.numel(), change)[1], tried(model, tokens, change)
            if isinstance(ran, str):
                line(title, size(peak), ran)
                continue
            speed = f"{tokens.numel() / ran.seconds:.0f}"
            line(title, size(peak), size(ran.peak), error(peak, ran.peak), f"{ran.seconds * 1e3:.0f} ms", speed)
        del model
        emptied()


# --8<-- [start:packing]
def padded(documents: Sequence[Tensor]) -> dict[str, Tensor]:
    """A row for each document, right padding: no token sees what is after it, so no mask is needed."""
    pad = partial(nn.utils.rnn.pad_sequence, batch_first=True)
    return {"tokens": pad(documents), "labels": pad(documents, padding_value=-100)}


def packed(documents: Sequence[Tensor], length: int) -> dict[str, Tensor]:
    """Documents in rows of at most `length` tokens, the longest first, each in the first row that has room for it."""
    if (longest := max(map(len, documents))) > length:
        raise ValueError(f"length: expected at least {longest}, the longest document, got {length}")
    rows: list[list[Tensor]] = []
    for document in sorted(documents, key=len, reverse=True):
        row = next((row for row in rows if sum(map(len, row)) + len(document) <= length), None)
        if row is None:
            rows.append(row := [])
        row.append(document)
    places = [torch.cat([torch.arange(len(each), device=each.device) for each in row]) for row in rows]
    labels = [torch.cat([F.pad(each[1:], (1, 0), value=-100) for each in row]) for row in rows]
    pad = partial(nn.utils.rnn.pad_sequence, batch_first=True)
    # positions start again at 0 in each document: by them the library knows where one ends
    return {
        "tokens": pad([torch.cat(row) for row in rows]),
        "labels": pad(labels, padding_value=-100),
        "position_ids": pad(places),
    }


# --8<-- [end:packing]


def or_why(call: Callable[[], None]) -> None:
    """A section by itself: where it fails, it says why."""
    why = ran_or_why(call)
    if why is not None:
        print(why)


def packing(model: nn.Module, words: int, length: int, count: int, device: torch.device) -> None:
    """Real tokens a second of the same documents, forward and backward, four rows in a step."""
    lengths = (torch.rand(count, generator=torch.Generator().manual_seed(0)) ** 2 * (length - 8) + 8).int().tolist()
    documents = [torch.randint(words, (each,), device=device) for each in lengths]
    loss_of = changed(model, Change())
    together = packed(documents, length)
    ways = {
        "padded": [padded(documents[at : at + 4]) for at in range(0, count, 4)],
        "sorted, then padded": [padded(sorted(documents, key=len)[at : at + 4]) for at in range(0, count, 4)],
        "packed": [
            {name: t[at : at + 4] for name, t in together.items()} for at in range(0, len(together["tokens"]), 4)
        ],
    }
    print(f"{count} documents of {min(lengths)} to {max(lengths)} tokens, {sum(lengths)} in all")
    line("", "steps", "real tokens", "time", "tokens/s")
    for name, batches in ways.items():

        def run(batches: list = batches) -> None:
            for batch in batches:
                loss_of(**batch).backward()
                model.zero_grad()

        run()
        taken, given = seconds(run), sum(batch["tokens"].numel() for batch in batches)
        share = f"{100 * sum(lengths) / given:.0f} %"
        line(name, f"{len(batches)}", share, f"{taken * 1e3:.0f} ms", f"{sum(lengths) / taken:.0f}")


def main() -> None:
    """On a GPU of 80 GB about three minutes; on a CPU what needs no compiler, of a tiny model, in seconds."""
    torch.manual_seed(0)
    gpu = torch.cuda.is_available()
    device = torch.device("cuda" if gpu else "cpu")
    if find_spec("torchao") is None:
        print(NO_TORCHAO, file=sys.stderr)
    models = {"1B": LLAMA_1B, "3B": LLAMA_3B, "8B": LLAMA_8B} if gpu else {"tiny": SMALL}
    length, first = (2048, "1B") if gpu else (48, "tiny")
    section("rates")
    rate = rates(device)
    for name, found in rate.items():
        line(name, f"{found / 1e12:.1f} TFLOP/s" if name == "matmul" else f"{found / 1e9:.1f} GB/s")
    s = shape_of(models[first])
    tokens = torch.randint(s.words, (4, length), device=device)
    model = make_model(models[first], device, torch.float32)
    section(f"parts {first}")
    or_why(partial(parts, model, s, tokens))
    section("each")
    each(model, s, tokens, rate, [name for name, change in EACH.items() if gpu or not on_gpu_only(change)])
    section("packing")
    or_why(partial(packing, model, s.words, length, 32 if gpu else 8, device))
    del model
    emptied()
    if gpu:
        section("parts 3B")
        or_why(lambda: parts(make_model(LLAMA_3B, device, torch.float32), shape_of(LLAMA_3B), tokens[:2]))
    section("large")
    large(device, models, length, BATCHES if gpu else {"tiny": [(2, "as it comes"), (2, "and 8-bit states")]})
    progress("done")


if __name__ == "__main__":
    main()
