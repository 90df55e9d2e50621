"""Which attention for which mask: every rule by every kernel that takes it, forward, in training and decoding."""

from collections.abc import Callable, Iterator
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.flex_attention import flex_attention

from snippets.patterns import attention_choose as choose
from snippets.patterns import (
    attention_masks_alibi,
    attention_masks_decode,
    attention_masks_local,
    attention_masks_rules,
)
from tests.benchmarks import sides, wrong
from tests.benchmarks.bounds import bound, ceiling, gpu, memory
from tests.benchmarks.case import Call, Case, Point, Results, Variant, Workload
from tests.benchmarks.own import own

GROUPED, CROSS, DECODE = "grouped", "cross", "decode"
LONG = {"causal": "causal", "window": "sliding window", "alibi": "alibi", "documents": "documents", GROUPED: "gqa"}
SIZE = 128  # of a head
WIDTH = 8  # a window is as wide as the row, divided by this
DOCUMENT = 512  # tokens, on average
GROUP = 4  # heads of q to one of k and v
FEWER = 4  # queries of cross-attention: as many as keys, divided by this
ROOM = 8  # of the cache's places, one in so many is empty
Way = Callable[..., Tensor]  # q, k and v to the result
Ways = dict[str, Callable[[], Way]]


def points(device: torch.device) -> Iterator[Point]:
    """Long rows and medium ones, as many tokens; then decode."""
    if device.type == "cpu":
        for rule in ("causal", "window", "documents", GROUPED):
            yield Point({"rows": 1, "tokens": 128, "heads": 8}, "float32", "both", ("calls",), ON_A_CPU, rule)
        yield Point({"rows": 2, "tokens": 128, "heads": 8}, "float32", "forward", ("calls",), ON_A_CPU, DECODE)
        return
    long, medium, cross = (
        {"rows": rows, "tokens": tokens, "heads": 16} for rows, tokens in ((1, 8192), (4, 2048), (8, 2048))
    )
    for rule, name in LONG.items():
        yield Point(long, "bfloat16", "both", part=rule, name=name)
        yield Point(long, "bfloat16", "forward", part=rule, name=f"{name} forward")
        yield Point(medium, "bfloat16", "both", part=rule, name=f"short {name}")
    yield Point(cross, "bfloat16", "both", part=CROSS, name="cross attention")
    yield Point(cross, "bfloat16", "forward", part=CROSS, name="cross attention forward")
    for rows in (1, 16, 64):
        decode = {"rows": rows, "tokens": 8192, "heads": 32}
        yield Point(decode, "bfloat16", "forward", part=DECODE, name=f"decode batch {rows}")
        plain = ("formula", "mask", "filled", "folded", "flex")  # to allow one backend takes the host's time
        yield Point(decode, "bfloat16", "forward", ("calls",), plain, DECODE)


ON_A_CPU = ("formula", "mask", "flag", "repeated", "chunks", "alone", "filled", "folded")


def prepare(point: Point, device: torch.device) -> Workload:
    """Random q, k and v in the order of a projection's output; at padding and in the cache's empty places, too."""
    rule, (rows, tokens, heads) = point.part, point.shape.values()
    dtype, training = getattr(torch, point.dtype), point.direction == "both"
    queries = {CROSS: tokens // FEWER, DECODE: 1}.get(rule, tokens)
    kv_heads = heads // GROUP if rule in (GROUPED, DECODE) else heads
    size = SIZE if device.type == "cuda" else 16

    def drawn(n: int, length: int) -> Tensor:
        return torch.randn(rows, length, n, size, device=device).to(dtype).transpose(1, 2)

    inputs = [2 * drawn(heads, queries), drawn(kv_heads, tokens), drawn(kv_heads, tokens)]  # weights that differ
    incoming = drawn(heads, queries)
    say = RULES[rule](rows, tokens, heads, dtype, device)
    names = ("output", "q.grad", "k.grad", "v.grad")
    step = sides.both if training else sides.forward

    def call(way: Way) -> Call:
        leaves = tuple(t.detach().requires_grad_(training) for t in inputs)
        return step(way, leaves, (), (incoming,))

    def results(returned: object) -> Results:
        return dict(zip(names, sides.tupled(returned), strict=False))  # type: ignore[arg-type]

    def wrongly(way: Way) -> Callable[[Results], Results]:
        return lambda baseline: results(call(way)())

    def variant(find: Callable[[], Way]) -> Variant:
        return Variant(lambda: call(find()), results)

    formula = say.formula
    seen = int(say.mask.expand(rows, 1, queries, tokens).sum()) * heads
    q, kv = inputs[0].numel() * dtype.itemsize, int(2 * inputs[1].numel() * dtype.itemsize * say.filled)
    return Workload(
        variants={
            "formula": variant(lambda: formula),
            "compile-formula": variant(lambda: torch.compile(own(flat(formula)), dynamic=False)),
            **{name: variant(find) for name, find in say.ways.items()},
        },
        baseline="formula",
        reference=lambda: in_float64(inputs, incoming, say, training),
        bytes_read=q + kv + training * q,
        bytes_written=q + training * (q + kv),
        flops=(2 + 5 * training) * 2 * seen * size,  # two products, and five in backward
        mix="read" if rule == DECODE else "copy",
        wrong={
            "5% too large": wrongly(wrong.scaled(formula)),
            "scores 10% too large": wrongly(lambda q, k, v: formula(1.1 * q, k, v)),
            **{name: wrongly(way) for name, way in say.mistakes.items()},
        },
    )


def flat(way: Way) -> Way:
    """With a code object, which a partial has not."""

    def apply(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return way(q, k, v)

    return apply


class Said:
    """A rule as the ways take it: its mask and bias, the ways to say it, and what is easily said instead."""

    def __init__(
        self,
        mask: Tensor,
        ways: Ways,
        mistakes: dict[str, Way],
        bias: Tensor | None = None,
        exact: Tensor | None = None,
        filled: float = 1.0,
    ) -> None:
        self.mask, self.ways, self.mistakes, self.filled = mask, ways, mistakes, filled
        self.exact = exact  # the bias in float64
        self.formula = partial(attention_masks_rules.formula, mask=mask, bias=bias)


def by_flex(
    rule: attention_masks_rules.Rule, rows: int | None, queries: int, keys: int, device: torch.device, **how: object
) -> Way:
    """Compiled, with a block mask that is made once."""
    blocks = attention_masks_rules.blocks(rule, rows, queries, keys, device)

    def attention(q: Tensor, k: Tensor, v: Tensor, **all_of_it: object) -> Tensor:
        return flex_attention(q, k, v, **all_of_it)

    return partial(attention_masks_rules.flex, mask=blocks, attend=torch.compile(own(attention), dynamic=False), **how)


def by_backends(*names: str, **how: object) -> Ways:
    return {name: lambda name=name: partial(choose.only, choose.BACKENDS[name], **how) for name in names}  # type: ignore[misc]


def other_mask(rule: attention_masks_rules.Rule, rows: int, queries: int, keys: int, device: torch.device) -> Way:
    return partial(attention_masks_rules.formula, mask=attention_masks_rules.dense(rule, rows, queries, keys, device))


def everywhere(row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
    return (query >= 0) & (key >= 0)


def one_more(row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
    return key <= query + 1


# ---- the rules ------------------------------------------------------------------------------------------------------


def say_causal(rows: int, tokens: int, heads: int, dtype: torch.dtype, device: torch.device) -> Said:
    mask = attention_masks_rules.dense(attention_masks_rules.causal, 1, tokens, tokens, device)
    every = (1, tokens, tokens, device)
    return Said(
        mask,
        {
            "flag": lambda: partial(F.scaled_dot_product_attention, is_causal=True),
            "mask": lambda: partial(attention_masks_rules.with_mask, mask=mask),
            **by_backends("flash", "cudnn", "efficient", is_causal=True),
            "flex": lambda: by_flex(attention_masks_rules.causal, None, tokens, tokens, device),
        },
        {"the future not masked": other_mask(everywhere, *every), "one key too many": other_mask(one_more, *every)},
    )


def say_window(rows: int, tokens: int, heads: int, dtype: torch.dtype, device: torch.device) -> Said:
    width = tokens // WIDTH
    mask = attention_masks_rules.dense(attention_masks_rules.window(width), 1, tokens, tokens, device)
    every = (1, tokens, tokens, device)
    row = choose.make_row([tokens] * rows, device)

    def varlen(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return choose.packed(q, k, v, row, width).unflatten(2, (rows, -1)).squeeze(0).transpose(0, 1)

    return Said(
        mask,
        {
            "mask": lambda: partial(attention_masks_rules.with_mask, mask=mask),
            **by_backends("cudnn", "efficient", attn_mask=mask),
            "chunks": lambda: partial(attention_masks_local.in_chunks, width=width),
            "flex": lambda: by_flex(attention_masks_rules.window(width), None, tokens, tokens, device),
            "varlen": lambda: varlen,
        },
        {
            "a key too many": other_mask(attention_masks_rules.window(width + 1), *every),
            "a key too few": other_mask(attention_masks_rules.window(width - 1), *every),
            "no window": other_mask(attention_masks_rules.causal, *every),
        },
    )


def say_alibi(rows: int, tokens: int, heads: int, dtype: torch.dtype, device: torch.device) -> Said:
    mask = attention_masks_rules.dense(attention_masks_rules.causal, 1, tokens, tokens, device)
    slope = attention_masks_alibi.slopes(heads, device)
    bias = attention_masks_alibi.alibi_bias(slope, mask[0, 0], dtype)[None]

    def with_slopes(other: Tensor) -> Way:
        return partial(
            attention_masks_rules.formula,
            mask=mask,
            bias=attention_masks_alibi.alibi_bias(other, mask[0, 0], dtype)[None],
        )

    return Said(
        mask,
        {
            "bias": lambda: partial(attention_masks_rules.with_mask, mask=bias),
            **by_backends("cudnn", "efficient", attn_mask=bias),
            "flex": lambda: by_flex(
                attention_masks_rules.causal, None, tokens, tokens, device, score_mod=attention_masks_alibi.alibi(slope)
            ),
        },
        {
            "no bias": partial(attention_masks_rules.formula, mask=mask),
            "the other sign": with_slopes(-slope),
            "slopes in the other order": with_slopes(slope.flip(0)),
        },
        bias=bias,
        exact=slope.double(),
    )


def say_documents(rows: int, tokens: int, heads: int, dtype: torch.dtype, device: torch.device) -> Said:
    lengths = choose.spread(tokens, max(3, tokens // DOCUMENT))
    document = torch.arange(len(lengths), device=device).repeat_interleave(torch.tensor(lengths, device=device))
    rule = attention_masks_rules.documents(document.expand(rows, -1))
    mask = attention_masks_rules.dense(rule, 1, tokens, tokens, device)  # all rows alike
    row = choose.make_row(lengths * rows, device)

    def of_rows(way: Way) -> Way:
        return lambda *qkv: way(*qkv).unflatten(2, (rows, -1)).squeeze(0).transpose(0, 1)

    return Said(
        mask,
        {
            "mask": lambda: partial(attention_masks_rules.with_mask, mask=mask),
            **by_backends("cudnn", "efficient", attn_mask=mask),
            "alone": lambda: partial(attention_masks_local.each_alone, lengths=lengths),
            "flex": lambda: by_flex(rule, rows, tokens, tokens, device),
            "varlen": lambda: of_rows(partial(choose.packed, row=row)),
            "nested": lambda: of_rows(partial(choose.nested, row=row, shortest=min(lengths))),
        },
        {
            "documents see those before": other_mask(attention_masks_rules.causal, 1, tokens, tokens, device),
            "boundaries off by one": other_mask(
                attention_masks_rules.documents(document.roll(1).expand(rows, -1)), 1, tokens, tokens, device
            ),
        },
    )


def say_grouped(rows: int, tokens: int, heads: int, dtype: torch.dtype, device: torch.device) -> Said:
    mask = attention_masks_rules.dense(attention_masks_rules.causal, 1, tokens, tokens, device)
    return Said(
        mask,
        {
            "flag": lambda: partial(attention_masks_decode.grouped, is_causal=True),
            "repeated": lambda: partial(choose.repeated, is_causal=True),
            "mask": lambda: partial(attention_masks_decode.grouped, attn_mask=mask),
            **by_backends("flash", "cudnn", "efficient", is_causal=True, enable_gqa=True),
            "flex": lambda: by_flex(attention_masks_rules.causal, None, tokens, tokens, device),
        },
        {
            "the future not masked": other_mask(everywhere, 1, tokens, tokens, device),
            "heads in another order": out_of_order(partial(attention_masks_rules.formula, mask=mask), GROUP),
        },
    )


def out_of_order(way: Way, group: int) -> Way:
    """Heads of k and v one after the other, and again: what repeat() does."""
    return lambda q, k, v: way(q, k.repeat(1, group, 1, 1), v.repeat(1, group, 1, 1))


def say_cross(rows: int, tokens: int, heads: int, dtype: torch.dtype, device: torch.device) -> Said:
    queries = tokens // FEWER
    lengths = torch.tensor([round(tokens * (row + 1) / rows) for row in range(rows)], device=device)
    mask = attention_masks_rules.dense(attention_masks_rules.real_keys(lengths), rows, queries, tokens, device)
    every = (rows, queries, tokens, device)
    return Said(
        mask,
        {
            "mask": lambda: partial(attention_masks_rules.with_mask, mask=mask),
            **by_backends("cudnn", "efficient", attn_mask=mask),
            "flex": lambda: by_flex(attention_masks_rules.real_keys(lengths), rows, queries, tokens, device),
        },
        {"padding seen": other_mask(everywhere, *every), "causal": other_mask(attention_masks_rules.causal, *every)},
    )


def say_decode(rows: int, tokens: int, heads: int, dtype: torch.dtype, device: torch.device) -> Said:
    filled = tokens - tokens // ROOM
    lengths = torch.full((rows,), filled, device=device)
    mask = attention_masks_rules.dense(attention_masks_rules.real_keys(lengths), rows, 1, tokens, device)
    first = attention_masks_rules.real_keys(torch.ones_like(lengths))

    def folded(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attention_masks_decode.heads_as_queries(q, k[:, :, :filled], v[:, :, :filled])

    def alone(backend: str) -> Way:
        with_flag = partial(choose.only, choose.BACKENDS[backend], enable_gqa=True)
        return lambda q, k, v: with_flag(q, k[:, :, :filled], v[:, :, :filled])

    return Said(
        mask,
        {
            "mask": lambda: partial(attention_masks_decode.grouped, attn_mask=mask),
            "filled": lambda: partial(choose.filled_part, filled=filled),
            "folded": lambda: folded,
            "flash": lambda: alone("flash"),
            "cudnn": lambda: alone("cudnn"),
            "efficient": lambda: alone("efficient"),
            "flex": lambda: by_flex(attention_masks_rules.real_keys(lengths), rows, 1, tokens, device),
        },
        {
            "empty places seen": other_mask(everywhere, rows, 1, tokens, device),
            "is_causal": other_mask(first, rows, 1, tokens, device),
            "heads in another order": out_of_order(partial(attention_masks_rules.formula, mask=mask), GROUP),
        },
        filled=filled / tokens,
    )


RULES: dict[str, Callable[..., Said]] = {
    "causal": say_causal,
    "window": say_window,
    "alibi": say_alibi,
    "documents": say_documents,
    GROUPED: say_grouped,
    CROSS: say_cross,
    DECODE: say_decode,
}


def in_float64(inputs: list[Tensor], incoming: Tensor, say: Said, training: bool) -> Results:
    """One row and one head of k and v at a time, with the heads of q that read it: else scores fill the memory."""
    rows, heads, queries = incoming.shape[:3]
    kv_heads, keys = inputs[1].shape[1:3]
    group = heads // kv_heads
    found: list[Tensor] = [torch.empty(t.shape, dtype=torch.float64, device=t.device) for t in (incoming, *inputs)]
    apart = torch.arange(queries, device=incoming.device)[:, None] - torch.arange(keys, device=incoming.device)
    for row in range(rows):
        mask = say.mask[row % len(say.mask)]
        for head in range(kv_heads):
            of_q, of_kv = (row, slice(head * group, (head + 1) * group)), (row, slice(head, head + 1))
            here = (of_q, of_kv, of_kv)
            leaves = [
                t[at].detach().double()[None].requires_grad_(training) for t, at in zip(inputs, here, strict=True)
            ]
            bias = None if say.exact is None else -say.exact[of_q[1], None, None] * apart
            output = attention_masks_rules.formula(leaves[0], leaves[1], leaves[2], mask=mask, bias=bias)
            grads = torch.autograd.grad(output, leaves, incoming[of_q].double()[None]) if training else ()
            for t, at, part in zip(found, (of_q, *here), (output.detach(), *grads), strict=False):
                t[at] = part[0]
    return dict(zip(("output", "q.grad", "k.grad", "v.grad")[: 4 if training else 1], found, strict=False))


READ = ceiling("read", case="patterns/attention-choose")
WINDOW = {"width": 1024, "tokens": 8192}
# The part of the causal scores that a sliding window needs.
window_of_causal = bound(
    "%", "(width * (width + 1) / 2 + (tokens - width) * width) / (tokens * (tokens + 1) / 2)", WINDOW
)
# How many times as many scores a causal row needs as a sliding window.
causal_over_window = bound(
    "x", "tokens * (tokens + 1) / 2 / (width * (width + 1) / 2 + (tokens - width) * width)", WINDOW
)
# How many times as fast FlexAttention's window is as causal attention, in training.
window_over_causal = bound("x", "flag / flex", flag=gpu("flag", "causal"), flex=gpu("flex", "sliding window"))
mask_bytes = bound("MB", "tokens**2", tokens=8192)  # A mask of booleans, one for each query and key.
# What the kernel with a mask reaches, which computes every score.
mask_rate = bound(
    "TFLOP/s", "4 * heads * tokens**2 * size / time",
    heads=16, tokens=8192, size=128, time=gpu("mask", "causal forward"),
)  # fmt: skip
# ALiBi's bias, a number of two bytes for each head, query and key.
bias_bytes = bound("GB", "heads * tokens**2 * width", heads=16, tokens=8192, width=2)
# The part of all tiles that chunks of queries with two chunks of keys each compute.
chunked = bound("%", "2 * width / tokens", WINDOW)
# The masks of all chunks together, a boolean for each query and key.
chunk_masks = bound("MB", "tokens * 2 * width", WINDOW)
# What copying the heads of k and v takes.
copying_time = bound("us", "repeated - flag", repeated=gpu("repeated", "gqa"), flag=gpu("flag", "gqa"))
# What the copies of the heads of k and v need.
copying_memory = bound("MB", "repeated - flag", repeated=memory("repeated", "gqa"), flag=memory("flag", "gqa"))
# What reading the filled part of the cache takes, keys and values once.
cache_read = bound(
    "us", "2 * rows * filled * heads * size * width / copy", rows=16, filled=7168, heads=8, size=128, width=2, copy=READ
)
cached_heads = bound("", "rows * heads", rows=64, heads=8)  # How many heads of k and v all rows have together.
# How many times as long a mask takes as a view of what is filled.
masked_over_filled = bound(
    "x", "mask / filled", mask=gpu("mask", "decode batch 16"), filled=gpu("filled", "decode batch 16")
)
# How many times as large the whole cache is as what is filled.
places_over_filled = bound("x", "places / filled", places=8192, filled=7168)

LABELS = {
    "compile-formula": {"label": "formula, compiled", "short": "compiled", "role": "compile-max"},
    "bias": {"label": "SDPA, bias as data", "short": "bias", "role": "rewrite-2"},
    "flag": {"label": "SDPA, is_causal", "short": "is_causal", "role": "peer-1"},
    "repeated": {"label": "SDPA, heads repeated", "short": "repeated", "role": "rewrite"},
    "chunks": {"label": "SDPA, in chunks", "short": "chunks", "role": "rewrite"},
    "alone": {"label": "SDPA, one call a document", "short": "one by one", "role": "rewrite"},
    "filled": {"label": "SDPA, the filled part, no mask", "short": "filled part", "role": "peer-1"},
    "folded": {"label": "folded", "short": "folded", "role": "rewrite"},
}
CASE = Case(
    question="Which attention for a causal mask, a window, ALiBi, packed documents, grouped queries, and decode?",
    check_at={
        "forward both": [{"part": rule, "rows": 2, "tokens": 128, "heads": 8} for rule in (*LONG, CROSS)],
        "forward": [{"part": DECODE, "rows": 2, "tokens": 128, "heads": 8}],
    },
)
