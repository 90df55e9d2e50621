"""Embeddings at every level, updates with sparse and with dense gradients, and a table that is also the head."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache, partial

import torch
import torch.nn.functional as F
from torch import Tensor

from snippets.patterns import embeddings as page
from snippets.patterns import embeddings_rotary
from tests.benchmarks import levels
from tests.benchmarks.bounds import bound, gpu
from tests.benchmarks.case import Case, Point, Results, Variant, Workload
from tests.benchmarks.compiler import training

OPTIMIZERS = ("sgd", "adam")
LR = 0.5
TABLES = {
    "large": (8192, 128256, 1024),
    "small": (8192, 4096, 1024),
}  # tokens, vocabulary, width: most rows unused, or used
MODEL = {"tokens": 8192, "vocabulary": 32000, "width": 1024}


def points(device: torch.device) -> Iterator[Point]:
    yield from levels.points(device, page.COMPONENTS, {"rotary": "rope", "small rotary": "decode rope"})
    if device.type == "cpu":
        yield update_of("sgd", 512, 32000, 64)
        return
    for name in OPTIMIZERS:
        for table, sizes in TABLES.items():
            yield update_of(name, *sizes, f"{name} {table} table")
    yield Point(MODEL, "bfloat16", "both", ("burst",), part="tied", name="tied model")


def update_of(kind: str, tokens: int, vocabulary: int, width: int, name: str = "") -> Point:
    """Sparse gradients wait for the GPU, to count rows: there is no time of the GPU alone."""
    shape = {"tokens": tokens, "vocabulary": vocabulary, "width": width}
    return Point(shape, "float32", "both", ("calls",), part=kind, name=name)


def prepare(point: Point, device: torch.device) -> Workload:
    if point.part in OPTIMIZERS:
        return of_update(point, device)
    if point.part == "tied":
        return of_model(point, device)
    workload = levels.prepare(point, device, page.COMPONENTS, WRONG)
    sizes = point.shape.values()
    itemsize, both = getattr(torch, point.dtype).itemsize, point.direction == "both"
    if point.part == "rotary":  # cos and sin are small; the backward rotates the gradients back
        batch, tokens, heads, kv_heads, head_dim = sizes
        moved = batch * tokens * (heads + kv_heads) * head_dim * itemsize
        calls = 2 if both else 1
        return replace(
            workload,
            bytes_read=calls * moved,
            bytes_written=calls * moved,
            flops=calls * 3 * moved // itemsize,
            mix="copy",
        )
    batch, tokens, vocabulary, width = sizes
    rows, table = batch * tokens * width * itemsize, vocabulary * width * itemsize  # a row may be read from the cache
    return replace(
        workload,
        bytes_read=rows if both else 0,
        bytes_written=rows + (table if both else 0),  # of a dense gradient, most of which is zero
        flops=batch * tokens * width * (2 if both else 1),
        mix="copy",
    )


# ---- an update ------------------------------------------------------------------------------------------------------


class Update:
    """An embedding in fp32, and its optimizer; a call is a step."""

    def __init__(self, name: str, start: Tensor, ids: Tensor, incoming: Tensor, sparse: bool):
        self.start, self.weight = start, start.clone().requires_grad_()
        kinds: dict[tuple[str, bool], Callable[..., torch.optim.Optimizer]] = {
            ("sgd", False): partial(torch.optim.SGD, fused=True),
            ("sgd", True): torch.optim.SGD,
            ("adam", False): partial(torch.optim.Adam, fused=True),
            ("adam", True): torch.optim.SparseAdam,
        }
        self.optimizer = kinds[name, sparse]([self.weight], lr=LR)
        self.step = partial(page.update, self.weight, self.optimizer, ids, incoming, sparse)

    def __call__(self) -> Tensor:
        self.step()
        return self.weight.detach()

    def restore(self) -> None:
        with torch.no_grad():
            self.weight.copy_(self.start)
        for state in self.optimizer.state.values():
            for name, value in state.items():
                state[name] = value.zero_() if isinstance(value, Tensor) else 0

    def results(self, weight: object) -> Results:
        """How the weight moved; of Adam its averages, since near zero rounding decides about the sign of a move."""
        assert isinstance(weight, Tensor)
        averages = {
            name: t for state in self.optimizer.state.values() for name, t in state.items() if "exp_avg" in name
        }
        return averages or {"weight moved": weight - self.start}


def of_update(point: Point, device: torch.device) -> Workload:
    """In fp32 in any case, as parameters are in training."""
    tokens, vocabulary, width = point.shape.values()
    start = torch.randn(vocabulary, width, device=device)
    ids, incoming = page.drawn((tokens,), vocabulary, device), torch.randn(tokens, width, device=device).to(start)

    def made(sparse: bool) -> Update:
        update = Update(point.part, start, ids, incoming, sparse)
        update()  # makes the optimizer's state
        update.restore()
        return update

    def variant(sparse: bool) -> Variant:
        return training.variant(partial(made, sparse), start.dtype)

    def stepped(start: Tensor, ids: Tensor, incoming: Tensor) -> Results:
        update = Update(point.part, start, ids, incoming, sparse=False)
        return update.results(update())

    @cache
    def reference() -> Results:
        return stepped(start.double(), ids, incoming.double())

    def once(baseline: Results) -> Results:
        """Of a token that occurs more than once one place counts."""
        places = torch.zeros(vocabulary, dtype=torch.long, device=device)
        places[ids] = torch.arange(tokens, device=device)
        return stepped(start, ids, incoming * (places[ids] == torch.arange(tokens, device=device))[:, None])

    rows = tokens * width * start.itemsize
    return Workload(
        variants={"dense": variant(False), "sparse": variant(True)},
        baseline="dense",
        reference=reference,
        largest_summands={"weight moved": LR * summed(ids, incoming, vocabulary)},
        bytes_read=rows,  # the fewest: of the table nothing but the rows that occur
        bytes_written=rows,
        flops=tokens * width,
        wrong={
            "5% too large": lambda baseline: {each: 1.05 * t for each, t in baseline.items()},
            "of a token's places one counts": once,
            "ids one place late": lambda baseline: stepped(start, ids.roll(1), incoming),
        },
    )


def summed(ids: Tensor, incoming: Tensor, vocabulary: int) -> float:
    """The largest sum of absolute gradients that meet in one element of the table."""
    table = torch.zeros(vocabulary, incoming.shape[-1], device=incoming.device)
    return table.index_add_(0, ids, incoming.abs()).max().item()


# ---- a table that is the head, too ----------------------------------------------------------------------------------


def of_model(point: Point, device: torch.device) -> Workload:
    """Loss and gradient of the table. Of two tables the gradients are added up to compare them, outside of the time."""
    tokens, vocabulary, width = point.shape.values()
    dtype = getattr(torch, point.dtype)
    weight = (0.1 * torch.randn(vocabulary, width, device=device)).to(dtype)
    ids, target = (torch.randint(vocabulary, (tokens,), device=device) for _ in range(2))

    def call(table: Tensor, head: Tensor | None = None, scale: float = 1.0) -> tuple[Tensor, ...]:
        leaves = [t.detach().requires_grad_() for t in (table, head) if t is not None]
        loss = scale * (page.tied if head is None else page.untied)(ids, target, *leaves)
        return loss.detach(), *torch.autograd.grad(loss, leaves)

    def results(returned: object) -> Results:
        assert isinstance(returned, tuple)
        loss, gradient, *others = returned
        return {"loss": loss, "weight.grad": gradient + others[0] if others else gradient}

    @cache
    def reference() -> Results:
        return results(call(weight.double()))

    head = weight.clone()
    return Workload(
        variants={
            "tied": Variant(lambda: partial(call, weight), results),
            "untied": Variant(lambda: partial(call, weight, head), results),
        },
        baseline="tied",
        reference=reference,
        bytes_read=0,  # no bound is drawn: matrix products take most of the time
        bytes_written=0,
        flops=6 * tokens * vocabulary * width,
        wrong={
            "5% too large": lambda baseline: results(call(weight, scale=1.05)),
            "the gradient of the head alone": lambda baseline: {**baseline, "weight.grad": call(weight, head)[2]},
            "the gradient of the tokens alone": lambda baseline: {**baseline, "weight.grad": call(weight, head)[1]},
        },
    )


WRONG: levels.Wrong = {
    "embedding": {
        "last tile not written": lambda ids, weight: F.pad(page.embedding_native(ids, weight)[..., :-32], (0, 32)),
        "ids one place late": lambda ids, weight: page.embedding_native(ids.roll(1, -1), weight),
        "the next row": lambda ids, weight: page.embedding_native((ids + 1) % weight.shape[0], weight),
    },
    "positional": {
        "no positions": lambda ids, weight, positions: (
            page.embedding_native(ids, weight) + 0 * positions[: ids.shape[1]]
        ),
        "positions one place late": lambda ids, weight, positions: page.positional_native(
            ids, weight, positions.roll(1, 0)
        ),
        "ids one place late": lambda ids, weight, positions: page.positional_native(ids.roll(1, -1), weight, positions),
    },
    "rotary": {
        "not rotated": lambda q, k, cos, sin: (1 * q, 1 * k),
        "keys not rotated": lambda q, k, cos, sin: (embeddings_rotary.rotary_native(q, k, cos, sin)[0], 1 * k),
        "rotated the other way": lambda q, k, cos, sin: embeddings_rotary.rotary_native(q, k, cos, -sin),
    },
}


TIMES = {"wide": gpu("level-1", "large embedding"), "narrow": gpu("level-1", "embedding")}
more_zeros = bound("us", "wide - narrow", TIMES)  # What forward and backward take more with the large table.
# What the zeros of the smaller table's gradient take.
zeros = bound("us", "(wide - narrow) * rows / (more - rows)", TIMES, rows=32000, more=128256)
fp32_table = bound("GB", "4 * rows * width", rows=128256, width=4096)  # The size of the large table in fp32.

LABELS = {
    "dense": {"label": "dense gradient", "short": "dense", "role": "eager"},
    "sparse": {"label": "sparse gradient", "short": "sparse", "role": "rewrite"},
    "tied": {"label": "one table", "short": "tied", "role": "eager"},
    "untied": {"label": "two tables", "short": "untied", "role": "rewrite"},
}
CASE = Case(
    question="What do embeddings cost, forward, backward and in the update, and which level do they need?",
    check_at={
        "forward both": [
            {"part": "embedding", "batch": 2, "tokens": 64, "vocabulary": 128, "width": 64},
            {"part": "positional", "batch": 2, "tokens": 64, "vocabulary": 128, "width": 64},
            {"part": "rotary", "batch": 2, "tokens": 16, "heads": 4, "kv_heads": 2, "head_dim": 64},
        ],
        "both": [
            {"part": "sgd", "tokens": 64, "vocabulary": 128, "width": 64},
            {"part": "adam", "tokens": 64, "vocabulary": 128, "width": 64},
            {"part": "tied", "tokens": 64, "vocabulary": 128, "width": 64},
        ],
    },
)
