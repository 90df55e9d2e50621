"""One training step of Hugging Face's Llama, from slow to fast: every rung changes the model as a reader would.

It needs transformers (5.17). Run `python -m snippets.examples.llama` to see what becomes of causality under tracing
and, on a GPU, which kernels a step runs.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from kernels.add_rms_norm import add_rms_norm
from kernels.rms_norm import rms_norm
from kernels.rope import rope
from kernels.swiglu import swiglu
from snippets.examples.llama_causal import compiled_causal, layers_compiled, say_causal
from snippets.examples.llama_functions import LinearCrossEntropy, Projections
from snippets.examples.llama_kernels import attend, heads, kernels_swapped, shifted
from snippets.examples.llama_model import (
    LLAMA,
    TINY,
    Loss,
    compiled,
    eager,
    make_model,
    make_optimizer,
    sharing,
    train_step,
)
from snippets.examples.llama_said import first_guard_open, layers_traced, said, show, traced
from snippets.examples.llama_trace import milliseconds


# --8<-- [start:written-out]
def written_out(
    model: nn.Module, tokens: Tensor, block: Callable[..., tuple[Tensor, Tensor]], rows: int = 4096
) -> Tensor:
    """The model's loss from its own parameters, a residual add and the norm after it in one kernel."""
    inner = model.model
    h = inner.embed_tokens(tokens)
    cos_sin = inner.rotary_emb(h, position_ids=torch.arange(tokens.shape[1], device=h.device)[None])
    norms = [layer.input_layernorm for layer in inner.layers] + [inner.norm]
    normed = rms_norm(h, norms[0].weight, norms[0].variance_epsilon)
    for layer, norm in zip(inner.layers, norms[1:], strict=True):
        normed, h = block(layer, norm, normed, h, *cos_sin)
    return LinearCrossEntropy.apply(normed.flatten(0, 1), model.lm_head.weight, shifted(tokens), rows)


def block(
    layer: nn.Module, next_norm: nn.Module, normed: Tensor, h: Tensor, cos: Tensor, sin: Tensor
) -> tuple[Tensor, Tensor]:
    """From the normed residual stream and the stream itself to those after the layer."""
    own, mlp, norm = layer.self_attn, layer.mlp, layer.post_attention_layernorm
    # keys and values are a quarter as wide as queries each: a product for both fills the GPU, where one alone would not
    keys_and_values = torch.cat((own.k_proj.weight, own.v_proj.weight))
    q, kv = Projections.apply(normed, own.q_proj.weight, keys_and_values)
    q, k, v = (heads(t, own.head_dim) for t in (q, *kv.chunk(2, -1)))
    mixed = own.o_proj(attend(*rope(q, k, cos, sin), v))
    normed, h = add_rms_norm(mixed, h, norm.weight, norm.variance_epsilon)
    hidden = swiglu(*Projections.apply(normed, mlp.gate_proj.weight, mlp.up_proj.weight))
    return add_rms_norm(mlp.down_proj(hidden), h, next_norm.weight, next_norm.variance_epsilon)


def rewritten(model: nn.Module) -> Loss:
    return lambda tokens: written_out(model, tokens, block)


def rewritten_compiled(model: nn.Module) -> Loss:
    """The same, each layer compiled: the kernels stay what they are, what is around them is fused."""
    compiled_block = torch.compile(block, dynamic=False)
    return lambda tokens: written_out(model, tokens, compiled_block)


# --8<-- [end:written-out]


# --8<-- [start:backend]
CUDNN_FIRST = [SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


def preferring(backends: list[SDPBackend], loss_of: Loss) -> Loss:
    """The same loss, attention by the first of these that can do it. The backward goes by what the forward chose."""

    def loss(tokens: Tensor) -> Tensor:
        with sdpa_kernel(backends, set_priority=True):
            return loss_of(tokens)

    return loss


def rewritten_cudnn(model: nn.Module) -> Loss:
    return preferring(CUDNN_FIRST, rewritten(model))


# --8<-- [end:backend]

RUNGS: dict[str, Callable[[nn.Module], Loss]] = {
    "eager": eager,
    "compile": compiled,
    "compile-causal": compiled_causal,
    "layers": layers_compiled,
    "kernels": kernels_swapped,
    "rewritten": rewritten,
    "rewritten-compiled": rewritten_compiled,
    "rewritten-cudnn": rewritten_cudnn,
}


def main() -> None:
    """What attention is told; on a GPU also what two layers take, by class of kernel."""
    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda" if on_gpu else "cpu")
    torch.manual_seed(0)
    model = make_model(TINY, device, torch.float32)
    tokens = torch.randint(TINY["vocab_size"], (1, 32), device=device)
    print("==== said")
    print(f"{'':36}{'attn_mask':24}{'is_causal':12}heads of k")
    show("called as it is", said(eager(sharing(model)), tokens))
    show("the whole loss traced", traced(sharing(model), tokens))
    show("traced, causality said", traced(say_causal(sharing(model)), tokens))
    show("each layer traced", said(layers_traced(sharing(model)), tokens))
    print("==== mended")
    print(f"{'':36}{'attn_mask':24}{'is_causal':12}heads of k")
    for use_cache in (True, False):
        model.config.use_cache = use_cache
        show(f"as released, use_cache={use_cache}", traced(sharing(model), tokens))
        with first_guard_open():
            show(f"first guard open, use_cache={use_cache}", traced(sharing(model), tokens))
    model.config.use_cache = False
    if on_gpu:
        print("==== kernels")
        kernels(device)
        print("==== captured")
        show("captured in a CUDA graph", in_a_graph(eager(sharing(model)), tokens))
        show("captured, causality said", in_a_graph(eager(say_causal(sharing(model))), tokens))


def in_a_graph(loss_of: Loss, tokens: Tensor) -> tuple[str, str, int]:
    """What attention is given while a CUDA graph is captured."""
    with torch.no_grad():
        loss_of(tokens)
        torch.cuda.synchronize()
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            return said(loss_of, tokens)


def kernels(device: torch.device) -> None:
    """Two layers and a small vocabulary: attention and all else of a layer as in the large model."""
    sizes = LLAMA | {"num_hidden_layers": 2, "vocab_size": 8192}
    model = make_model(sizes, device, torch.bfloat16)
    optimizer = make_optimizer(model, lr=0.0)
    tokens = torch.randint(sizes["vocab_size"], (4, 4096), device=device)
    steps = {name: RUNGS[name] for name in ("eager", "compile", "compile-causal", "rewritten", "rewritten-cudnn")}
    print(f"{'':24}{'attention':>12}{'products':>12}{'optimizer':>12}{'else':>12}")
    ran = {}
    for name, rung in steps.items():
        times, names = milliseconds(partial(train_step, rung(sharing(model)), optimizer, tokens))
        ran[name] = names.get("attention", set())
        shown = "".join(f"{times[kind]:9.1f} ms" for kind in ("attention", "products", "optimizer", "everything else"))
        print(f"{name:24}{shown}", flush=True)
    print("==== names")
    for name in ("eager", "compile", "rewritten-cudnn"):
        print(f"{name}:")
        for kernel in sorted(ran[name]):
            print(f"    {kernel[:100]}")


if __name__ == "__main__":
    main()
