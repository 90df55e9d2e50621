"""One training step of Hugging Face's Llama, from slow to fast: every rung changes the model as a reader would.

It needs transformers (5.17). Run `python -m snippets.examples.llama` to see what becomes of causality under tracing
and, on a GPU, which kernels a step runs.
"""

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from types import MethodType

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from kernels.add_rms_norm import add_rms_norm
from kernels.cross_entropy import cross_entropy
from kernels.rms_norm import rms_norm
from kernels.rope import rope
from kernels.swiglu import swiglu

Loss = Callable[[Tensor], Tensor]  # of tokens (batch, length)

LLAMA = {
    "hidden_size": 2048,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 8192,
    "vocab_size": 128256,
    "max_position_embeddings": 4096,
}
TINY = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 128,
    "vocab_size": 256,
    "max_position_embeddings": 128,
    "initializer_range": 0.1,  # with the usual weights so few numbers would hardly tell one token from another
}


# --8<-- [start:model]
def make_model(sizes: Mapping[str, float], device: torch.device, dtype: torch.dtype) -> nn.Module:
    """The library's own model with random weights, as it comes."""
    from transformers import LlamaConfig, LlamaForCausalLM

    with torch.device(device):
        # no cache of keys and values: it is for generation, and the library's Trainer turns it off, too
        model = LlamaForCausalLM(LlamaConfig(**sizes, use_cache=False, attn_implementation="sdpa"))
    for parameter in model.parameters():  # model.to(dtype) would round the frequencies of the rotary embedding, too
        parameter.data = parameter.data.to(dtype)
    return model.train()


def make_optimizer(model: nn.Module, lr: float = 1e-4) -> torch.optim.Optimizer:
    """AdamW in one kernel for many parameters; capturable: a CUDA graph may hold its step."""
    fused = next(model.parameters()).is_cuda
    return torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.1, fused=fused, capturable=fused)


def train_step(loss_of: Loss, optimizer: torch.optim.Optimizer, tokens: Tensor) -> Tensor:
    loss = loss_of(tokens)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach()


# --8<-- [end:model]


# --8<-- [start:eager]
def eager(model: nn.Module) -> Loss:
    """As the library documents it. The labels are the tokens: it shifts them itself."""
    return lambda tokens: model(input_ids=tokens, labels=tokens).loss


# --8<-- [end:eager]


# --8<-- [start:compiled]
def compiled(model: nn.Module) -> Loss:
    """The whole loss in one graph."""
    return torch.compile(eager(model), dynamic=False)


# --8<-- [end:compiled]


# --8<-- [start:causal]
def no_mask(*_: object, attention_mask: Tensor | None = None, **__: object) -> None:
    """What the library then passes to attention in place of a mask. Padding would be lost: refuse it."""
    if attention_mask is not None:
        raise ValueError("attention_mask: expected none, since attention here is causal and knows of no padding")


def say_causal(model: nn.Module) -> nn.Module:
    """Attention without a mask: then the library's own function sets is_causal, traced or not."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    AttentionInterface.register("causal", sdpa_attention_forward)
    AttentionMaskInterface.register("causal", no_mask)
    model.set_attn_implementation("causal")
    return model


def compiled_causal(model: nn.Module) -> Loss:
    return compiled(say_causal(model))


# --8<-- [end:causal]


def layers_compiled(model: nn.Module) -> Loss:
    """The mask is made outside of what is traced, and one graph serves all layers."""
    for layer in model.model.layers:
        layer.compile(dynamic=False)
    return eager(model)


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


# --8<-- [start:loss]
class LinearCrossEntropy(torch.autograd.Function):
    """mean_loss(x @ weight.T, target), some rows at a time: the logits of all rows never exist together.

    A row's loss and gradient need that row's logits only, so nothing is approximated. The gradient of the weight is a
    sum over rows: its parts are added in fp32. It is computed with the loss; the backward multiplies by what comes in.
    """

    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, target: Tensor, rows: int) -> Tensor:
        count = (target != -100).sum()
        dx, dweight = torch.empty_like(x), torch.empty_like(weight, dtype=torch.promote_types(x.dtype, torch.float32))
        total = torch.zeros((), dtype=dweight.dtype, device=x.device)
        for start in range(0, len(x), rows):
            here = slice(start, start + rows)
            part, classes = x[here], target[here]
            with torch.enable_grad():
                logits = (part.detach() @ weight.detach().T).requires_grad_()
                loss = mean_loss(logits, classes, reduction="sum")
            (dlogits,) = torch.autograd.grad(loss, logits)
            total += loss.detach()
            del logits, loss
            torch.mm(dlogits, weight, out=dx[here])
            add_product(dweight, dlogits.T, part, beta=float(start > 0))
            del dlogits
        ctx.save_for_backward(dx, dweight, count)
        ctx.dtype = weight.dtype
        return total / count

    @staticmethod
    def backward(ctx, dloss: Tensor) -> tuple[Tensor, Tensor, None, None]:
        dx, dweight, count = ctx.saved_tensors
        scale = dloss / count
        # one rounding, no fp32 copy beside it
        return dx * scale, torch.mul(dweight, scale, out=torch.empty_like(dweight, dtype=ctx.dtype)), None, None


def add_product(total: Tensor, a: Tensor, b: Tensor, beta: float) -> None:
    """total = beta * total + a @ b, in the dtype of the total; with beta = 0 nobody reads what it was."""
    if a.is_cuda and a.dtype != total.dtype:
        torch.addmm(total, a, b, out_dtype=total.dtype, beta=beta, out=total)
    else:
        total.addmm_(a.to(total.dtype), b.to(total.dtype), beta=beta)


# --8<-- [end:loss]


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


class Projections(torch.autograd.Function):
    """Several linear layers of one input. The products of the backward add to the input's gradient themselves."""

    @staticmethod
    def forward(ctx, x: Tensor, *weights: Tensor) -> tuple[Tensor, ...]:
        ctx.save_for_backward(x, *weights)
        return tuple(F.linear(x, weight) for weight in weights)

    @staticmethod
    def backward(ctx, *grads: Tensor) -> tuple[Tensor, ...]:
        x, *weights = ctx.saved_tensors
        x, (first, *others) = x.flatten(0, 1), (grad.flatten(0, 1) for grad in grads)
        dx = first @ weights[0]
        for grad, weight in zip(others, weights[1:], strict=True):
            dx.addmm_(grad, weight)  # autograd would write each product, and add them in further kernels
        return dx.view(ctx.saved_tensors[0].shape), *(grad.T @ x for grad in (first, *others))


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


# --8<-- [start:update]
def update_compiled(optimizer: torch.optim.Optimizer) -> Callable[[], None]:
    """AdamW as the compiler makes it of plain operations: one kernel for many parameters, too."""
    group = optimizer.param_groups[0]
    group["fused"], group["foreach"] = False, True
    return torch.compile(optimizer.step)


# --8<-- [end:update]


# --8<-- [start:ahead]
class UpdateAhead:
    """AdamW for each part of the model as soon as it has its gradients: what is left of the backward needs none of it.

    On a GPU the updates run on a stream of their own, beside the rest of the backward; `join` waits for them.
    """

    def __init__(self, model: nn.Module, lr: float = 1e-4):
        self.stream = torch.cuda.Stream() if next(model.parameters()).is_cuda else None
        parts = model.model.embed_tokens, *model.model.layers, model.model.norm, model.lm_head
        self.hooks = [hook for part in parts for hook in self.watched(part, make_optimizer(part, lr))]

    def watched(self, part: nn.Module, optimizer: torch.optim.Optimizer) -> list:
        parameters = list(part.parameters())
        missing = len(parameters)

        def arrived(_: Tensor) -> None:
            nonlocal missing
            missing -= 1
            if not missing:
                missing = len(parameters)
                with self.beside():
                    optimizer.step()

        return [p.register_post_accumulate_grad_hook(arrived) for p in parameters]

    @contextmanager
    def beside(self) -> Iterator[None]:
        if self.stream is None:
            yield
            return
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            yield

    def join(self) -> None:
        if self.stream is not None:
            torch.cuda.current_stream().wait_stream(self.stream)

    def remove(self) -> None:
        for hook in self.hooks:
            hook.remove()


# --8<-- [end:ahead]

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


def sharing(model: nn.Module) -> nn.Module:
    """Another model with the same parameters, for a rung to change: no second copy of them."""
    return copy.deepcopy(model, {id(parameter): parameter for parameter in model.parameters()})


# --8<-- [start:said]
def said(loss_of: Loss, tokens: Tensor) -> tuple[str, str, int]:
    """What attention is given in the first layer: the mask, is_causal, and how many heads the keys have."""
    found = []
    plain = F.scaled_dot_product_attention

    def watched(query: Tensor, key: Tensor, *rest: object, **options: object) -> Tensor:
        found.append((key, options))
        return plain(query, key, *rest, **options)

    with replaced(F, "scaled_dot_product_attention", watched):
        loss_of(tokens)
    key, options = found[0]
    mask = options.get("attn_mask")
    shown = "none" if mask is None else f"{str(mask.dtype).removeprefix('torch.')} {tuple(mask.shape)}"
    return shown, str(options["is_causal"]), key.shape[1]


def traced(model: nn.Module, tokens: Tensor) -> tuple[str, str, int]:
    """The same, as Dynamo's graph of the whole loss has it."""
    seen = []

    def look(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable:
        seen.extend(node for node in graph.graph.nodes if node.target is F.scaled_dot_product_attention)
        return graph.forward

    torch._dynamo.reset()
    torch.compile(eager(model), backend=look, dynamic=False)(tokens)
    key, options = seen[0].args[1], seen[0].kwargs
    mask = options.get("attn_mask")
    if mask is None:
        return "none", str(options["is_causal"]), key.meta["example_value"].shape[1]
    mask = mask.meta["example_value"]
    shown = f"{str(mask.dtype).removeprefix('torch.')} {tuple(mask.shape)}"
    return shown, str(options["is_causal"]), key.meta["example_value"].shape[1]


# --8<-- [end:said]


# --8<-- [start:mended]
@contextmanager
def first_guard_open() -> Iterator[None]:
    """The change that pull request 48975 describes: that there is no padding is known while tracing, too.

    On torch 2.11 it changes nothing: there `is_exporting` says yes whenever Dynamo traces.
    """
    from transformers import masking_utils

    plain = masking_utils._ignore_causal_mask_sdpa

    def ignore(padding_mask: Tensor | None, q_length: int, kv_length: int, *rest: object, **options: object) -> bool:
        if padding_mask is None and not torch.compiler.is_exporting():
            return q_length == 1 or q_length == kv_length
        return plain(padding_mask, q_length, kv_length, *rest, **options)

    with replaced(masking_utils, "_ignore_causal_mask_sdpa", ignore):
        yield


# --8<-- [end:mended]


@contextmanager
def replaced(where: object, name: str, by: object) -> Iterator[None]:
    before = getattr(where, name)
    setattr(where, name, by)
    try:
        yield
    finally:
        setattr(where, name, before)


# --8<-- [start:trace]
CLASSES = {  # of kernels, by what their names contain; the first that fits
    "everything else": ("triton_",),  # Inductor's, which are named after all that they fuse
    "attention": ("flash", "fmha", "sdpa", "attention", "cudnn"),
    "optimizer": ("adam", "multi_tensor"),
    "products": ("gemm", "nvjet", "cutlass", "splitk"),
}


def milliseconds(step: Callable[[], object]) -> tuple[dict[str, float], dict[str, set[str]]]:
    """GPU time of one call by class of kernel, and the names of attention's kernels."""
    from torch.profiler import ProfilerActivity, profile

    for _ in range(3):
        step()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as trace:
        step()
        torch.cuda.synchronize()
    times, names = dict.fromkeys(CLASSES, 0.0), {}
    for event in trace.events():
        if event.device_type.name == "CUDA":
            low = event.name.lower()
            kind = next((k for k, parts in CLASSES.items() if any(p in low for p in parts)), "everything else")
            times[kind] += event.time_range.elapsed_us() / 1e3
            names.setdefault(kind, set()).add(event.name)
    return times, names


# --8<-- [end:trace]


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


def show(what: str, found: tuple[str, str, int]) -> None:
    mask, is_causal, heads = found
    print(f"{what:36}{mask:24}{is_causal:12}{heads}")


def layers_traced(model: nn.Module) -> Loss:
    """As `layers_compiled`, but what is traced runs as it is, so that one can see what it is given."""
    for layer in model.model.layers:
        layer.compile(backend="eager", dynamic=False)
    return eager(model)


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
