"""Four Triton kernels in place of what the library writes out."""

from functools import partial
from types import MethodType

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kernels.cross_entropy import cross_entropy
from kernels.rms_norm import rms_norm
from kernels.rope import rope
from kernels.swiglu import swiglu
from snippets.examples.llama_model import Loss, eager


# --8<-- [start:kernels]
def kernels_swapped(model: nn.Module) -> Loss:
    """Four kernels of this site in place of what the library writes out."""
    for module in model.modules():
        match type(module).__name__:
            case "LlamaRMSNorm":
                module.forward = partial(rms_norm, weight=module.weight, eps=module.variance_epsilon)
            case "LlamaMLP":
                module.forward = MethodType(gated, module)
            case "LlamaAttention":
                module.forward = MethodType(attention, module)
    model.loss_function = lambda logits, labels, **_: mean_loss(logits.flatten(0, 1), shifted(labels))
    return eager(model)


def gated(self: nn.Module, x: Tensor) -> Tensor:
    return self.down_proj(swiglu(self.gate_proj(x), self.up_proj(x)))


def attention(
    self: nn.Module,
    hidden_states: Tensor,
    position_embeddings: tuple[Tensor, Tensor],
    attention_mask: Tensor | None = None,
    **_: object,
) -> tuple[Tensor, None]:
    if attention_mask is not None:
        raise ValueError("attention_mask: expected none, since attention here is causal and knows of no padding")
    q, k, v = (heads(linear(hidden_states), self.head_dim) for linear in (self.q_proj, self.k_proj, self.v_proj))
    return self.o_proj(attend(*rope(q, k, *position_embeddings), v)), None


def heads(t: Tensor, head_dim: int) -> Tensor:
    """(batch, length, heads * head_dim) as (batch, heads, length, head_dim): a view."""
    return t.unflatten(-1, (-1, head_dim)).transpose(1, 2)


def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal attention, and its heads side by side again."""
    mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    return mixed.transpose(1, 2).flatten(2)


def shifted(labels: Tensor) -> Tensor:
    """Each token's target is the next one; the last of a sequence has none."""
    return F.pad(labels, (0, 1), value=-100)[:, 1:].flatten()


def mean_loss(logits: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    """Under autocast the kernel's loss is fp32, as the library's is; else it had the dtype of the logits."""
    with torch.autocast(logits.device.type, torch.bfloat16):
        return cross_entropy(logits, target, reduction=reduction)


# --8<-- [end:kernels]
