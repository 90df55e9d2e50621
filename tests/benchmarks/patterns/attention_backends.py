"""Which attention kernel is fastest: SDPA's backends and the others, by mask, head size and direction."""

import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from inspect import signature

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import (
    SDPBackend,
    activate_flash_attention_impl,
    restore_flash_attention_impl,
    sdpa_kernel,
)
from torch.nn.attention.flex_attention import flex_attention
from torch.nn.attention.varlen import varlen_attn

from snippets.patterns import attention_choose as choose
from snippets.patterns import attention_masks_rules
from tests.benchmarks import sides, wrong
from tests.benchmarks.case import Call, Case, Point, Results, Variant, Workload
from tests.benchmarks.own import own

TOKENS, LONG = 4096, 16384  # of a row; LONG are those of all rows together, too
WIDTH = 1024  # of all heads together
SIZES = (64, 128, 256)  # of a head
WORDS = {"forward": "forward", "backward": "backward", "both": "training"}
CAUSAL, FULL, PADDING, WINDOW, DOCUMENTS, DECODE = "causal", "full", "padding", "window", "documents", "decode"
GRID = [
    *((part, TOKENS, SIZES) for part in (CAUSAL, FULL)),
    (CAUSAL, LONG, SIZES),
    *((part, TOKENS, (128,)) for part in (PADDING, WINDOW, DOCUMENTS)),
]
CACHED, GROUP = 8192, 4  # tokens in the cache; heads of q to one of k and v
DECODED = ((1, 128), (16, 128), (64, 128), (16, 64), (16, 256))  # rows, and size of a head
WINDOWS, DOCUMENT = 8, 512  # a window is the row divided by this; tokens of a document, on average
PIECE = 2**28  # scores that the formula holds at a time
BLOCK = 2048  # queries that the reference holds at a time
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]


def points(device: torch.device) -> Iterator[Point]:
    """As many tokens and as wide at each mask; then a new token beside a cache."""
    if device.type == "cpu":
        for part in RULES:
            direction, small = (
                "forward" if part == DECODE else "both",
                {"rows": 2, "tokens": 64, "heads": 4, "size": 16},
            )
            yield Point(small, "float32", direction, ("calls",), ("formula", "default", "flash"), part)
        return
    for direction, word in WORDS.items():
        for part, tokens, sizes in GRID:
            for size in sizes:
                shape = {"rows": LONG // tokens, "tokens": tokens, "heads": WIDTH // size, "size": size}
                name = f"{part} {'16k ' if tokens == LONG else ''}{size} {word}"
                yield Point(shape, "bfloat16", direction, part=part, name=name)
    for rows, size in DECODED:
        shape = {"rows": rows, "tokens": CACHED, "heads": 32, "size": size}
        yield Point(shape, "bfloat16", "forward", part=DECODE, name=f"decode {size} batch {rows}")


def same(t: Tensor) -> Tensor:
    return t


@dataclass(frozen=True)
class Way:
    """One way to compute attention, timed as it is called: what changes a layout runs before and after.

    Attributes:
        find: imports or compiles it.
        into, back: from (rows, heads, tokens, size) to the layout of its inputs and results, and back.
        around: what has to be active in a call, forward and backward.
    """

    find: Callable[[], Attend]
    into: Callable[[Tensor], Tensor] = same
    back: Callable[[Tensor], Tensor] = same
    around: Callable[[], AbstractContextManager[None]] = nullcontext


@dataclass(frozen=True)
class Rule:
    """A mask: the keys that a query sees, the ways to say it, and what is easily said instead.

    Attributes:
        needed: the pairs of queries and keys that count as work, where they are fewer than are seen.
        real: (rows, queries), the queries whose results count; all where it is not given.
    """

    sees: attention_masks_rules.Rule
    ways: dict[str, Way]
    mistakes: dict[str, attention_masks_rules.Rule]
    needed: attention_masks_rules.Rule | None = None
    real: Tensor | None = None


def prepare(point: Point, device: torch.device) -> Workload:
    """Random q, k and v in the order of a projection's output."""
    rows, tokens, heads, size = point.shape.values()
    dtype, training = getattr(torch, point.dtype), point.direction != "forward"
    queries, kv_heads = (1, heads // GROUP) if point.part == DECODE else (tokens, heads)

    def drawn(n: int, length: int) -> Tensor:
        return torch.randn(rows, length, n, size, device=device).to(dtype).transpose(1, 2)

    inputs = [2 * drawn(heads, queries), drawn(kv_heads, tokens), drawn(kv_heads, tokens)]  # weights that differ
    rule = RULES[point.part](rows, tokens, device)
    real = torch.ones(rows, queries, device=device) if rule.real is None else rule.real
    real = real[:, None, :, None].to(dtype)
    incoming = drawn(heads, queries) * real
    names = ("output", "q.grad", "k.grad", "v.grad")[point.direction == "backward" : 4 if training else 1]
    step = {"forward": sides.forward, "backward": sides.backward, "both": sides.both}[point.direction]

    def build(way: Way) -> Call:
        leaves = tuple(way.into(t).detach().requires_grad_(training) for t in inputs)
        return within(way.around, lambda: step(way.find(), leaves, (), (way.into(incoming),)))

    def results(way: Way, returned: object) -> Results:
        found = dict(zip(names, map(way.back, sides.tupled(returned)), strict=True))  # type: ignore[arg-type]
        return found | {name: found[name] * real for name in ("output",) if name in found}

    def wrongly(attend: Attend) -> Callable[[Results], Results]:
        way = Way(lambda: attend)
        return lambda baseline: results(way, build(way)())

    mask = attention_masks_rules.dense(rule.sees, rows, queries, tokens, device)
    seen = attention_masks_rules.dense(rule.needed or rule.sees, rows, queries, tokens, device).expand(
        rows, 1, queries, tokens
    )
    q, kv = (n * t.numel() * dtype.itemsize for n, t in ((1, inputs[0]), (2, inputs[1])))

    def plain(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return in_pieces(q, k, v, mask)

    def mistaken(other: attention_masks_rules.Rule) -> Attend:
        return lambda q, k, v: in_pieces(q, k, v, attention_masks_rules.dense(other, rows, queries, tokens, device))

    products = {"forward": 2, "backward": 5, "both": 7}[point.direction]
    ways = {"formula": Way(lambda: plain)} | rule.ways
    return Workload(
        variants={
            name: Variant(partial(explained, partial(build, w)), partial(results, w)) for name, w in ways.items()
        },
        baseline="formula",
        reference=lambda: in_float64(inputs, incoming, rule.sees, real, names),
        bytes_read=q + kv + {"forward": 0, "backward": 2, "both": 1}[point.direction] * q,
        bytes_written={"forward": q, "backward": q + kv, "both": 2 * q + kv}[point.direction],
        flops=products * 2 * int(seen.sum()) * heads * size,
        mix="read" if point.part == DECODE else "copy",
        wrong={
            "5% too large": wrongly(wrong.scaled(plain)),
            "scores 10% too large": wrongly(lambda q, k, v: plain(1.1 * q, k, v)),
            **{name: wrongly(mistaken(other)) for name, other in rule.mistakes.items()},
        },
    )


def within(around: Callable[[], AbstractContextManager[None]], build: Callable[[], Call]) -> Call:
    """The call, built and run in a context; without one, as it is."""
    if around is nullcontext:
        return build()
    with around():
        inner = build()

    def call() -> object:
        with around():
            return inner()

    return call


def explained(build: Callable[[], Call]) -> Call:
    """What is built. Where SDPA says only that no backend accepts the call, the reasons it warned of are the error."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            call = build()
            call()
            return call
        except RuntimeError as error:
            if "No available kernel" not in str(error):
                raise
            said = [re.split(r"\. | \(Triggered", str(one.message))[0] for one in caught]
            reasons = [text for text in said if not re.search(r"because:$|runtime disabled", text)]
            raise RuntimeError("; ".join(dict.fromkeys(reasons)) or str(error)) from error


# ---- the formula ----------------------------------------------------------------------------------------------------


def in_pieces(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """The formula, some rows and heads at a time, so that their scores fit."""
    rows, heads = k.shape[:2]
    if q.shape[:3].numel() * k.shape[2] <= PIECE or rows == heads == 1:
        return attention_masks_rules.formula(q, k, v, mask)
    dim = 0 if rows > 1 else 1
    halves = [t.chunk(2, dim) for t in (q, k, v)]
    halves.append(mask.chunk(2) if dim == 0 and len(mask) > 1 else (mask, mask))
    return torch.cat([in_pieces(*half) for half in zip(*halves, strict=True)], dim)


def in_float64(
    inputs: list[Tensor], incoming: Tensor, sees: attention_masks_rules.Rule, real: Tensor, names: tuple
) -> Results:
    """One head of k and v and some queries at a time, with the heads of q that read it: else scores fill the memory."""
    rows, heads, queries = incoming.shape[:3]
    kv_heads, keys = inputs[1].shape[1:3]
    output, *grads = (torch.zeros(t.shape, dtype=torch.float64, device=t.device) for t in (incoming, *inputs))
    training = len(names) > 1
    for begin in range(0, queries, BLOCK):
        of_block = slice(begin, min(begin + BLOCK, queries))
        mask = attention_masks_rules.dense(
            attention_masks_rules.after(begin, sees), rows, of_block.stop - begin, keys, incoming.device
        )
        for row, head in ((row, head) for row in range(rows) for head in range(kv_heads)):
            of_q = (slice(row, row + 1), slice(head * heads // kv_heads, (head + 1) * heads // kv_heads), of_block)
            of_kv = (slice(row, row + 1), slice(head, head + 1))
            places = (of_q, of_kv, of_kv)
            q, k, v = leaves = [
                t[at].detach().double().requires_grad_(training) for t, at in zip(inputs, places, strict=True)
            ]
            found = attention_masks_rules.formula(q, k, v, mask[[row % len(mask)]])
            output[of_q] = found.detach()
            if training:
                parts = torch.autograd.grad(found, leaves, incoming[of_q].double())
                for t, at, part in zip(grads, places, parts, strict=True):
                    t[at] += part
    every = dict(zip(("output", "q.grad", "k.grad", "v.grad"), (output * real, *grads), strict=True))
    return {name: every[name] for name in names}


# ---- the ways -------------------------------------------------------------------------------------------------------


def by_sdpa(**how: object) -> dict[str, Way]:
    """SDPA's own choice, and each of its backends alone."""
    alone = {name: Way(lambda b=backend: partial(choose.only, b, **how)) for name, backend in choose.BACKENDS.items()}  # type: ignore[misc]
    return {"default": Way(lambda: partial(F.scaled_dot_product_attention, **how))} | alone


def by_flex(
    sees: attention_masks_rules.Rule | None, rows: int | None, queries: int, keys: int, device: torch.device
) -> dict[str, Way]:
    """FlexAttention, compiled: by its Triton kernels, and by FlashAttention 4. Block masks are made once."""

    def find(**how: object) -> Attend:
        def attention(q: Tensor, k: Tensor, v: Tensor, **all_of_it: object) -> Tensor:
            return flex_attention(q, k, v, **all_of_it)  # type: ignore[arg-type]

        blocks = None if sees is None else attention_masks_rules.blocks(sees, rows, queries, keys, device)
        return partial(
            attention_masks_rules.flex, mask=blocks, attend=torch.compile(own(attention), dynamic=False), **how
        )  # type: ignore[arg-type]

    return {"flex": Way(find), "flex-flash": Way(partial(find, kernel_options={"BACKEND": "FLASH"}))}


class Packed:
    """Documents of all rows in one, tokens first. `real` (rows, tokens) are those that are no padding."""

    def __init__(self, lengths: list[int], device: torch.device, rows: int, real: Tensor | None = None) -> None:
        self.rows, self.real = rows, real
        self.places = choose.make_row(lengths, device)

    def described(self) -> dict[str, object]:
        """As FlashAttention names it, for q and for k and v."""
        offsets, longest = self.places
        return {f"cu_seqlens_{of}": offsets for of in "qk"} | {f"max_seqlen_{of}": longest for of in "qk"}

    def into(self, t: Tensor) -> Tensor:
        tokens_first = t.transpose(1, 2)
        return tokens_first.flatten(0, 1) if self.real is None else tokens_first[self.real]

    def back(self, t: Tensor) -> Tensor:
        if self.real is None:
            return t.unflatten(0, (self.rows, -1)).transpose(1, 2)
        every = torch.zeros(*self.real.shape, *t.shape[1:], dtype=t.dtype, device=t.device)
        every[self.real] = t.detach()
        return every.transpose(1, 2)


def by_varlen(q: Packed, kv: Packed, window: tuple[int, int]) -> dict[str, Way]:
    """By the numbers of tokens before and behind that a query sees; -1 is all."""
    where = (q.places.offsets, kv.places.offsets, q.places.longest, kv.places.longest)

    grouped = {"enable_gqa": True} if q is not kv and "enable_gqa" in signature(varlen_attn).parameters else {}

    def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return varlen_attn(q, k, v, *where, window_size=window, **grouped)  # type: ignore[arg-type]

    return {"varlen": Way(lambda: attention, q.into, q.back)}


def tokens_first(t: Tensor) -> Tensor:
    return t.transpose(1, 2)


def by_flash4(packed: Packed | None = None, **how: object) -> dict[str, Way]:
    """FlashAttention 4 by its own function: for rows of one length, or for packed documents."""

    each = {} if packed is None else packed.described()

    def find() -> Attend:
        attend = sides.library(f"flash_attn.cute:flash_attn_{'varlen_' * bool(each)}func")()
        return lambda q, k, v: sides.tupled(attend(q, k, v, **each, **how))[0]  # beside the output it may return others

    return {"flash4": Way(find, *((tokens_first, tokens_first) if packed is None else (packed.into, packed.back)))}


def by_others(**how: object) -> dict[str, Way]:
    """SDPA's flash backend with another FlashAttention behind it."""

    @contextmanager
    def active(version: str) -> Iterator[None]:
        activate_flash_attention_impl(version)
        try:
            with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
                yield
        finally:
            restore_flash_attention_impl()

    attend = partial(F.scaled_dot_product_attention, **how)
    names = {"flash3-sdpa": "FA3", "flash4-sdpa": "FA4"}
    return {name: Way(lambda: attend, around=partial(active, version)) for name, version in names.items()}


# ---- the rules ------------------------------------------------------------------------------------------------------


def everything(row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
    return (query >= 0) & (key >= 0)


def one_more(row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
    return key <= query + 1


def but_the_last(keys: int) -> attention_masks_rules.Rule:
    """All keys but the last sixteenth."""
    return lambda row, head, query, key: (query >= 0) & (key < keys - keys // 16)


def causal(rows: int, tokens: int, device: torch.device) -> Rule:
    packed = Packed([tokens] * rows, device, rows)
    return Rule(
        attention_masks_rules.causal,
        by_sdpa(is_causal=True)
        | by_flex(attention_masks_rules.causal, None, tokens, tokens, device)
        | by_varlen(packed, packed, (-1, 0))
        | by_flash4(causal=True)
        | by_others(is_causal=True),
        {"the future not masked": everything, "one key too many": one_more},
    )


def full(rows: int, tokens: int, device: torch.device) -> Rule:
    packed = Packed([tokens] * rows, device, rows)
    return Rule(
        everything,
        by_sdpa()
        | by_flex(None, None, tokens, tokens, device)
        | by_varlen(packed, packed, (-1, -1))
        | by_flash4()
        | by_others(),
        {"causal": attention_masks_rules.causal, "the last keys not seen": but_the_last(tokens)},
    )


def padding(rows: int, tokens: int, device: torch.device) -> Rule:
    """Rows of a quarter to all of the tokens, padding behind them, and not causal."""
    lengths = [tokens * (row + 1) // rows for row in range(rows)]
    at = torch.tensor(lengths, device=device)
    sees = attention_masks_rules.real_keys(at)
    real = torch.arange(tokens, device=device) < at[:, None]
    packed = Packed(lengths, device, rows, real)

    def both_real(row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (query < at[row]) & (key < at[row])

    return Rule(
        sees,
        by_sdpa(attn_mask=attention_masks_rules.dense(sees, rows, tokens, tokens, device))
        | by_flex(both_real, rows, tokens, tokens, device)
        | by_varlen(packed, packed, (-1, -1))
        | by_flash4(packed),
        {"padding seen": everything, "lengths of other rows": attention_masks_rules.real_keys(at.flip(0))},
        needed=both_real,
        real=real,
    )


def window(rows: int, tokens: int, device: torch.device) -> Rule:
    width = tokens // WINDOWS
    sees, packed = attention_masks_rules.window(width), Packed([tokens] * rows, device, rows)
    return Rule(
        sees,
        by_sdpa(attn_mask=attention_masks_rules.dense(sees, 1, tokens, tokens, device))
        | by_flex(sees, None, tokens, tokens, device)
        | by_varlen(packed, packed, (width - 1, 0))
        | by_flash4(causal=True, window_size=(width - 1, 0)),
        {
            "a key too many": attention_masks_rules.window(width + 1),
            "a key too few": attention_masks_rules.window(width - 1),
            "no window": attention_masks_rules.causal,
        },
    )


def documents(rows: int, tokens: int, device: torch.device) -> Rule:
    lengths = choose.spread(tokens, max(3, tokens // DOCUMENT))
    of_token = torch.arange(len(lengths), device=device).repeat_interleave(torch.tensor(lengths, device=device))
    sees, packed = attention_masks_rules.documents(of_token.expand(rows, -1)), Packed(lengths * rows, device, rows)
    return Rule(
        sees,
        by_sdpa(attn_mask=attention_masks_rules.dense(sees, rows, tokens, tokens, device))
        | by_flex(sees, rows, tokens, tokens, device)
        | by_varlen(packed, packed, (-1, 0))
        | by_flash4(packed, causal=True),
        {
            "documents see those before": attention_masks_rules.causal,
            "boundaries off by one": attention_masks_rules.documents(of_token.roll(1).expand(rows, -1)),
        },
    )


def decode(rows: int, tokens: int, device: torch.device) -> Rule:
    """A new token, whose key is the last in the cache."""
    q, kv = (Packed([length] * rows, device, rows) for length in (1, tokens))
    return Rule(
        everything,
        by_sdpa(enable_gqa=True)
        | by_flex(None, None, 1, tokens, device)
        | by_varlen(q, kv, (-1, -1))
        | by_flash4()
        | by_others(enable_gqa=True),
        {"is_causal": attention_masks_rules.causal, "the last keys not seen": but_the_last(tokens)},
    )


RULES: dict[str, Callable[[int, int, torch.device], Rule]] = {
    CAUSAL: causal,
    FULL: full,
    PADDING: padding,
    WINDOW: window,
    DOCUMENTS: documents,
    DECODE: decode,
}

LABELS = {
    "default": {"label": "SDPA, default", "short": "default", "role": "rewrite"},
    "flex-flash": {"label": "FlexAttention, BACKEND=FLASH", "short": "Flex flash", "role": "compile-max"},
    "flash3-sdpa": {"label": "SDPA, FlashAttention 3 activated", "short": "FA3 in SDPA", "role": "other"},
    "flash4-sdpa": {"label": "SDPA, FlashAttention 4 activated", "short": "FA4 in SDPA", "role": "other"},
}
SMALL = {"rows": 2, "tokens": 128, "heads": 8, "size": 16}
CASE = Case(
    question="Which attention kernel is fastest, by mask and head size: forward, backward, training, decoding?",
    check_at={
        "forward backward both": [{"part": part, **SMALL} for part in RULES if part != DECODE],
        "forward": [{"part": DECODE, **SMALL}],
    },
)
