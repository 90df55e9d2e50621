"""What each of SDPA's kernels says to each mask: right, wrong, or why it refuses.

Run `python -m snippets.patterns.attention_choose_backends` on a GPU.
"""

from functools import partial

import torch
import torch.nn.functional as F

from snippets.patterns.attention_choose import BACKENDS, only, why_not
from snippets.patterns.attention_masks_alibi import alibi_bias, slopes
from snippets.patterns.attention_masks_rules import Rule, causal, dense, documents, formula, real_keys, window

ROWS, SIZE = 2, 128


# --8<-- [start:masks]
def masks(tokens: int, heads: int, device: torch.device) -> dict[str, tuple[Rule, int, dict[str, object]]]:
    """By name: the rule, heads of k and v, and how SDPA is told."""

    def as_mask(rule: Rule) -> dict[str, object]:
        return {"attn_mask": dense(rule, ROWS, tokens, tokens, device)}

    document = torch.arange(tokens, device=device)[None].expand(ROWS, -1) // 100
    lengths = torch.tensor([tokens, tokens // 3], device=device)
    sees = dense(causal, 1, tokens, tokens, device)  # (1, 1, queries, keys)
    return {
        "causal, flag": (causal, heads, {"is_causal": True}),
        "causal, mask": (causal, heads, as_mask(causal)),
        "window, mask": (window(64), heads, as_mask(window(64))),
        "ALiBi, bias": (causal, heads, {"attn_mask": alibi_bias(slopes(heads, device), sees, torch.bfloat16)}),
        "documents, mask": (documents(document), heads, as_mask(documents(document))),
        "cross-attention, a row of keys": (real_keys(lengths), heads, as_mask(real_keys(lengths))),
        "grouped, flag": (causal, heads // 4, {"is_causal": True, "enable_gqa": True}),
        "grouped, mask": (causal, heads // 4, as_mask(causal) | {"enable_gqa": True}),
    }


# --8<-- [end:masks]


def answers(device: torch.device, tokens: int = 512, heads: int = 8) -> dict[str, dict[str, str]]:
    """By mask and by kernel, in bf16; SDPA alone, and each kernel and no other."""
    found: dict[str, dict[str, str]] = {}
    for name, (rule, kv_heads, how) in masks(tokens, heads, device).items():
        shapes = ((ROWS, tokens, n, SIZE) for n in (heads, kv_heads, kv_heads))
        leaves = [torch.randn(shape, device=device).bfloat16().transpose(1, 2).requires_grad_() for shape in shapes]
        bias = how["attn_mask"] if "bias" in name else None
        expected = formula(*leaves, mask=dense(rule, ROWS, tokens, tokens, device), bias=bias).detach()
        calls = {"all allowed": F.scaled_dot_product_attention} | {
            kernel: partial(only, backend) for kernel, backend in BACKENDS.items()
        }
        found[name] = {kernel: why_not(partial(call, *leaves, **how), expected) for kernel, call in calls.items()}
    return found


def main() -> None:
    if not torch.cuda.is_available():
        print("a CPU has none of these kernels: run this on a GPU")
        return
    torch.manual_seed(0)
    for name, said in answers(torch.device("cuda")).items():
        print(name, *(f"  {kernel:<14}{answer}" for kernel, answer in said.items()), sep="\n")


if __name__ == "__main__":
    main()
