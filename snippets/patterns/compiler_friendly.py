"""Ten rewrites that let a module compile whole. Run `python -m snippets.patterns.compiler_friendly`."""

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

CALLS = 12  # more than the eight graphs that one function may have


# ---- shapes ---------------------------------------------------------------------------------------------------------


# --8<-- [start:cache]
class CacheBefore(nn.Module):
    """Attention to all tokens so far, which are kept in tensors that grow."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.q, self.kv = nn.Linear(width, width), nn.Linear(width, 2 * width)
        self.forget()

    def forget(self) -> None:
        self.seen, self.keys, self.values = 0, None, None

    def forward(self, x: Tensor) -> Tensor:  # one token of each row: (batch, 1, width)
        keys, values = self.kv(x).chunk(2, -1)
        if self.seen:
            keys, values = torch.cat((self.keys, keys), 1), torch.cat((self.values, values), 1)
        self.keys, self.values, self.seen = keys, values, self.seen + 1
        return F.scaled_dot_product_attention(self.q(x), keys, values)


class CacheAfter(nn.Module):
    """The same with room for the longest row; the place of the token is a tensor."""

    def __init__(self, batch: int, longest: int, width: int) -> None:
        super().__init__()
        self.q, self.kv = nn.Linear(width, width), nn.Linear(width, 2 * width)
        self.register_buffer("keys", torch.zeros(batch, longest, width), persistent=False)
        self.register_buffer("values", torch.zeros(batch, longest, width), persistent=False)

    def forward(self, x: Tensor, place: Tensor) -> Tensor:
        keys, values = self.kv(x).chunk(2, -1)
        self.keys.index_copy_(1, place, keys)
        self.values.index_copy_(1, place, values)
        seen = torch.arange(self.keys.shape[1], device=x.device) <= place
        return F.scaled_dot_product_attention(self.q(x), self.keys, self.values, attn_mask=seen[None])


# --8<-- [end:cache]


# --8<-- [start:uncounted]
class CacheUncounted(CacheBefore):
    """The cache that grows, without the integer."""

    def forward(self, x: Tensor) -> Tensor:
        keys, values = self.kv(x).chunk(2, -1)
        if self.keys is not None:
            keys, values = torch.cat((self.keys, keys), 1), torch.cat((self.values, values), 1)
        self.keys, self.values = keys, values
        return F.scaled_dot_product_attention(self.q(x), keys, values)


# --8<-- [end:uncounted]


# --8<-- [start:select]
def select_before(boxes: Tensor, scores: Tensor) -> Tensor:
    """The boxes whose score is above a half, best first: as many as there are."""
    kept = scores > 0.5
    return boxes[kept][scores[kept].argsort(descending=True)]


def select_after(boxes: Tensor, scores: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """The `most` best boxes, and which of them are above a half."""
    best, index = scores.topk(most)
    return boxes[index], best > 0.5


# --8<-- [end:select]


# --8<-- [start:experts]
class ExpertsBefore(nn.Module):
    """Each token goes to one expert: the experts take their tokens in turn."""

    def __init__(self, experts: int, width: int) -> None:
        super().__init__()
        self.router = nn.Linear(width, experts)
        self.weight = nn.Parameter(torch.randn(experts, width, width) * width**-0.5)

    def forward(self, x: Tensor) -> Tensor:  # (tokens, width)
        chosen, output = self.router(x).argmax(-1), torch.zeros_like(x)
        for expert, weight in enumerate(self.weight):
            mine = chosen == expert
            output[mine] = x[mine] @ weight
        return output


class ExpertsAfter(ExpertsBefore):
    """The tokens in the order of their experts: one product of groups, whose ends are a tensor."""

    def forward(self, x: Tensor) -> Tensor:
        chosen, order = self.router(x).argmax(-1).sort(stable=True)
        ends = torch.searchsorted(chosen, torch.arange(len(self.weight), device=x.device), right=True)
        grouped = F.grouped_mm(x[order], self.weight, offs=ends.int())
        return torch.empty_like(x).index_copy(0, order, grouped)


# --8<-- [end:experts]


# ---- control flow ---------------------------------------------------------------------------------------------------


# --8<-- [start:until]
def until_before(scores: Tensor) -> Tensor:
    """Rows and columns are made to sum to one in turn, until the rows are close."""
    p = scores.exp()
    while (p.sum(-1) - 1).abs().max() > 1e-2:
        p = p / p.sum(-1, keepdim=True)
        p = p / p.sum(-2, keepdim=True)
    return p


def until_after(scores: Tensor, most: int = 16) -> Tensor:
    """The same in a fixed number of steps: what is close enough stays as it is."""
    p = scores.exp()
    for _ in range(most):
        far = (p.sum(-1) - 1).abs().max() > 1e-2
        rows = p / p.sum(-1, keepdim=True)
        p = torch.where(far, rows / rows.sum(-2, keepdim=True), p)
    return p


# --8<-- [end:until]


# --8<-- [start:loop]
class Loop(nn.Module):
    """A recurrence over time; its results are kept in a list."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.into, self.on = nn.Linear(width, width), nn.Linear(width, width, bias=False)

    def step(self, state: Tensor, entering: Tensor) -> Tensor:
        return torch.tanh(entering + self.on(state))

    def forward(self, x: Tensor) -> Tensor:  # (batch, time, width)
        state, states = torch.zeros_like(x[:, 0]), []
        for entering in self.into(x).unbind(1):
            state = self.step(state, entering)
            states.append(state)
        return torch.stack(states, 1)


def loop_after(module: Loop, compile: Callable) -> Callable:
    """The same, of which one step is compiled, and the loop is not."""
    step = compile(module.step)

    def forward(x: Tensor) -> Tensor:
        state, states = torch.zeros_like(x[:, 0]), torch.empty_like(x)
        every = (
            module.into(x).transpose(0, 1).contiguous()
        )  # so that the layout of a step does not depend on the length
        for time, entering in enumerate(every):
            state = states[:, time] = step(state, entering)
        return states

    return forward


# --8<-- [end:loop]


# --8<-- [start:drop]
class DropBefore(nn.Module):
    """Layers, each of which is left out at random: LayerDrop, or stochastic depth."""

    def __init__(self, layers: int, width: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            if random.random() < 0.5:
                continue
            x = x + layer(x).relu()
        return x


class DropAfter(DropBefore):
    """The same; which layers take part is drawn by the caller, and comes as zeros and ones."""

    def forward(self, x: Tensor, kept: Tensor) -> Tensor:
        for layer, gate in zip(self.layers, kept.unbind(), strict=True):
            x = x + gate * layer(x).relu()
        return x


# --8<-- [end:drop]


# ---- state ----------------------------------------------------------------------------------------------------------


# --8<-- [start:state]
class StateBefore(nn.Module):
    """A running mean that follows fast at first."""

    def __init__(self) -> None:
        super().__init__()
        self.forget()

    def forget(self) -> None:
        self.calls, self.mean = 0, None

    def forward(self, x: Tensor) -> Tensor:
        mean, self.calls = x.mean(0), self.calls + 1
        if self.mean is None:
            self.mean = mean
        else:
            self.mean = self.mean + max(0.1, 1 / self.calls) * (mean - self.mean)
        return x - self.mean


class StateAfter(nn.Module):
    """The same in buffers. At the first call the rate is one, so the mean may begin as zero."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("mean", torch.zeros(width))

    def forget(self) -> None:
        self.calls.zero_(), self.mean.zero_()

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.mean += (1 / self.calls).clamp(min=0.1) * (x.mean(0) - self.mean)
        return x - self.mean


# --8<-- [end:state]


# --8<-- [start:counter]
class Counter(nn.Module):
    """A counter that nothing depends on."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return x.sin()


# --8<-- [end:counter]


# --8<-- [start:table]
class TableBefore(nn.Module):
    """Angles of positions, computed as far as they were needed so far."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.register_buffer("rates", 10000 ** -torch.linspace(0, 1, width), persistent=False)
        self.forget()

    def forget(self) -> None:
        self.known, self.cosines = 0, None

    def forward(self, x: Tensor) -> Tensor:  # (batch, tokens, width)
        if x.shape[1] > self.known:
            self.known = x.shape[1]
            self.cosines = torch.outer(torch.arange(self.known, device=x.device), self.rates).cos()
        return x * self.cosines[: x.shape[1]]


class TableAfter(nn.Module):
    """The same, computed once for the longest row when the module is made."""

    def __init__(self, width: int, longest: int) -> None:
        super().__init__()
        rates = 10000 ** -torch.linspace(0, 1, width)
        self.register_buffer("cosines", torch.outer(torch.arange(longest), rates).cos(), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.cosines[: x.shape[1]]


# --8<-- [end:table]


# ---- Python in the hot path -----------------------------------------------------------------------------------------


# --8<-- [start:positions]
def positions_before(x: Tensor, offsets: Tensor, table: Tensor) -> Tensor:
    """Rows packed one behind the other: each token is given its position in its own row."""
    ends = offsets.tolist()
    places = [torch.arange(end - begin, device=x.device) for begin, end in pairwise(ends)]
    return x + table[torch.cat(places)]


def positions_after(x: Tensor, offsets: Tensor, table: Tensor) -> Tensor:
    """The same without a loop: a token's place, less the place where its row begins."""
    place = torch.arange(len(x), device=x.device)
    row = torch.searchsorted(offsets, place, right=True) - 1
    return x + table[place - offsets[row]]


# --8<-- [end:positions]


# --8<-- [start:keys]
class KeysBefore(nn.Module):
    """Adds what a batch brings along: a dictionary, in which some names are missing."""

    def __init__(self, names: Iterable[str], width: int) -> None:
        super().__init__()
        self.maps = nn.ModuleDict({name: nn.Linear(width, width) for name in names})

    def forward(self, x: Tensor, extras: dict[str, Tensor]) -> Tensor:
        for name, extra in extras.items():
            x = x + self.maps[name](extra)
        return x


class KeysAfter(KeysBefore):
    """The same with every name in every batch: what is missing is zero, and is multiplied by zero."""

    def forward(self, x: Tensor, extras: Tensor, present: Tensor) -> Tensor:
        for map_of, extra, here in zip(self.maps.values(), extras.unbind(), present.unbind(), strict=True):
            x = x + here * map_of(extra)
        return x


# --8<-- [end:keys]


# ---- the exercise ---------------------------------------------------------------------------------------------------


# --8<-- [start:exercise]
def exercise(x: Tensor, lengths: Tensor) -> Tensor:
    """The mean of each row over its tokens; what lies behind them is padding."""
    return torch.stack([row[:length].mean(0) for row, length in zip(x, lengths.tolist(), strict=True)])


# --8<-- [end:exercise]


# --8<-- [start:answer]
def answer(x: Tensor, lengths: Tensor) -> Tensor:
    real = torch.arange(x.shape[1], device=x.device) < lengths[:, None]
    return torch.where(real[..., None], x, 0).sum(1) / lengths[:, None]


# --8<-- [end:answer]


# ---- the ten, with inputs -------------------------------------------------------------------------------------------

Inputs = Sequence[tuple]  # the arguments of each call
Side = Callable[[Callable], tuple[Callable, Inputs]]  # given a `compile`: what to call, and with what


@dataclass(frozen=True)
class Rewrite:
    """A pair that computes the same.

    Attributes:
        common: what the second returns, in the form of what the first does.
        forget: puts what the first keeps between calls back to the beginning.
    """

    before: Side
    after: Side
    common: Callable[[Any], Tensor] = lambda output: output
    forget: Callable[[], None] = lambda: None


def side(function: Callable, inputs: Inputs) -> Side:
    return lambda compile: (compile(function), inputs)


def twins(before: nn.Module, after: nn.Module, device: str) -> tuple[Any, Any]:
    """Both with the same weights."""
    after.load_state_dict(before.state_dict(), strict=False)
    return before.to(device), after.to(device)


def of_cache(rows: int, width: int, device: str) -> Rewrite:
    before, after = twins(CacheBefore(width), CacheAfter(rows, CALLS, width), device)
    tokens = torch.randn(CALLS, rows, 1, width, device=device).unbind()
    places = torch.arange(CALLS, device=device).split(1)
    inputs = list(zip(tokens, places, strict=True))
    return Rewrite(side(before, [(x,) for x in tokens]), side(after, inputs), forget=before.forget)


def of_select(rows: int, width: int, device: str) -> Rewrite:
    inputs = [(torch.randn(4 * rows, 4, device=device), torch.rand(4 * rows, device=device)) for _ in range(CALLS)]
    most = [(*each, 3 * rows) for each in inputs]
    return Rewrite(side(select_before, inputs), side(select_after, most), lambda output: output[0][output[1]])


def of_experts(rows: int, width: int, device: str) -> Rewrite:
    before, after = twins(ExpertsBefore(4, width).bfloat16(), ExpertsAfter(4, width).bfloat16(), device)
    inputs = [(torch.randn(4 * rows, width, device=device).bfloat16(),) for _ in range(CALLS)]
    return Rewrite(side(before, inputs), side(after, inputs))


def of_until(rows: int, width: int, device: str) -> Rewrite:
    inputs = [(torch.randn(rows, width, width, device=device),) for _ in range(CALLS)]
    return Rewrite(side(until_before, inputs), side(until_after, inputs))


def of_loop(rows: int, width: int, device: str) -> Rewrite:
    module = Loop(width).to(device)
    inputs = [(torch.randn(rows, length, width, device=device),) for length in range(3, 3 + CALLS)]
    return Rewrite(side(module, inputs), lambda compile: (loop_after(module, compile), inputs))


def of_drop(rows: int, width: int, device: str) -> Rewrite:
    before, after = twins(DropBefore(4, width), DropAfter(4, width), device)
    inputs = [(torch.randn(rows, width, device=device),) for _ in range(CALLS)]
    dice = random.Random(0)
    kept = torch.tensor([[float(dice.random() >= 0.5) for _ in range(4)] for _ in inputs], device=device)
    gated = [(*x, gates) for x, gates in zip(inputs, kept.unbind(), strict=True)]
    return Rewrite(side(before, inputs), side(after, gated), forget=lambda: random.seed(0))


def of_state(rows: int, width: int, device: str) -> Rewrite:
    before, after = StateBefore(), StateAfter(width).to(device)
    inputs = [(torch.randn(rows, width, device=device),) for _ in range(CALLS)]
    return Rewrite(side(before, inputs), side(after, inputs), forget=lambda: (before.forget(), after.forget()))


def of_table(rows: int, width: int, device: str) -> Rewrite:
    before, after = TableBefore(width).to(device), TableAfter(width, 4 * CALLS).to(device)
    inputs = [(torch.randn(rows, length, width, device=device),) for length in range(8, 8 + 2 * CALLS, 2)]
    return Rewrite(side(before, inputs), side(after, inputs), forget=before.forget)


def of_positions(rows: int, width: int, device: str) -> Rewrite:
    tokens, dice = 4 * rows, random.Random(0)
    table = torch.randn(tokens, width, device=device)
    cuts = [sorted(dice.sample(range(1, tokens), documents)) for documents in (2, 3, 4, 5, 6, 7) * 2]
    inputs = [
        (torch.randn(tokens, width, device=device), torch.tensor([0, *cut, tokens], device=device), table)
        for cut in cuts
    ]
    return Rewrite(side(positions_before, inputs), side(positions_after, inputs))


def of_keys(rows: int, width: int, device: str) -> Rewrite:
    names = ("age", "place", "time", "image")
    before, after = twins(KeysBefore(names, width), KeysAfter(names, width), device)
    x, nothing = torch.randn(rows, width, device=device), torch.zeros(rows, width, device=device)
    subsets = list(product((False, True), repeat=4))[1 : CALLS + 1]
    extras = [
        {name: torch.randn(rows, width, device=device) for name, has in zip(names, subset, strict=True) if has}
        for subset in subsets
    ]
    whole = [torch.stack([extra.get(name, nothing) for name in names]) for extra in extras]
    present = torch.tensor(subsets, device=device).float().unbind()
    return Rewrite(
        side(before, [(x, extra) for extra in extras]),
        side(after, [(x, *both) for both in zip(whole, present, strict=True)]),
    )


TEN = {
    "cache": of_cache,
    "select": of_select,
    "experts": of_experts,
    "until": of_until,
    "loop": of_loop,
    "drop": of_drop,
    "state": of_state,
    "table": of_table,
    "positions": of_positions,
    "keys": of_keys,
}


def rewrite(name: str, rows: int = 8, width: int = 16, device: str = "cpu") -> Rewrite:
    """A pair of the ten, the same at each call."""
    torch.manual_seed(0)
    return TEN[name](rows, width, device)


@torch.no_grad()
def outputs(pair: Rewrite, compile: Callable = lambda function: function) -> tuple[list[Tensor], list[Tensor]]:
    """What both sides return, call by call, in a common form."""
    pair.forget()
    before, inputs = pair.before(compile)
    first = [before(*arguments) for arguments in inputs]
    pair.forget()
    after, inputs = pair.after(compile)
    return first, [pair.common(after(*arguments)) for arguments in inputs]


def main() -> None:
    """Show that both sides of each pair compute the same."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    for name in TEN:
        both = zip(*outputs(rewrite(name, device=device)), strict=True)
        worst = max(((one - other).abs().max() / one.abs().max()).item() for one, other in both)
        print(f"{name:<10} largest difference: {'none' if worst == 0 else f'{worst:.0e} of the largest value'}")


if __name__ == "__main__":
    main()
