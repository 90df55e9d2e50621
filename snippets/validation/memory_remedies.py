"""A training step that wastes memory, what each remedy gives back, and what keeps memory alive: no GPU is needed.

Run `python -m snippets.validation.memory_remedies`.
"""

import copy
import math
from collections.abc import Callable, Generator, Iterable, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode
from torch.utils.checkpoint import checkpoint

from snippets.validation.memory import MB, Ledger, Peak, graphs_alive, peak_of, record, report, saved, table


# --8<-- [start:attention]
def explicit(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal attention as the formula has it: q, k and v are (rows, heads, length, width)."""
    length = q.shape[-2]
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    later = torch.ones(length, length, dtype=torch.bool, device=q.device).triu(1)
    wide = torch.promote_types(scores.dtype, torch.float32)  # as autocast has it on a GPU, and on a CPU does not
    return scores.masked_fill(later, -math.inf).softmax(-1, dtype=wide).to(v.dtype) @ v


def sdpa(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


# --8<-- [end:attention]


# --8<-- [start:loss]
def whole(x: Tensor, head: Tensor, targets: Tensor) -> Tensor:
    """All logits at once: x (tokens, width), head (vocabulary, width)."""
    return F.cross_entropy(F.linear(x, head), targets)


def in_parts(x: Tensor, head: Tensor, targets: Tensor, parts: int = 8) -> Tensor:
    """The logits of a part of the tokens at a time, made again in backward."""

    def part(x: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(F.linear(x, head), targets, reduction="sum")

    pieces = zip(x.chunk(parts), targets.chunk(parts), strict=True)
    losses = [checkpoint(part, *piece, use_reentrant=False) for piece in pieces]
    return torch.stack(losses).sum() / len(targets)


# --8<-- [end:loss]


class Attention(nn.Module):
    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads, self.how = heads, explicit
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        rows, length, width = x.shape
        q, k, v = self.qkv(x).view(rows, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        return self.out(self.how(q, k, v).transpose(1, 2).reshape(rows, length, width))


class MLP(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.in_place = False
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.relu(self.up(x), inplace=self.in_place))


class Block(nn.Module):
    def __init__(self, width: int, heads: int):
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(width), Attention(width, heads)
        self.norm_mlp, self.mlp = nn.LayerNorm(width), MLP(width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm(x))
        return x + self.mlp(self.norm_mlp(x))


# --8<-- [start:model]
class Model(nn.Module):
    """Next-token loss of a small language model; how it saves memory are its attributes."""

    def __init__(self, layers: int, width: int, heads: int, vocabulary: int):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.loss: Callable[..., Tensor] = whole
        self.checkpointed = False

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.checkpointed else block(x)
        return self.loss(self.norm(x).flatten(0, 1), self.head.weight, targets.flatten())


def with_remedies(
    model: Model,
    attention: Callable[..., Tensor] = explicit,
    loss: Callable[..., Tensor] = whole,
    checkpointed: bool = False,
    in_place: bool = False,
) -> Model:
    """Another model on the same parameters."""
    parameters = {id(p): p for p in model.parameters()}
    other = copy.deepcopy(model, memo=parameters)  # parameters are in the memo, and so are not copied
    other.loss, other.checkpointed = loss, checkpointed
    for block in other.blocks:
        block.attention.how, block.mlp.in_place = attention, in_place
    return other


# --8<-- [end:model]


# --8<-- [start:step]
def loss_of(model: nn.Module, tokens: Tensor, targets: Tensor) -> Tensor:
    with torch.autocast(tokens.device.type, torch.bfloat16):
        return model(tokens, targets)


def loss_in_fp32(model: nn.Module, tokens: Tensor, targets: Tensor) -> Tensor:
    return model(tokens, targets)


def train_step(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    tokens: Tensor,
    targets: Tensor,
    loss_of: Callable[..., Tensor] = loss_of,
) -> Tensor:
    loss = loss_of(model, tokens, targets)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach()


# --8<-- [end:step]


# --8<-- [start:early]
class Early:
    """A fused AdamW for each parameter, which steps as soon as the gradient is whole, and drops the gradient."""

    def __init__(self, model: nn.Module, **options: Any):
        self.of = {p: adam([p], **options) for p in model.parameters()}
        for p in model.parameters():
            p.register_post_accumulate_grad_hook(self.update)

    def update(self, p: Tensor) -> None:
        self.of[p].step()
        p.grad = None

    @property
    def state(self) -> dict:
        return {p: optimizer.state[p] for p, optimizer in self.of.items()}

    def step(self) -> None:
        """All is done."""

    def zero_grad(self) -> None:
        """All is done."""


# --8<-- [end:early]


# --8<-- [start:kept]
Batch = tuple[Tensor, Tensor]


def summed(model: nn.Module, batch: Batch, backward: bool, detach: bool) -> Generator[None, None, None]:
    """Sums the losses of a training, or of a validation that forgot `torch.no_grad()`."""
    losses = torch.zeros(())
    while True:
        loss = loss_of(model, *batch)
        if backward:
            loss.backward()
            model.zero_grad()
        losses = losses + (loss.detach() if detach else loss)
        del loss
        yield


def stored(model: nn.Module, batch: Batch, detach: bool) -> Generator[None, None, None]:
    """Keeps the hidden states of each step, for a metric at the end of the epoch."""
    outputs = []
    while True:
        x = model.embedding(batch[0])
        for block in model.blocks:
            x = block(x)
        outputs.append(x.detach() if detach else x)
        del x
        yield


def growth(steps: Generator[None, None, None], number: int = 4) -> list[float]:
    """MB that are alive after each step, beyond those that were after the first."""
    with Ledger() as ledger:
        alive = [(next(steps), ledger.alive)[1] for _ in range(number)]
    return [(now - alive[0]) / MB for now in alive]


# --8<-- [end:kept]


# --8<-- [start:last]
def repeated(model: nn.Module, batch: Batch, training: bool, drop: bool) -> None:
    """Two steps of a script: the first one's `logits` exist until the name is bound anew, unless they are dropped."""
    for _ in range(2):
        with torch.set_grad_enabled(training):
            logits = model.head(model.embedding(batch[0]))
            loss = F.cross_entropy(logits.flatten(0, 1), batch[1].flatten())
        if training:
            loss.backward()
            model.zero_grad()
        if drop:
            del logits, loss


# --8<-- [end:last]


# --8<-- [start:predict]
SIZES = {"layers": 2, "width": 2048, "heads": 16, "vocabulary": 32768}  # of the model that is measured on an H200
ROWS, LENGTH = 4, 2048
REMEDIES: dict[str, dict] = {
    "nothing": {},
    "SDPA": {"attention": sdpa},
    "loss in parts": {"loss": in_parts},
    "blocks checkpointed": {"checkpointed": True},
    "ReLU in place": {"in_place": True},
    "SDPA, loss in parts": {"attention": sdpa, "loss": in_parts},
    "the two, checkpointed": {"attention": sdpa, "loss": in_parts, "checkpointed": True},
}


def stand_in(**remedies: Any) -> tuple[Model, Batch]:
    """The large model and its batch. Under `FakeTensorMode` they have shapes and no data."""
    tokens = torch.zeros(ROWS, LENGTH, dtype=torch.long)
    return with_remedies(Model(**SIZES), **remedies), (tokens, tokens)


def adam(parameters: Iterable[nn.Parameter], **options: Any) -> torch.optim.Optimizer:
    """AdamW in the middle of a training: with its state."""
    optimizer = torch.optim.AdamW(parameters, **options)
    for p in optimizer.param_groups[0]["params"]:
        p.grad = torch.zeros_like(p)
    optimizer.step()
    optimizer.zero_grad()
    return optimizer


def predicted(remedies: dict, early: bool = False, loss_of: Callable[..., Tensor] = loss_of, **options: bool) -> Peak:
    """The peak of a step of the large model. Nothing is computed and nothing allocated."""
    with FakeTensorMode():
        model, batch = stand_in(**remedies)
        options = options or {"foreach": True}  # the default on a GPU
        optimizers = Early(model, **options) if early else adam(model.parameters(), **options)
        return peak_of(record(lambda: train_step(model, optimizers, *batch, loss_of), model, optimizers))


# --8<-- [end:predict]


def line(name: str, peak: Peak) -> str:
    beside = sum(size for who, size in peak.held.items() if who not in ("parameters", "optimizer state"))
    return f"{name:<34}{peak.nbytes / MB:>9,.0f}{beside / MB:>9,.0f}   {peak.by}"


def main() -> None:
    """Who holds memory, what is saved, and what each remedy changes; all but the first on stand-ins without data."""
    print("==== graphs alive")
    tokens = torch.zeros(2, 64, dtype=torch.long)
    validation = summed(Model(layers=2, width=64, heads=2, vocabulary=512), (tokens, tokens), False, False)
    for _ in range(3):
        next(validation)
    for size, tensor in graphs_alive():
        print(f"{size / MB:.1f} MB held by a tensor of shape {tuple(tensor.shape)}, {tensor.grad_fn.name()}")
    validation.close()

    with FakeTensorMode():
        model, batch = stand_in()
        optimizer = adam(model.parameters(), foreach=True)
        print("==== peak")
        print(report(record(lambda: train_step(model, optimizer, *batch), model, optimizer)))
        print("==== saved")
        print(table(saved(model, lambda: loss_of(model, *batch)), 12))
        print("==== saved, SDPA")
        other, _ = stand_in(attention=sdpa)
        print(table(saved(other, lambda: loss_of(other, *batch)), 6))

    print("==== remedies")
    print(f"{'MB':<34}{'peak':>9}{'beside':>9}   reached by")
    for name in ("nothing", "SDPA"):
        print(line(f"{name}, fp32", predicted(REMEDIES[name], loss_of=loss_in_fp32)))
    for name, remedies in REMEDIES.items():
        print(line(name, predicted(remedies)))
    two = REMEDIES["SDPA, loss in parts"]
    print(line("the two, fused AdamW", predicted(two, fused=True)))
    both = {**two, "checkpointed": True}
    print(line("the two, checkpointed, fused", predicted(both, fused=True)))
    print(line("the two, checkpointed, early", predicted(both, early=True, fused=True)))

    print("==== in place")
    with FakeTensorMode():
        for in_place in (False, True):
            model, batch = stand_in(in_place=in_place)
            kept = sum(tensor.nbytes for tensor in saved(model, partial(loss_of, model, *batch)))
            print(f"ReLU {'in place' if in_place else 'as usual'}: {kept / MB:,.0f} MB kept for backward")

    with FakeTensorMode():
        model, batch = stand_in()
        print("==== summed")
        print(f"{'MB more after steps 1 to 4':<46}")
        for backward in (True, False):
            for detach in (False, True):
                name = f"{'training' if backward else 'validation'}, {'loss.detach()' if detach else 'loss'} summed"
                print(f"{name:<40}{show(growth(summed(model, batch, backward, detach)))}")
        print("==== stored")
        for detach in (False, True):
            name = "x.detach() stored" if detach else "x stored"
            print(f"{name:<40}{show(growth(stored(model, batch, detach)))}")
        print("==== last step")
        for training in (True, False):
            for drop in (False, True):
                peak = peak_of(record(partial(repeated, model, batch, training, drop), model))
                name = f"{'training' if training else 'inference'}, logits {'dropped' if drop else 'still there'}"
                print(f"{name:<34}peak {peak.nbytes / MB:,.0f} MB")


def show(megabytes: Sequence[float]) -> str:
    return "".join(f"{value:>9,.0f}" for value in megabytes)


if __name__ == "__main__":
    main()
