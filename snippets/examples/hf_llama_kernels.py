"""The layers by Triton kernels, in training."""

import functools
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kernels.add_rms_norm import add_rms_norm
from kernels.rms_norm import rms_norm
from kernels.rope import rope
from kernels.swiglu import swiglu
from snippets.examples.hf_llama_chunks import trained_by
from snippets.examples.llama_functions import Projections
from snippets.examples.llama_kernels import attend, heads


# --8<-- [start:kernels]
def with_kernels(model: nn.Module) -> nn.Module:
    """In training, layers and loss by Triton kernels. For plain training: whatever they cannot do, they refuse."""
    if model.config.hidden_act != "silu" or model.config.attention_dropout:
        raise ValueError("config: expected hidden_act='silu' and attention_dropout=0")
    return trained_by(by_kernels, model, "_proj", "lm_head")


def by_kernels(model: nn.Module, input_ids: Tensor, attention_mask: Tensor | None, **options: object) -> Tensor:
    """The hidden states after the last norm; a residual add and the norm after it are one kernel."""
    given = [name for name, value in options.items() if value is not None and value is not False]
    if given or torch.is_autocast_enabled(input_ids.device.type):
        raise ValueError(f"with_kernels: expected input_ids, attention_mask and labels only, got {given or 'autocast'}")
    refuse_left_padding(attention_mask)
    inner = model.model
    h = inner.embed_tokens(input_ids)
    cos_sin = inner.rotary_emb(h, position_ids=torch.arange(input_ids.shape[1], device=h.device)[None])
    norms = [layer.input_layernorm for layer in inner.layers] + [inner.norm]
    normed = rms_norm(h, norms[0].weight, norms[0].variance_epsilon)
    for layer, norm in zip(inner.layers, norms[1:], strict=True):
        normed, h = by_kernels_layer(layer, norm, normed, h, *cos_sin)
    return normed


def by_kernels_layer(
    layer: nn.Module, next_norm: nn.Module, normed: Tensor, h: Tensor, cos: Tensor, sin: Tensor
) -> tuple[Tensor, Tensor]:
    own, mlp, norm = layer.self_attn, layer.mlp, layer.post_attention_layernorm
    # one product for keys and values fills the GPU, where each alone would not
    keys_and_values = torch.cat((own.k_proj.weight, own.v_proj.weight))
    q, kv = Projections.apply(normed, own.q_proj.weight, keys_and_values)
    k, v = kv.chunk(2, -1)
    # attention keeps v for its backward: a view would keep the keys, too
    q, k, v = (heads(t, own.head_dim) for t in (q, k, v.contiguous()))
    mixed = own.o_proj(attend(*rope(q, k, cos, sin), v))
    normed, h = add_rms_norm(mixed, h, norm.weight, norm.variance_epsilon)
    gated = Gated.apply(normed, mlp.gate_proj.weight, mlp.up_proj.weight, mlp.down_proj.weight)
    return add_rms_norm(gated, h, next_norm.weight, next_norm.variance_epsilon)


def refuse_left_padding(mask: Tensor | None) -> None:
    """Causal attention never looks right, so padding there changes no token. Its labels have to be -100."""
    if mask is not None and (mask.dim() != 2 or bool((mask[:, 1:] > mask[:, :-1]).any())):
        raise ValueError("attention_mask: expected None, or padding on the right of each row")


# --8<-- [end:kernels]


# --8<-- [start:gated]
class Gated(torch.autograd.Function):
    """down(silu(gate(x)) * up(x)). The input of `down` is not kept: the backward computes it with the gradients."""

    @staticmethod
    def forward(ctx, x: Tensor, gate_weight: Tensor, up_weight: Tensor, down_weight: Tensor) -> Tensor:
        gate, up = F.linear(x, gate_weight), F.linear(x, up_weight)
        ctx.save_for_backward(x, gate, up, gate_weight, up_weight, down_weight)
        return F.linear(swiglu(gate, up), down_weight)

    @staticmethod
    def backward(ctx, dy: Tensor) -> tuple[Tensor, ...]:
        x, gate, up, gate_weight, up_weight, down_weight = ctx.saved_tensors
        x, dy, gate, up = (t.flatten(0, -2) for t in (x, dy, gate, up))
        dgate, dup, hidden = gated_again()(dy @ down_weight, gate, up)
        dx = dgate @ gate_weight
        dx.addmm_(dup, up_weight)  # autograd would write a second product, and add it in a further kernel
        return dx.view(ctx.saved_tensors[0].shape), dgate.T @ x, dup.T @ x, dy.T @ hidden


@functools.cache
def gated_again() -> Callable[..., tuple[Tensor, ...]]:
    """One kernel: three tensors read, three written."""

    def again(dhidden: Tensor, gate: Tensor, up: Tensor) -> tuple[Tensor, ...]:
        d, g, u = dhidden.float(), gate.float(), up.float()
        share = torch.sigmoid(g)
        value = g * share
        results = d * u * (share + value * (1 - share)), d * value, value * u
        return tuple(t.to(gate.dtype) for t in results)

    return torch.compile(again)


# --8<-- [end:gated]
