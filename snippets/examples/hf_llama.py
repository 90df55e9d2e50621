"""Three changes to the training step of a Hugging Face Llama, as a patch for a training script that is not ours.

Each layer compiled, the loss from chunks of the logits, AdamW's update compiled. In place of the first, the layers by
Triton kernels. It needs transformers (5.17). Run `python -m snippets.examples.hf_llama` to see, on a GPU, that each
computes the same loss, and what it keeps in memory.
"""

import functools
import inspect
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kernels.add_rms_norm import add_rms_norm
from kernels.rms_norm import rms_norm
from kernels.rope import rope
from kernels.swiglu import swiglu
from snippets.examples.llama_causal import compiled_causal, layers_compiled
from snippets.examples.llama_functions import LinearCrossEntropy, Projections
from snippets.examples.llama_kernels import attend, heads, shifted
from snippets.examples.llama_model import LLAMA, Loss, eager, make_model, sharing
from snippets.examples.llama_optimizer import update_compiled

LLAMA_1B = LLAMA | {"tie_word_embeddings": True}
LLAMA_8B = LLAMA | {
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "intermediate_size": 14336,
    "max_position_embeddings": 8192,
}


# --8<-- [start:patch]
def patch(model: nn.Module, optimizer: torch.optim.Optimizer) -> Callable[[], None]:
    """All three changes. The training loop calls what this returns in place of optimizer.step()."""
    for layer in model.model.layers:
        layer.compile()
    keeping_columns(loss_in_chunks, model)
    return update_compiled(optimizer)


# --8<-- [end:patch]


# --8<-- [start:columns]
def keeping_columns(change: Callable[[nn.Module], nn.Module], model: nn.Module) -> nn.Module:
    """The change, with arguments named as before: the Trainer drops columns of a dataset that forward does not name."""
    named = inspect.signature(model.forward)
    change(model)
    model.forward.__signature__ = named  # type: ignore[attr-defined]
    return model


# --8<-- [end:columns]


# --8<-- [start:chunks]
def loss_in_chunks(model: nn.Module) -> nn.Module:
    """In training, the loss without the logits of all tokens. Layers stay the library's, with masks and adapters."""

    def hidden(input_ids: Tensor, attention_mask: Tensor | None, **options: object) -> Tensor:
        return model.model(input_ids=input_ids, attention_mask=attention_mask, **options).last_hidden_state

    return trained_by(hidden, model)


def trained_by(hidden: Callable[..., Tensor], model: nn.Module) -> nn.Module:
    """With labels and gradients, model(...).loss comes from these hidden states, and there are no logits."""
    from transformers.modeling_outputs import CausalLMOutputWithPast

    refuse_other_linears(model, "lm_head")
    plain = model.forward

    def forward(
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        num_items_in_batch: Tensor | int | None = None,
        **options: object,
    ) -> object:
        if labels is None or not torch.is_grad_enabled():  # generation and evaluation stay as they are
            if num_items_in_batch is not None:
                options["num_items_in_batch"] = num_items_in_batch
            return plain(input_ids=input_ids, attention_mask=attention_mask, labels=labels, **options)
        x = hidden(input_ids, attention_mask, **options)
        return CausalLMOutputWithPast(loss=chunked_loss(x, model.lm_head.weight, labels, num_items_in_batch))

    model.forward = forward
    return model


def chunked_loss(x: Tensor, weight: Tensor, labels: Tensor, items: Tensor | int | None = None) -> Tensor:
    """The mean over the tokens that count; or, as the Trainer asks where it accumulates gradients, the sum by items."""
    if torch.is_autocast_enabled(x.device.type):
        dtype = torch.get_autocast_dtype(x.device.type)
        x, weight = x.to(dtype), weight.to(dtype)
    target = shifted(labels)
    rows = max(1024, -(-len(target) // 4))  # four chunks: each adds once to the gradient of the weight
    loss = LinearCrossEntropy.apply(x.flatten(0, 1), weight, target, rows)
    return loss if items is None else loss * ((target != -100).sum() / items)


def refuse_other_linears(model: nn.Module, *ends: str) -> None:
    """Weights are used as they are: an adapter or a bias would be lost without an error."""
    for name, module in model.named_modules():
        if name.endswith(ends) and (type(module) is not nn.Linear or module.bias is not None):
            raise ValueError(f"{name}: expected a plain nn.Linear without bias, got {module}")


# --8<-- [end:chunks]


# --8<-- [start:kernels]
def with_kernels(model: nn.Module) -> nn.Module:
    """In training, layers and loss by Triton kernels. For plain training: whatever they cannot do, they refuse."""
    refuse_other_linears(model, "_proj")
    if model.config.hidden_act != "silu" or model.config.attention_dropout:
        raise ValueError("config: expected hidden_act='silu' and attention_dropout=0")
    return trained_by(functools.partial(by_kernels, model), model)


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

RUNGS: dict[str, Callable[[nn.Module], Loss]] = {
    "eager": eager,
    "causal": compiled_causal,
    "layers": layers_compiled,
    "loss": lambda model: eager(loss_in_chunks(model)),
    "all": lambda model: layers_compiled(loss_in_chunks(model)),
    "triton": lambda model: eager(with_kernels(model)),
}


def main() -> None:
    """The loss of two layers by each change, and the memory that a step's forward leaves for its backward."""
    if not torch.cuda.is_available():
        print("no CUDA GPU: the loss in chunks and the layers by kernels need one")
        return
    device = torch.device("cuda")
    torch.manual_seed(0)
    model = make_model(LLAMA_1B | {"num_hidden_layers": 2}, device, torch.bfloat16)
    tokens = torch.randint(int(LLAMA_1B["vocab_size"]), (2, 4096), device=device)
    print(f"{'':12}{'loss':>10}{'kept':>12}{'peak':>12}")
    for name, rung in RUNGS.items():
        loss_of = rung(sharing(model))
        for _ in range(2):  # the first call compiles
            model.zero_grad()
            before = torch.cuda.memory_allocated()
            torch.cuda.reset_peak_memory_stats()
            loss = loss_of(tokens)
            kept = torch.cuda.memory_allocated() - before
            loss.backward()
            peak = torch.cuda.max_memory_allocated() - before
        print(f"{name:12}{loss.item():10.4f}{kept / 2**20:8.0f} MiB{peak / 2**20:8.0f} MiB")


if __name__ == "__main__":
    main()
