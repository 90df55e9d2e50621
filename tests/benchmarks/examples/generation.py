"""One decoding step of a Llama, by what runs it, by batch and by what its weights are kept in."""

import copy
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from functools import partial
from unittest import mock

import torch
from torch import Tensor

from snippets.examples import generation_kernels
from snippets.examples.generation import LLAMA_1B, LLAMA_8B, TINY, make_model
from snippets.examples.generation_attention import by_flex, by_sdpa
from snippets.examples.generation_kernels import Attention, TritonDecoder
from snippets.examples.generation_sample import sample
from snippets.examples.generation_step import Decoder, attended
from snippets.examples.generation_weights import Layer, restored
from snippets.validation.timing import captured
from tests.benchmarks.bounds import bound, ceiling, share, wall
from tests.benchmarks.case import Call, Case, Point, Results, Variant, Workload
from tests.benchmarks.own import own

BY_WIDTH: dict[int, dict[str, float]] = {2048: LLAMA_1B, 4096: LLAMA_8B, 128: TINY}
KEPT: dict[str, torch.dtype | None] = {"": None, "int8": torch.int8, "fp8": torch.float8_e4m3fn, "int4": torch.uint8}
LENGTH = 2048  # places of each cache
SMALL = {"batch": 1, "context": 40, "layers": 2, "width": 128, "vocabulary": 256}
FEW = {"part": "attention", "batch": 2, "context": 20, "length": 64, "heads": 4, "kv_heads": 2, "head_dim": 32}
ALL = "eager", "static", "compile", "graph", "late", "triton"


def points(device: torch.device) -> Iterator[Point]:
    """A 1B and an 8B: as they are, with smaller weights, and the 1B at larger batches."""
    if device.type == "cpu":
        yield Point(SMALL, "float32", modes=("calls",), variants=("eager", "static"))
        return
    of_1b = {"batch": 1, "context": 512, "layers": 16, "width": 2048, "vocabulary": 128256}
    of_8b = {"batch": 1, "context": 512, "layers": 32, "width": 4096, "vocabulary": 128256}
    for name, shape in (("1B", of_1b), ("8B", of_8b)):
        for part in KEPT:
            variants = ALL if not part else ("static", "graph", "triton")
            yield Point(
                shape, "bfloat16", modes=("calls",), variants=variants, part=part, name=f"{name} {part}".strip()
            )
    for batch in (8, 64):
        for part in ("", "int8"):
            shape, name = of_1b | {"batch": batch}, f"1B {part} batch {batch}".replace("  ", " ")
            yield Point(shape, "bfloat16", modes=("calls",), variants=("static", "graph"), part=part, name=name)
    yield from attention_points()


def attention_points() -> Iterator[Point]:
    """One layer's attention alone: a small, a typical and a large batch, and a long context."""
    for name, batch, context, length in (
        ("1", 1, 512, 2048),
        ("8", 8, 512, 2048),
        ("64", 64, 512, 2048),
        ("16k", 1, 16384, 32768),
    ):
        shape = {"batch": batch, "context": context, "length": length, "heads": 32, "kv_heads": 8, "head_dim": 64}
        yield Point(shape, "bfloat16", part="attention", name=f"attention {name}")


def prepare(point: Point, device: torch.device) -> Workload:
    """A whole step, or attention alone."""
    return attention(point, device) if point.part == "attention" else decoding(point, device)


def attention(point: Point, device: torch.device) -> Workload:
    """Random queries, keys and values, also behind the token, where nobody may look."""
    batch, context, length, heads, shared, size = point.shape.values()
    made = partial(torch.randn, device=device, dtype=getattr(torch, point.dtype))
    q, keys, values = made(batch, heads, size), made(batch, shared, length, size), made(batch, shared, length, size)
    positions = torch.full((batch,), context, device=device)
    hidden = torch.arange(length, device=device) > positions[:, None]

    def call(function: Callable[..., Tensor], *given: Tensor) -> Call:
        return torch.no_grad()(partial(function, *(given or (q, keys, values, hidden))))

    def triton() -> Call:
        """It also does RoPE, here of angle 0, and writes the new token's key and value."""
        if batch > 1:
            raise NotImplementedError("the kernel decodes one sequence")
        fast = Attention(heads, shared, size, length, device)
        cos, sin = torch.ones(length, size, device=device), torch.zeros(length, size, device=device)
        qkv = torch.cat((q[0], keys[0, :, context], values[0, :, context])).flatten()
        out, own_keys, own_values = torch.empty_like(q[0].flatten()), keys[0].clone(), values[0].clone()
        return lambda: fast(qkv, cos, sin, own_keys, own_values, positions, out)[None]

    def wrongly(function: Callable[[], Tensor]) -> Callable[[Results], Results]:
        return lambda baseline: {"output": function()}

    return Workload(
        variants={
            "eager": Variant(lambda: call(attended)),
            "compile": Variant(lambda: call(torch.compile(own(attended), dynamic=False))),
            "sdpa": Variant(lambda: call(by_sdpa)),
            "flex": Variant(lambda: torch.no_grad()(by_flex(q, keys, values, positions))),
            "triton": Variant(triton),
        },
        baseline="eager",
        reference=lambda: {"output": attended(q.double(), keys.double(), values.double(), hidden)},
        bytes_read=2 * keys.nbytes * (context + 1) // length,
        bytes_written=q.nbytes,
        flops=4 * batch * heads * size * (context + 1),
        mix="read",
        wrong={
            "no mask": wrongly(lambda: attended(q, keys, values, torch.zeros_like(hidden))),
            "one place less": wrongly(lambda: attended(q, keys, values, hidden.roll(-1, 1))),
            "heads share the wrong keys": wrongly(lambda: attended(q, keys.roll(1, 1), values, hidden)),
        },
    )


def decoding(point: Point, device: torch.device) -> Workload:
    """Random weights; keys and values are random too, also behind the token, where nobody may look."""
    step = Step(point, device)
    builds = {"eager": step.library, "static": step.static, "compile": step.compile}
    builds |= {"graph": step.graph, "late": step.late, "triton": step.triton}
    chosen = {name: builds[name] for name in point.variants or ALL}
    if device.type == "cuda":
        torch.cuda.empty_cache()
    return Workload(
        variants={name: Variant(build) for name, build in chosen.items()},
        baseline="static" if point.part or step.batch > 1 else "eager",
        reference=step.reference,
        bytes_read=step.bytes_read(),
        bytes_written=0,
        flops=0,
        mix="read",
        wrong=step.wrong(),
    )


class Step:
    """A model, one token for each sequence, and keys and values of what came before."""

    def __init__(self, point: Point, device: torch.device):
        self.batch, self.context, layers, width, vocabulary = point.shape.values()
        self.kept = KEPT[point.part]
        sizes = BY_WIDTH[width] | {"num_hidden_layers": layers, "vocab_size": vocabulary}
        self.length = LENGTH if width > 128 else 64
        self.model = make_model(sizes, device, getattr(torch, point.dtype))
        for layer in self.model.model.layers:  # as models are that were trained: rounding does not grow by the layer
            for linear in (layer.self_attn.o_proj, layer.mlp.down_proj):
                linear.weight.data *= (2 * layers) ** -0.5
        self.plain = Decoder(self.model, self.batch, self.length, self.kept)
        for cache in self.plain.cache:
            for each in cache:
                each.normal_()
        self.tokens = torch.randint(vocabulary, (self.batch,), device=device)
        self.positions = torch.full((self.batch,), self.context, device=device)

    # ---- variants: each computes the logits and the likeliest token ------------------------------------------------

    def library(self) -> Call:
        """The library's own forward, with the cache that it makes by itself."""
        from transformers import DynamicCache

        self.past = DynamicCache(config=self.model.config)
        for index, (keys, values) in enumerate(self.plain.cache):
            self.past.update(keys[:, :, : self.context].clone(), values[:, :, : self.context].clone(), index)
        return torch.no_grad()(self.forward)

    def forward(self) -> Tensor:
        found = self.model(self.tokens[:, None], past_key_values=self.past, use_cache=True)
        logits = found.logits[:, -1]
        self.past.crop(-1)  # the next call decodes the same token
        sample(logits)
        return logits

    def static(self) -> Call:
        return self.call(self.plain, sample)

    def compile(self) -> Call:
        return self.call(self.layers_compiled(), torch.compile(own(sample), dynamic=False))

    def graph(self) -> Call:
        return self.in_a_graph(self.compile())

    def triton(self) -> Call:
        decoder = TritonDecoder(self.model, self.length, self.kept)
        decoder.cache = [(keys.clone(), values.clone()) for keys, values in self.plain.cache]
        call = self.call(decoder, torch.compile(own(sample), dynamic=False) if self.tokens.is_cuda else sample)
        return self.in_a_graph(call) if self.tokens.is_cuda else call

    def late(self) -> Call:
        """Each kernel starts when the one before it has ended."""
        with mock.patch.object(generation_kernels, "_early", lambda device: {"EARLY": False}):
            return self.triton()

    def layers_compiled(self) -> Decoder:
        """The same weights and the same cache: it is written with the same numbers."""
        decoder = copy.copy(self.plain)
        for name in ("through", "last"):
            setattr(decoder, name, torch.compile(partial(own(getattr(Decoder, name)), decoder), dynamic=False))
        return decoder

    def call(self, decoder: Decoder, choose: Callable[[Tensor], Tensor]) -> Call:
        @torch.no_grad()
        def step() -> Tensor:
            logits = decoder(self.tokens, self.positions)
            choose(logits)
            return logits

        return step

    def in_a_graph(self, call: Call) -> Call:
        self.alive = (*getattr(self, "alive", ()), call)  # a graph holds addresses and no tensors
        return captured(call)

    # ---- what is right, and what is wrong --------------------------------------------------------------------------

    @torch.no_grad()
    def reference(self) -> Results:
        """The same step in float64, one layer after the other: all at once they would fill the GPU."""
        wide = copy.copy(self.plain)
        wide.layers, wide.cache = InFloat64(self.plain.layers), InFloat64(self.plain.cache)  # type: ignore[assignment]
        wide.head = restored(self.plain.head, torch.float64), None
        wide.norm, wide.cos, wide.sin = self.plain.norm.double(), self.plain.cos.double(), self.plain.sin.double()
        wide.embedding = self.plain.embedding[self.tokens].double()
        return {"output": wide(torch.arange(self.batch, device=self.tokens.device), self.positions)}

    def wrong(self) -> dict[str, Callable[[Results], Results]]:
        def position_off_by_one() -> Tensor:
            return self.changed()(self.tokens, self.positions - 1)

        def cache_of_another() -> Tensor:
            decoder = self.changed()
            decoder.cache = [(keys.roll(1, 2), values.roll(1, 2)) for keys, values in decoder.cache]
            return decoder(self.tokens, self.positions)

        def no_mask() -> Tensor:
            decoder = self.changed()
            decoder.places = torch.zeros_like(decoder.places)
            return decoder(self.tokens, self.positions)

        found = {
            "the position before": position_off_by_one,
            "a cache that lies one place further": cache_of_another,
            "no mask: what lies behind the token is seen": no_mask,
        }
        return {name: partial(self.spoilt, call) for name, call in found.items()}

    @torch.no_grad()
    def spoilt(self, call: Call, baseline: Results) -> Results:
        return {"output": call()}

    def changed(self) -> Decoder:
        decoder = copy.copy(self.plain)
        decoder.cache = [(keys.clone(), values.clone()) for keys, values in self.plain.cache]
        return decoder

    def bytes_read(self) -> int:
        """Weights and the cache up to the token; of the embedding only one row is read."""
        tensors = [t for layer in self.plain.layers for t in parts(layer)] + [*self.plain.head, self.plain.norm]
        weights = sum(t.nbytes for t in tensors if t is not None)
        return weights + 2 * sum(keys.nbytes for keys, _ in self.plain.cache) * (self.context + 1) // self.length


def parts(layer: Layer) -> Iterator[Tensor | None]:
    for field in fields(layer):
        value = getattr(layer, field.name)
        yield from value if isinstance(value, tuple) else (value,)


class InFloat64:
    """Layers or caches, each in float64 while it is used."""

    def __init__(self, things: list):
        self.things = things

    def __iter__(self) -> Iterator[object]:
        for thing in self.things:
            yield tuple(t.double() for t in thing) if isinstance(thing, tuple) else in_float64(thing)


def in_float64(layer: Layer) -> Layer:
    values = {field.name: getattr(layer, field.name) for field in fields(layer)}
    wide = {n: (restored(v, torch.float64), None) if isinstance(v, tuple) else v.double() for n, v in values.items()}
    return replace(layer, **wide)


SIZES_1B = {"layers": 16, "width": 2048, "inner": 8192, "kv": 512, "vocabulary": 128256}
SIZES_8B = {"layers": 32, "width": 4096, "inner": 14336, "kv": 1024, "vocabulary": 128256}
# Matrices of a layer, norms, the last matrix, and 513 places of the cache; of the embedding a token reads one row.
READ = (
    "2 * (layers * (2 * width**2 + 2 * width * kv + 3 * width * inner + 2 * width + 2 * 513 * kv)"
    " + width + width * vocabulary)"
)
# The bytes of a token of the 1B model.
bytes_1b = bound("GB", READ, SIZES_1B)
# The bytes of a token of the 8B model.
bytes_8b = bound("GB", READ, SIZES_8B)
# What reading the 1B takes at the read bandwidth of the same run.
floor_1b = bound("ms", "bytes / read", bytes=bytes_1b, read=ceiling("read"))
# What reading the 8B takes at that bandwidth.
floor_8b = bound("ms", "bytes / read", bytes=bytes_8b, read=ceiling("read"))
# The most tokens in a second that the bandwidth allows the 8B.
floor_tokens_8b = bound("", "read / bytes", bytes=bytes_8b, read=ceiling("read"))
# From how many tokens on bf16 matrices take longer to multiply than to read: 2 FLOP and 2 bytes a weight.
takes_over = bound(
    "", "rate / read", rate=ceiling("bfloat16", "burst", case="validation/roofline"), read=ceiling("read")
)
# How many tokens come in a second.
tokens = bound("", "1 / time", time=wall("{variant}", "{at}"))
# The same of 8 sequences together.
tokens_8 = bound("", "8 / time", time=wall("{variant}", "{at}"))
# The same of 64 sequences together.
tokens_64 = bound("", "64 / time", time=wall("{variant}", "{at}"))
# How much longer a step of 64 sequences takes than a step of one.
batch_costs = bound("x", "many / one", many=wall("graph", "1B batch 64"), one=wall("graph", "1B"))
# How much too slow the 1B's share of the bandwidth says the 8B's step to be, with Triton.
from_1b = bound("%", "large / small - 1", small=share("triton", "1B"), large=share("triton", "8B"))
# The same with int4 weights.
from_1b_int4 = bound("%", "large / small - 1", small=share("triton", "1B int4"), large=share("triton", "8B int4"))
# How far a line in bytes from batch 1 to batch 64 is from the step of batch 8.
line_is_off = bound(
    "%",
    "max(line / eight, eight / line) - 1",
    line=bound("ms", "one + 7 * (many - one) / 63", one=wall("graph", "1B"), many=wall("graph", "1B batch 64")),
    eight=wall("graph", "1B batch 8"),
)

LABELS = {
    "static": {"label": "our step, static cache", "short": "our step", "role": "rewrite"},
    "graph": {"label": "compiled, CUDA graph", "short": "CUDA graph", "role": "graph"},
    "late": {"label": "Triton kernels, no early start", "short": "no early start", "role": "other"},
    "sdpa": {"label": "SDPA", "role": "peer-1"},
    "triton": {"label": "Triton kernels", "role": "ours"},
}
CASE = Case(
    question="How close does one decoding step of a Llama come to reading its weights once?",
    check_at={"forward": [*(SMALL | {"part": part} for part in KEPT), SMALL | {"batch": 3}, FEW]},
)
