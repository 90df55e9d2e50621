"""Which keys a query sees: each rule once as a function, each way to hand it to attention checked against the formula.

Run `python -m snippets.patterns.attention_masks`: all of it is in float64, and none of it needs a GPU.
"""

import warnings
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from snippets.patterns.attention_masks_agreement import said, show_agreement
from snippets.patterns.attention_masks_alibi import rounding
from snippets.patterns.attention_masks_decode import continued, decode
from snippets.patterns.attention_masks_refused import show_refusals
from snippets.patterns.attention_masks_rules import (
    Attend,
    Rule,
    after,
    blocks,
    causal,
    dense,
    documents,
    flex,
    real_keys,
    window,
    with_mask,
)


# --8<-- [start:seen]
def seen(attend: Attend, queries: int, keys: int) -> Tensor:
    """Which keys each query sees. If v is the identity, attention's result is its weights."""
    q, k = torch.randn(1, 1, queries, keys).double(), torch.randn(1, 1, keys, keys).double()
    return attend(q, k, torch.eye(keys).double()[None, None])[0, 0] != 0


# --8<-- [end:seen]


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


def show_rounding() -> None:
    """The first of eight heads, whose slope is 1/2."""
    print(f"{'keys':>6}{'bias of all pairs':>22}{'bias of one row':>20}")
    for tokens in (128, 1024, 8192):
        square, row = rounding(tokens, torch.bfloat16)
        print(f"{tokens:>6}{said(torch.tensor(square)):>22}{said(torch.tensor(row)):>20}")


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
