"""What each of SDPA's backends does with a mask, a flag or fewer heads of keys: right, wrong, or refused."""

import re
import warnings

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from snippets.patterns.attention_masks_agreement import inputs
from snippets.patterns.attention_masks_rules import causal, dense, formula, real_keys


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
