"""Which keys a query sees: each rule once as a function, each way to hand it to attention checked against the formula.

Run `python -m snippets.patterns.attention_masks`: all of it is in float64, and none of it needs a GPU.
"""

import math
import re
import warnings
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import causal_lower_right
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

# Everywhere q is (rows, heads, queries, size), and k and v are (rows, heads, keys, size), or have fewer heads.
Rule = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]  # row, head, query and key: does the query see the key?
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]


# --8<-- [start:rules]
def causal(row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
    return key <= query


def window(width: int) -> Rule:
    """The token itself and the width - 1 before it."""
    return lambda row, head, query, key: (key <= query) & (query - key < width)


def documents(document: Tensor) -> Rule:
    """Several documents in a row, causal: `document` is (rows, tokens), and says which one each token belongs to."""
    return lambda row, head, query, key: (document[row, query] == document[row, key]) & (key <= query)


def real_keys(lengths: Tensor) -> Rule:
    """Cross-attention: all queries see the first `lengths` keys of their row."""
    return lambda row, head, query, key: key < lengths[row]


def after(cached: int | Tensor, rule: Rule) -> Rule:
    """The same rule for queries that come after `cached` keys."""
    return lambda row, head, query, key: rule(row, head, query + cached, key)


# --8<-- [end:rules]


# --8<-- [start:dense]
def dense(rule: Rule, rows: int, queries: int, keys: int, device: torch.device | str = "cpu") -> Tensor:
    """The rule as a boolean mask, True where a query sees a key; a size stays 1 where the rule does not ask for it."""
    row, head, query, key = (torch.arange(n, device=device) for n in (rows, 1, queries, keys))
    return rule(row[:, None, None, None], head[:, None, None], query[:, None], key[None, None, None])


def with_mask(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


# --8<-- [end:dense]


# --8<-- [start:blocks]
def blocks(rule: Rule, rows: int | None, queries: int, keys: int, device: torch.device | str = "cpu") -> BlockMask:
    """The rule as FlexAttention takes it; `rows` is None where all rows follow the same rule."""
    return create_block_mask(rule, rows, None, queries, keys, device=device)


def flex(q: Tensor, k: Tensor, v: Tensor, mask: BlockMask, attend: Callable = flex_attention, **how: object) -> Tensor:
    """`attend` is torch.compile(flex_attention): without it the formula runs, with all scores in memory."""
    return attend(q, k, v, block_mask=mask, enable_gqa=q.shape[1] != k.shape[1], **how)


# --8<-- [end:blocks]


# --8<-- [start:formula]
def formula(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, bias: Tensor | None = None) -> Tensor:
    """What all of this is checked against. Query head h reads head h // group of k and v."""
    group = q.shape[1] // k.shape[1]
    k, v = (t.repeat_interleave(group, 1) for t in (k, v))
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    if bias is not None:
        scores = scores + bias
    return scores.masked_fill(~mask, -math.inf).softmax(-1) @ v


# --8<-- [end:formula]


# --8<-- [start:seen]
def seen(attend: Attend, queries: int, keys: int) -> Tensor:
    """Which keys each query sees. If v is the identity, attention's result is its weights."""
    q, k = torch.randn(1, 1, queries, keys).double(), torch.randn(1, 1, keys, keys).double()
    return attend(q, k, torch.eye(keys).double()[None, None])[0, 0] != 0


# --8<-- [end:seen]


# ---- the last query is at the last key ------------------------------------------------------------------------------


# --8<-- [start:decode]
def decode(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """One new token, whose key is the last: it sees all keys, so there is nothing to mask."""
    return F.scaled_dot_product_attention(q, k, v)


def continued(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Some new tokens, whose keys are the last: causal, aligned at the lower right."""
    return F.scaled_dot_product_attention(q, k, v, attn_mask=causal_lower_right(q.shape[2], k.shape[2]))


def with_room(q: Tensor, k: Tensor, v: Tensor, filled: Tensor) -> Tensor:
    """One new token, and a cache with room for more: `filled` says how many keys of each row are real."""
    return with_mask(q, k, v, dense(real_keys(filled), len(q), 1, k.shape[2], q.device))


# --8<-- [end:decode]


# --8<-- [start:grouped]
def grouped(q: Tensor, k: Tensor, v: Tensor, **how: object) -> Tensor:
    """Fewer heads of k and v than of q: query head h reads head h // group."""
    return F.scaled_dot_product_attention(q, k, v, enable_gqa=True, **how)


def heads_as_queries(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    """The same for one query: query heads that read one head of k and v stand there as its queries."""
    group = q.shape[1] // k.shape[1]
    result = F.scaled_dot_product_attention(q.squeeze(2).unflatten(1, (-1, group)), k, v, attn_mask=mask)
    return result.flatten(1, 2).unsqueeze(2)


# --8<-- [end:grouped]


# ---- where the rule is local ----------------------------------------------------------------------------------------


# --8<-- [start:chunks]
def in_chunks(q: Tensor, k: Tensor, v: Tensor, width: int) -> Tensor:
    """A window of `width`: chunks of as many queries, each with its keys and those of the chunk before.

    The mask has tokens × 2 width places instead of tokens². Tokens are a multiple of the width.
    """
    rows, heads, tokens, _ = q.shape
    chunks = tokens // width
    query = torch.arange(tokens, device=q.device).view(chunks, width, 1)
    key = torch.arange(-width, width, device=q.device) + width * torch.arange(chunks, device=q.device)[:, None, None]
    mask = (key >= 0) & (key <= query) & (query - key < width)  # (chunks, width, 2 width)
    q = q.reshape(rows * heads, chunks, width, -1)
    k, v = (F.pad(t, (0, 0, width, 0)).unfold(2, 2 * width, width).transpose(-2, -1).flatten(0, 1) for t in (k, v))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask).reshape(rows, heads, tokens, -1)


# --8<-- [end:chunks]


# --8<-- [start:alone]
def each_alone(q: Tensor, k: Tensor, v: Tensor, lengths: list[int]) -> Tensor:
    """Documents in a row, one call for each."""
    parts = zip(*(t.split(lengths, 2) for t in (q, k, v)), strict=True)
    return torch.cat([F.scaled_dot_product_attention(*part, is_causal=True) for part in parts], 2)


# --8<-- [end:alone]


# ---- a number added to each score -----------------------------------------------------------------------------------


# --8<-- [start:alibi]
def slopes(heads: int, device: torch.device | str = "cpu") -> Tensor:
    """Of ALiBi, in float32, for a power of two of heads."""
    return 2.0 ** (-8 / heads * torch.arange(1, heads + 1, device=device))


def alibi(slope: Tensor) -> Callable[..., Tensor]:
    """For FlexAttention's `score_mod`: the score falls with the distance between query and key."""
    return lambda score, row, head, query, key: score - slope[head] * (query - key)


def alibi_bias(slope: Tensor, mask: Tensor, dtype: torch.dtype) -> Tensor:
    """For SDPA's `attn_mask`: (heads, queries, keys), and minus infinity where the mask is False."""
    query, key = (torch.arange(n, device=slope.device) for n in mask.shape[-2:])
    bias = -slope[:, None, None] * (query[:, None] - key)
    return bias.to(dtype).masked_fill(~mask, -math.inf)


# --8<-- [end:alibi]


# --8<-- [start:row]
def alibi_row(slope: Tensor, keys: int, dtype: torch.dtype) -> Tensor:
    """The same up to a number that all scores of a query share, which softmax cancels: (heads, 1, keys)."""
    return (slope[:, None, None] * torch.arange(keys, device=slope.device)).to(dtype)


# --8<-- [end:row]


# ---- what the page shows --------------------------------------------------------------------------------------------


def drawn(attend: Attend, queries: int, keys: int) -> str:
    """A word for each query: x for a key that it sees."""
    return "  ".join("".join(".x"[int(one)] for one in query) for query in seen(attend, queries, keys))


def show_alignment() -> None:
    """Queries that come after cached keys, by each option."""

    def by_flex(q: Tensor, k: Tensor, v: Tensor, offset: bool) -> Tensor:
        queries, keys = q.shape[2], k.shape[2]
        return flex(q, k, v, blocks(after(keys - queries, causal) if offset else causal, None, queries, keys))

    ways: dict[str, Attend] = {
        "is_causal=True": partial(F.scaled_dot_product_attention, is_causal=True),
        "no mask": decode,
        "causal_lower_right": continued,
        "FlexAttention, causal": partial(by_flex, offset=False),
        "FlexAttention, after(3, causal)": partial(by_flex, offset=True),
    }
    print(f"{'':34}{'1 query, 4 keys':<20}3 queries, 6 keys")
    for name, attend in ways.items():
        print(f"{name:<34}{drawn(attend, 1, 4):<20}{drawn(attend, 3, 6)}")


def show_rules() -> None:
    """Each rule over eight tokens, by its boolean mask and by FlexAttention, which must agree."""
    document, lengths = torch.tensor([[0, 0, 0, 1, 1, 1, 1, 2]]), torch.tensor([5])
    rules: dict[str, tuple[Rule, int]] = {
        "causal": (causal, 8),
        "window(3)": (window(3), 8),
        "documents of 3, 4 and 1": (documents(document), 8),
        "real_keys(5), 3 queries": (real_keys(lengths), 3),
        "after(5, causal), 3 queries": (after(5, causal), 3),
        "after(5, window(3)), 3 queries": (after(5, window(3)), 3),
    }
    for name, (rule, queries) in rules.items():
        mask = dense(rule, 1, queries, 8).expand(1, 1, queries, 8)
        pictures = {
            drawn(partial(with_mask, mask=mask), queries, 8),
            drawn(partial(flex, mask=blocks(rule, 1, queries, 8)), queries, 8),
        }
        print(f"{name:<32}{' or '.join(pictures)}")


def inputs(queries: int, keys: int, heads: int = 4, kv_heads: int = 4) -> list[Tensor]:
    """q, k and v of two rows, heads of 16, in float64."""
    shapes = ((heads, queries), (kv_heads, keys), (kv_heads, keys))
    return [torch.randn(2, *shape, 16).double() for shape in shapes]


Comparison = tuple[str, Tensor, dict[str, Tensor]]  # a rule; the formula's result; and that of each way, or mistake
TOKENS, PADDED = 24, torch.tensor([24, 9])


def of_window(qkv: list[Tensor], width: int = 6) -> Comparison:
    mask, wider = (dense(window(w), 1, TOKENS, TOKENS) for w in (width, width + 1))
    ways = {
        "boolean mask": with_mask(*qkv, mask),
        "FlexAttention": flex(*qkv, blocks(window(width), None, TOKENS, TOKENS)),
        "in_chunks": in_chunks(*qkv, width),
        f"window({width + 1}): {width} before the token": with_mask(*qkv, wider),
    }
    return f"window({width})", formula(*qkv, mask), ways


def of_alibi(qkv: list[Tensor]) -> Comparison:
    mask, slope = dense(causal, 1, TOKENS, TOKENS), slopes(4).double()
    exact = -slope[:, None, None] * (torch.arange(TOKENS)[:, None] - torch.arange(TOKENS))
    row = alibi_row(slope, TOKENS, exact.dtype).masked_fill(~mask, -math.inf)
    ways = {
        "bias of all pairs": with_mask(*qkv, alibi_bias(slope, mask, exact.dtype)),
        "FlexAttention, score_mod": flex(*qkv, blocks(causal, None, TOKENS, TOKENS), score_mod=alibi(slope)),
        "bias of one row": with_mask(*qkv, row),
        "bias with the other sign": with_mask(*qkv, alibi_bias(-slope, mask, exact.dtype)),
    }
    return "ALiBi, causal", formula(*qkv, mask, exact), ways


def of_documents(qkv: list[Tensor]) -> Comparison:
    lengths = [7, 1, 16]
    rule = documents(torch.arange(3).repeat_interleave(torch.tensor(lengths)).expand(2, -1))
    mask = dense(rule, 2, TOKENS, TOKENS)
    ways = {
        "boolean mask": with_mask(*qkv, mask),
        "FlexAttention": flex(*qkv, blocks(rule, 2, TOKENS, TOKENS)),
        "each_alone": each_alone(*qkv, lengths),
        "is_causal=True alone": F.scaled_dot_product_attention(*qkv, is_causal=True),
    }
    return "documents", formula(*qkv, mask), ways


def of_grouped_queries() -> Comparison:
    q, k, v = qkv = inputs(TOKENS, TOKENS, heads=4, kv_heads=2)
    repeated = (t.repeat(1, 2, 1, 1) for t in (k, v))
    ways = {
        "enable_gqa=True": grouped(*qkv, is_causal=True),
        "FlexAttention": flex(*qkv, blocks(causal, None, TOKENS, TOKENS)),
        "k and v by repeat()": F.scaled_dot_product_attention(q, *repeated, is_causal=True),
    }
    return "grouped queries, causal", formula(*qkv, dense(causal, 1, TOKENS, TOKENS)), ways


def of_cross_attention() -> Comparison:
    qkv, rule = inputs(5, TOKENS), real_keys(PADDED)
    mask = dense(rule, 2, 5, TOKENS)
    ways = {
        "boolean mask, a row of keys": with_mask(*qkv, mask),
        "FlexAttention": flex(*qkv, blocks(rule, 2, 5, TOKENS)),
        "is_causal=True": F.scaled_dot_product_attention(*qkv, is_causal=True),
    }
    return "cross-attention, padded keys", formula(*qkv, mask), ways


def of_decode() -> Comparison:
    qkv, rule = inputs(1, TOKENS, heads=4, kv_heads=2), real_keys(PADDED)
    mask = dense(rule, 2, 1, TOKENS)
    ways = {
        "boolean mask, enable_gqa=True": grouped(*qkv, attn_mask=mask),
        "heads_as_queries": heads_as_queries(*qkv, mask),
        "FlexAttention": flex(*qkv, blocks(rule, 2, 1, TOKENS)),
        "is_causal=True": grouped(*qkv, is_causal=True),
        "no mask": grouped(*qkv),
    }
    return "decode, grouped, room in the cache", formula(*qkv, mask), ways


def comparisons() -> list[Comparison]:
    """Each rule, by the formula and in each way to say the same, or something else."""
    qkv = inputs(TOKENS, TOKENS)
    alike = [of_window(qkv), of_alibi(qkv), of_documents(qkv)]
    return [*alike, of_grouped_queries(), of_cross_attention(), of_decode()]


def show_agreement() -> None:
    for rule, expected, ways in comparisons():
        print(rule)
        for way, result in ways.items():
            print(f"  {way:<36}{said(result - expected)}")


def said(difference: Tensor) -> str:
    """Its order of magnitude, or that it is no more than rounding in float64."""
    size = difference.abs().max().item()
    return "< 1e-12" if size < 1e-12 else f"{10.0 ** round(math.log10(size)):.0e}"


# --8<-- [start:rounding]
def rounding(tokens: int, dtype: torch.dtype) -> tuple[float, float]:
    """How far attention of the last query is off if only the bias is rounded: of all pairs, and of one row."""
    slope, mask = slopes(8)[:1].double(), torch.ones(1, tokens, dtype=torch.bool)
    q, (k, v) = torch.randn(1, 1, 1, 64).double(), torch.randn(2, 1, 1, tokens, 64).double()
    exact = -slope[:, None, None] * (tokens - 1 - torch.arange(tokens))
    expected = formula(q, k, v, mask, exact)
    biases = exact.to(dtype), alibi_row(slope, tokens, dtype)
    square, row = ((formula(q, k, v, mask, b.double()) - expected).abs().max().item() for b in biases)
    return square, row


# --8<-- [end:rounding]


def show_rounding() -> None:
    """The first of eight heads, whose slope is 1/2."""
    print(f"{'keys':>6}{'bias of all pairs':>22}{'bias of one row':>20}")
    for tokens in (128, 1024, 8192):
        square, row = rounding(tokens, torch.bfloat16)
        print(f"{tokens:>6}{said(torch.tensor(square)):>22}{said(torch.tensor(row)):>20}")


# --8<-- [start:refuses]
def verdict(backends: list[SDPBackend], expected: Tensor, *qkv: Tensor, **how: object) -> list[str]:
    """What SDPA does where only these backends may run: right, wrong, or its words when it refuses."""
    with sdpa_kernel(backends), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            result = F.scaled_dot_product_attention(*qkv, **how)
        except RuntimeError as error:
            why = [re.split(r"\. | \(Triggered", str(one.message))[0] for one in caught]
            return [str(error).splitlines()[0], *(f"warning: {line}" for line in why if not line.endswith("because:"))]
    return ["right" if torch.allclose(result, expected, atol=1e-5) else "wrong"]


# --8<-- [end:refuses]


def show_refusals() -> None:
    """Causal attention said in several ways, with more heads of q than of k and v or not, to each backend alone."""
    mask, padding = dense(causal, 1, 8, 8), dense(real_keys(torch.tensor([5, 8])), 2, 8, 8)
    everything = torch.ones(8, 8, dtype=torch.bool)
    given: dict[str, tuple[int, Tensor, dict[str, object]]] = {
        "is_causal=True": (4, mask, {"is_causal": True}),
        "a boolean mask": (4, mask, {"attn_mask": mask}),
        "a padding mask and is_causal=True": (4, mask & padding, {"is_causal": True, "attn_mask": padding}),
        "two heads of k and v, enable_gqa=True": (2, everything, {"enable_gqa": True}),
        "two heads of k and v": (2, everything, {}),
        "one head of k and v": (1, everything, {}),
    }
    flash, plain = SDPBackend.FLASH_ATTENTION, SDPBackend.MATH
    backends = {"both allowed": [flash, plain], "FLASH_ATTENTION": [flash], "MATH": [plain]}
    for name, (kv_heads, sees, how) in given.items():
        print(name)
        qkv = [t.float() for t in inputs(8, 8, 4, kv_heads)]
        for allowed, backend in backends.items():
            first, *others = verdict(backend, formula(*qkv, sees), *qkv, **how)
            print(f"  {allowed:<18}{first}")
            for line in others:
                print(f"{'':20}{line}")


def main() -> None:
    torch.manual_seed(0)
    warnings.filterwarnings("ignore", message=".*flex_attention called without torch.compile.*")
    for name, show in {
        "alignment": show_alignment,
        "rules": show_rules,
        "agreement": show_agreement,
        "rounding": show_rounding,
        "refuses": show_refusals,
    }.items():
        print(f"==== {name}")
        show()


if __name__ == "__main__":
    main()
