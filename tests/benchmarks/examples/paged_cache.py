"""Attention in a decoding step, and the whole step, over a contiguous cache and over pages, in bf16 and in fp8."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from snippets.examples.generation_attention import by_flex, by_sdpa
from snippets.examples.generation_sample import sample
from snippets.examples.generation_step import attended
from snippets.examples.generation_weights import quantized, restored
from snippets.examples.paged_cache import FP8, PAGE, PagedDecoder, attend
from tests.benchmarks.bounds import bound, wall
from tests.benchmarks.case import Call, Case, Point, Results, Variant, Workload
from tests.benchmarks.examples.generation import SMALL, Step
from tests.benchmarks.own import own

FEW = {"batch": 2, "context": 70, "length": 128, "heads": 4, "kv_heads": 2, "head_dim": 32}
PARTS = "attention", "mixed", "fp8", "fp8 mixed"


def points(device: torch.device) -> Iterator[Point]:
    """One layer's attention of a 1B model, and a step of the whole model."""
    if device.type == "cpu":
        yield Point(FEW, "float32", modes=("calls",), variants=("eager", "sdpa"), part="attention")
        return
    of_1b = {"heads": 32, "kv_heads": 8, "head_dim": 64}
    for name, part, batch, context, length in (
        ("attention 1", "attention", 1, 512, 2048),
        ("attention 8", "attention", 8, 512, 2048),
        ("attention 64", "attention", 64, 512, 2048),
        ("attention mixed", "mixed", 64, 2047, 2048),
        ("fp8 64", "fp8", 64, 512, 2048),
        ("fp8 mixed", "fp8 mixed", 64, 2047, 2048),
    ):
        shape = {"batch": batch, "context": context, "length": length} | of_1b
        variants = ("eager", "ours") if "fp8" in part else None
        yield Point(shape, "bfloat16", part=part, variants=variants, name=name)
    for batch in (8, 64):
        shape = {"batch": batch, "context": 512, "layers": 16, "width": 2048, "vocabulary": 128256}
        yield Point(shape, "bfloat16", modes=("calls",), part="step", name=f"step {batch}")


def prepare(point: Point, device: torch.device) -> Workload:
    return Decoding(point, device).workload() if point.part == "step" else Attention(point, device).workload()


class Attention:
    """Random queries, keys and values, also behind the token: what a page held for another sequence."""

    def __init__(self, point: Point, device: torch.device):
        batch, self.context, length, heads, shared, size = point.shape.values()
        made = partial(torch.randn, device=device, dtype=getattr(torch, point.dtype))
        self.q, *cache = made(batch, heads, size), *(made(batch, shared, length, size) for _ in range(2))
        shares = torch.arange(1, batch + 1, device=device) / batch if "mixed" in point.part else torch.ones(batch)
        self.positions = (shares.to(device) * self.context).long()
        self.hidden = torch.arange(length, device=device) > self.positions[:, None]
        most = length // PAGE
        self.table = torch.randperm(batch * most, device=device).view(batch, most).int() + 1
        self.fp8 = "fp8" in point.part
        if self.fp8:  # every result is compared with attention over what fp8 keeps
            rounded = [quantized(each.flatten(0, 2), FP8) for each in cache]
            self.numbers, self.scales = zip(*rounded, strict=True)
            self.wide = [restored(each, torch.float64).view_as(cache[0]) for each in rounded]
            cache = [each.to(self.q.dtype) for each in self.wide]
        else:
            self.wide = cache
        self.keys, self.values = cache

    def paged(self) -> Call:
        """It also writes the new token's key and value, as the others do not."""
        slots = torch.arange(len(self.q), device=self.q.device)
        k, v = (each[slots, :, self.positions] for each in (self.keys, self.values))
        pools, scales = [self.in_pages(each) for each in (self.keys, self.values)], None
        if self.fp8:
            pools = [self.in_pages(each.view_as(self.keys)) for each in self.numbers]
            scales = torch.stack([self.in_pages(each.view(self.keys.shape[:3])) for each in self.scales])
        counts = torch.zeros(k.shape[0] * k.shape[1], dtype=torch.int32, device=k.device)
        return lambda: attend(self.q, k, v, *pools, scales, counts, self.table, self.positions, self.keys.shape[2])

    def in_pages(self, cache: Tensor) -> Tensor:
        """A cache (slots, shared heads, length, ...) as a pool of pages, in the order of the table."""
        pages = cache.unflatten(2, (-1, PAGE)).transpose(1, 2).flatten(0, 1)
        pool = pages.new_zeros(len(pages) + 1, *pages.shape[1:])
        pool[self.table.flatten().long()] = pages
        return pool

    def call(self, function: Callable[..., Tensor]) -> Call:
        return torch.no_grad()(partial(function, self.q, self.keys, self.values, self.hidden))

    def workload(self) -> Workload:
        q, keys, values, hidden = self.q, self.keys, self.values, self.hidden
        pages = [each.unflatten(2, (-1, PAGE)).roll(1, 2).flatten(2, 3) for each in (keys, values)]
        places = int(self.positions.sum()) + len(q)
        vector = keys.shape[3] * (1 if self.fp8 else keys.element_size()) + (4 if self.fp8 else 0)
        wrong = {
            "a reused page's old places are seen": lambda: attended(q, keys, values, torch.zeros_like(hidden)),
            "one place less": lambda: attended(q, keys, values, self.hidden.roll(-1, 1)),
            "a block table off by one page": lambda: attended(q, pages[0], pages[1], hidden),
            "a window without its first place": lambda: attended(q, keys, values, hidden | self.first()),
        }
        return Workload(
            variants={
                "eager": Variant(lambda: self.call(attended)),
                "compile": Variant(lambda: self.call(torch.compile(own(attended), dynamic=False))),
                "sdpa": Variant(lambda: self.call(by_sdpa)),
                "flex": Variant(lambda: torch.no_grad()(by_flex(q, keys, values, self.positions))),
                "ours": Variant(self.paged),
            },
            baseline="eager",
            reference=lambda: {"output": attended(q.double(), self.wide[0].double(), self.wide[1].double(), hidden)},
            bytes_read=2 * places * keys.shape[1] * vector,
            bytes_written=q.nbytes,
            flops=4 * places * q.shape[1] * q.shape[2],
            mix="read",
            wrong={name: partial(spoilt, call) for name, call in wrong.items()},
        )

    def first(self) -> Tensor:
        return torch.arange(self.hidden.shape[1], device=self.hidden.device) < 1


def spoilt(call: Call, baseline: Results) -> Results:
    return {"output": call()}


class Decoding(Step):
    """The step of the case on generation, and the same over pages."""

    def __init__(self, point: Point, device: torch.device):
        super().__init__(replace(point, part=""), device)

    def paged(self) -> Call:
        most = self.length // PAGE
        decoder = PagedDecoder(self.model, self.batch, self.length, 1 + self.batch * most)
        decoder.table[:] = 1 + torch.randperm(self.batch * most).view(self.batch, most)
        for pool, (keys, values) in zip(decoder.pools, self.plain.cache, strict=True):
            for own_pages, cache in ((pool.keys, keys), (pool.values, values)):
                pages = cache.unflatten(2, (-1, PAGE)).transpose(1, 2).flatten(0, 1)
                own_pages[decoder.table.flatten().long()] = pages
        for name, function in (("through", PagedDecoder.through), ("last", PagedDecoder.last)):
            setattr(decoder, name, torch.compile(partial(own(function), decoder), dynamic=False))
        return self.in_a_graph(self.call(decoder, torch.compile(own(sample), dynamic=False)))

    def workload(self) -> Workload:
        if self.tokens.is_cuda:
            torch.cuda.empty_cache()
        return Workload(
            variants={"eager": Variant(self.static), "graph": Variant(self.graph), "ours": Variant(self.paged)},
            baseline="eager",
            reference=self.reference,
            bytes_read=self.bytes_read(),
            bytes_written=0,
            flops=0,
            mix="read",
            wrong=self.wrong(),
        )


OF_1B, OF_8B = ({"layers": layers, "kv_heads": 8, "size": size} for layers, size in ((16, 64), (32, 128)))
# A token's keys and values in the 1B model, in bf16.
token_1b = bound("KB", "2 * 2 * layers * kv_heads * size", OF_1B)
# The same in the 8B model.
token_8b = bound("KB", "2 * 2 * layers * kv_heads * size", OF_8B)
# In fp8, each of its vectors has a scale of 4 bytes.
fp8_1b = bound("KB", "2 * layers * kv_heads * (size + 4)", OF_1B)
# The same in the 8B model.
fp8_8b = bound("KB", "2 * layers * kv_heads * (size + 4)", OF_8B)
# Caches of 2,048 places for 64 sequences of the 1B model.
full_1b = bound("GB", "64 * 2048 * token", token=token_1b)
# The same of the 8B model.
full_8b = bound("GB", "64 * 2048 * token", token=token_8b)
# Pages of 64 places for 64 sequences of 32, 64, 96 ... 2,048 tokens: 1, 1, 2, 2 ... 32, 32 pages.
mixed_1b = bound("GB", "32 * 33 * 64 * token", token=token_1b)
# The same of the 8B model.
mixed_8b = bound("GB", "32 * 33 * 64 * token", token=token_8b)
# The same in fp8, of the 1B model.
mixed_fp8_1b = bound("GB", "32 * 33 * 64 * token", token=fp8_1b)
# The same in fp8, of the 8B model.
mixed_fp8_8b = bound("GB", "32 * 33 * 64 * token", token=fp8_8b)
# How many times as long a step takes over a contiguous cache of 2,048 places.
gained = bound("x", "contiguous / pages", contiguous=wall("graph", "{at}"), pages=wall("ours", "{at}"))

LABELS = {
    "graph": {"label": "contiguous, CUDA graph", "short": "contiguous", "role": "graph"},
    "sdpa": {"label": "SDPA", "role": "peer-1"},
    "ours": {"label": "pages", "role": "ours"},
}
CASE = Case(
    question="What does a paged cache cost in a decoding step, and what does it save?",
    check_at={"forward": [*(FEW | {"part": part} for part in PARTS), SMALL | {"batch": 3, "part": "step"}]},
)
