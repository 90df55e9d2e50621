"""One training step of Hugging Face's Llama, rung by rung; and its attention alone, by implementation."""

import copy
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property, partial
from types import ModuleType
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend

from kernels.linear_cross_entropy import linear_cross_entropy
from snippets.examples import llama, llama_model, llama_optimizer
from snippets.examples.llama import RUNGS, preferring
from snippets.examples.llama_model import LLAMA, TINY, Loss, make_model, make_optimizer, sharing
from snippets.validation.timing import captured
from tests.benchmarks import wrong
from tests.benchmarks.bounds import bound, ceiling, gpu, memory
from tests.benchmarks.case import Call, Case, Point, Results, Variant, Workload

# Where layers are few, the loss and all gradients are held against float64; in the whole model the loss and the
# gradients of all norms: each depends on everything after it and, by its input, on everything before it.
WHOLE = {"batch": 4, "tokens": 4096, "layers": 16, "width": 2048, "vocabulary": 128256}
FEW = {"batch": 2, "tokens": 4096, "layers": 2, "width": 2048, "vocabulary": 8192}
HEADS = {"batch": 4, "tokens": 4096, "heads": 32, "kv_heads": 8, "head_dim": 64}
UNTRACED = (
    "eager", "rewritten", "rewritten-cudnn", "rewritten-wide", "rewritten-loss", "rewritten-lt", "rewritten-update",
    "rewritten-graph", "rewritten-ahead", "rewritten-compiled", "kernels", "layers", "liger",
)  # fmt: skip
TRACED = ("eager", "compile", "compile-causal")
CHECKED = (
    "eager", "rewritten", "rewritten-cudnn", "rewritten-loss", "rewritten-graph", "rewritten-ahead",
    "rewritten-compiled", "kernels", "layers", "liger", "compile-causal",
)  # fmt: skip
# A logit in bf16 is off by up to a 256th of itself; over thousands of tokens their mean is off by far less.
LOSS_IS_OFF_BY = 1e-3


def points(device: torch.device) -> Iterator[Point]:
    """The rungs that compile in seconds first; then those that trace the whole model, which takes minutes."""
    if device.type == "cpu":
        tiny = {"batch": 2, "tokens": 64, "layers": 2, "width": 64, "vocabulary": 256}
        yield Point(tiny, "float32", "both", ("calls",), ("eager", "layers"))
        return
    yield Point(WHOLE, "bfloat16", "both", ("sustained",), UNTRACED, name="step")
    yield Point(HEADS, "bfloat16", "both", ("sustained",), name="attention")
    yield Point(FEW, "bfloat16", "both", ("calls",), CHECKED, name="two layers")
    yield Point(WHOLE, "bfloat16", "both", ("sustained",), TRACED, "traced", "traced")


def prepare(point: Point, device: torch.device) -> Workload:
    """Random weights and tokens. The learning rate is zero: a step does all of its work and changes nothing."""
    dtype = getattr(torch, point.dtype)
    return alone(point, device, dtype) if "heads" in point.shape else steps(point, device)


def as_returned(results: object) -> Results:
    assert isinstance(results, dict)
    return results


# ---- the step -------------------------------------------------------------------------------------------------------


class Step:
    """A model with random tokens, and its step, which keeps the loss and the gradients that are looked at."""

    def __init__(self, point: Point, device: torch.device):
        self.batch, self.length, self.layers, width, vocabulary = point.shape.values()
        base = LLAMA if width == LLAMA["hidden_size"] else TINY
        self.sizes: dict[str, float] = dict(base) | {"num_hidden_layers": self.layers, "vocab_size": vocabulary}
        self.model = make_model(self.sizes, device, getattr(torch, point.dtype))
        self.optimizer = make_optimizer(self.model, lr=0.0)
        self.tokens = torch.randint(vocabulary, (self.batch, self.length), device=device)
        named = self.model.named_parameters()
        self.watched = [name for name, p in named if self.layers < 16 or p.dim() == 1]
        self.kept: list[Call] = []

    def of(self, rung: Callable[[nn.Module], Loss], update: Call | None = None) -> Call:
        return partial(self.call, rung(sharing(self.model)), update or self.optimizer.step)

    def call(self, loss_of: Loss, update: Call) -> Results:
        """As `llama.train_step`, but it keeps the gradients that are looked at."""
        loss = loss_of(self.tokens)
        loss.backward()
        update()
        found = {"loss": loss.detach()} | {f"{name}.grad": grads(self.model)[name] for name in self.watched}
        self.optimizer.zero_grad()
        return found

    def in_a_graph(self, call: Call) -> Call:
        """A graph holds addresses and no tensors: what the call reads, the update's state too, must outlive it."""
        self.kept.append(call)
        return captured(call)

    @cached_property
    def compiled_update(self) -> Call:
        """Of an optimizer of its own: what compiled code saw of the other's settings must stay. It takes a while."""
        return llama_optimizer.update_compiled(make_optimizer(self.model, lr=0.0))

    def ahead(self, rung: Callable[[nn.Module], Loss]) -> Call:
        """The parameters are those of all variants, so the hooks are there for the capture only."""
        torch.cuda.empty_cache()
        updates = llama_optimizer.UpdateAhead(self.model, lr=0.0)
        try:
            return self.in_a_graph(self.of(rung, updates.join))
        finally:
            updates.remove()

    def workload(self, builds: Mapping[str, Callable[[], Call]]) -> Workload:
        def wrongly(spoil: Callable[[nn.Module], Loss]) -> Callable[[Results], Results]:
            return lambda baseline: as_returned(self.of(spoil, lambda: None)())

        return Workload(
            variants={name: Variant(build, as_returned) for name, build in builds.items()},
            baseline="eager",
            reference=lambda: in_float64(self.model, self.tokens, self.watched),
            bytes_read=0,  # matrix products rule: no bound of traffic is drawn
            bytes_written=0,
            flops=sum(flops(self.sizes, self.batch, self.length).values()),
            largest_summands={"loss": LOSS_IS_OFF_BY / (2 * torch.finfo(torch.float32).eps)},
            wrong={name: wrongly(spoil) for name, spoil in WRONG.items()},
        )


def steps(point: Point, device: torch.device) -> Workload:
    step = Step(point, device)
    cudnn = RUNGS["rewritten-cudnn"]

    def update_compiled() -> Call:
        return step.of(cudnn, step.compiled_update)

    def in_a_graph() -> Call:
        torch.cuda.empty_cache()  # during capture what the allocator keeps is not given back
        return step.in_a_graph(update_compiled())

    def wide(model: nn.Module) -> Loss:
        """Half as many chunks: their logits take twice the memory, and the sum of their products half the traffic."""
        return preferring(llama.CUDNN_FIRST, lambda tokens: llama.written_out(model, tokens, llama.block, rows=8192))

    def by_cublaslt() -> Call:
        """Products by the other of two libraries, which may choose other kernels."""
        plain, library = step.of(cudnn), torch.backends.cuda.preferred_blas_library

        def call() -> object:
            before = library()
            library("cublaslt")
            try:
                return plain()
            finally:
                library(before)

        return call

    builds: dict[str, Callable[[], Call]] = {name: partial(step.of, rung) for name, rung in RUNGS.items()}
    return step.workload(
        builds
        | {
            "rewritten-wide": partial(step.of, wide),
            "rewritten-loss": partial(step.of, with_kernel_of_the_loss),
            "rewritten-lt": by_cublaslt,
            "rewritten-update": update_compiled,
            "rewritten-graph": in_a_graph,
            "rewritten-ahead": partial(step.ahead, cudnn),
            "liger": partial(step.of, liger),
        }
    )


def grads(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def flops(sizes: Mapping[str, float], batch: int, length: int) -> dict[str, int]:
    """Of a step. Products have twice their forward's in the backward; attention, over the causal half, five for two."""
    names = "hidden_size", "num_attention_heads", "num_key_value_heads", "num_hidden_layers"
    hidden, heads, kv, layers = (int(sizes[name]) for name in names)
    weights = layers * (
        2 * hidden**2 + 2 * hidden * hidden * kv // heads + 3 * hidden * int(sizes["intermediate_size"])
    )
    weights += hidden * int(sizes["vocab_size"])
    return {"products": 6 * batch * length * weights, "attention": layers * 7 * batch * length**2 * hidden}


def in_float64(model: nn.Module, tokens: Tensor, watched: list[str]) -> Results:
    """Sequence by sequence, and each layer's forward again in the backward: so the scores fit into memory."""
    exact = copy.deepcopy(model).double()
    for module in exact.modules():  # the library's norm and loss go through fp32, whatever they are given
        if type(module).__name__ == "LlamaRMSNorm":
            width, eps = module.weight.shape, module.variance_epsilon
            module.forward = partial(F.rms_norm, normalized_shape=width, weight=module.weight, eps=eps)
    exact.loss_function = lambda logits, labels, **_: F.cross_entropy(
        logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten()
    )
    exact.gradient_checkpointing_enable()
    total = torch.zeros((), dtype=torch.float64, device=tokens.device)
    for sequence in tokens.split(1):
        loss = exact(input_ids=sequence, labels=sequence).loss / len(tokens)
        loss.backward()
        total += loss.detach()
    found = grads(exact)
    reference = {"loss": total} | {f"{name}.grad": found[name] for name in watched}
    del exact, found, loss
    if tokens.is_cuda:
        torch.cuda.empty_cache()  # blocks of these sizes fit nothing that is to come
    return reference


class KernelOfTheLoss:
    """In place of the example's own: the weight's gradient is added up in the dtype of the weight, not in fp32."""

    @staticmethod
    def apply(x: Tensor, weight: Tensor, target: Tensor, rows: int) -> Tensor:
        with torch.autocast(x.device.type, x.dtype):  # for a loss in fp32, as the other variants have it
            return linear_cross_entropy(x, weight, target)


def with_kernel_of_the_loss(model: nn.Module) -> Loss:
    rewritten = RUNGS["rewritten-cudnn"](model)

    def loss(tokens: Tensor) -> Tensor:
        with patch.object(llama, "LinearCrossEntropy", KernelOfTheLoss):
            return rewritten(tokens)

    return loss


def liger(model: nn.Module) -> Loss:
    """Its documented call, which replaces names in the library's module as well: they are put back for the others."""
    from liger_kernel.transformers import apply_liger_kernel_to_llama
    from transformers.models.llama import modeling_llama as library

    before = dict(vars(library))
    apply_liger_kernel_to_llama(model=model)
    theirs = {name: value for name, value in vars(library).items() if before.get(name) is not value}

    def put(names: Mapping[str, object], into: ModuleType = library) -> None:
        for name, value in names.items():
            setattr(into, name, value)

    def loss(tokens: Tensor) -> Tensor:
        put(theirs)
        try:
            return model(input_ids=tokens, labels=tokens).loss
        finally:
            put({name: before[name] for name in theirs})

    put({name: before[name] for name in theirs})
    return loss


def not_causal(model: nn.Module) -> Loss:
    for layer in model.model.layers:
        layer.self_attn.is_causal = False
    return llama_model.eager(model)


def not_rotated(model: nn.Module) -> Loss:
    rotary = model.model.rotary_emb
    table = rotary.forward
    rotary.forward = lambda *arguments, **named: tuple(
        make(t) for make, t in zip((torch.ones_like, torch.zeros_like), table(*arguments, **named), strict=True)
    )
    return llama_model.eager(model)


def norms_too_large(model: nn.Module) -> Loss:
    for layer in model.model.layers:
        for norm in (layer.input_layernorm, layer.post_attention_layernorm):
            norm.forward = wrong.scaled(norm.forward, 1.1)
    return llama_model.eager(model)


def without_a_chunk(model: nn.Module) -> Loss:
    """The first eighth of the rows has no part in the loss."""

    def loss(tokens: Tensor) -> Tensor:
        labels = tokens.clone()
        labels.view(-1)[: labels.numel() // 8] = -100
        return model(input_ids=tokens, labels=labels).loss

    return loss


WRONG: dict[str, Callable[[nn.Module], Loss]] = {
    "the future not masked": not_causal,
    "not rotated": not_rotated,
    "norms 10% too large": norms_too_large,
    "an eighth of the rows left out of the loss": without_a_chunk,
}


# ---- attention alone ------------------------------------------------------------------------------------------------


def alone(point: Point, device: torch.device, dtype: torch.dtype) -> Workload:
    """Forward and backward, causal. q, k and v lie as the projections leave them: heads within a token."""
    batch, length, heads, kv_heads, head_dim = point.shape.values()

    def made(count: int) -> Tensor:
        return torch.randn(batch, length, count, head_dim, device=device).to(dtype).transpose(1, 2)

    q, k, v, dy = made(heads), made(kv_heads), made(kv_heads), made(heads)
    inputs = [t.requires_grad_() for t in (q, k, v)]
    repeats = heads // kv_heads
    mask = torch.ones(length, length, dtype=torch.bool, device=device).tril()[None, None]

    def call(attend: Callable[..., Tensor], *inputs: Tensor, dy: Tensor = dy) -> Results:
        y = attend(*inputs)
        found = torch.autograd.grad(y, inputs, dy)
        return dict(zip(("output", "q.grad", "k.grad", "v.grad"), (y.detach(), *found), strict=True))

    def repeated(t: Tensor) -> Tensor:
        return t.repeat_interleave(repeats, 1)

    def masked(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """As the library calls it where it has made a mask."""
        return F.scaled_dot_product_attention(q, repeated(k), repeated(v), attn_mask=mask)

    def forced(backend: SDPBackend) -> Callable[..., Tensor]:
        return lambda *inputs: preferring([backend], lambda _: causal(*inputs))(q)

    def reference() -> Results:
        """One sequence, and the heads that share a key, at a time."""
        found = {name: torch.empty_like(t, dtype=torch.float64) for name, t in call(causal, *inputs).items()}
        for b in range(batch):
            for h in range(kv_heads):
                own = slice(h * repeats, (h + 1) * repeats)
                parts = [q[b : b + 1, own], k[b : b + 1, h : h + 1], v[b : b + 1, h : h + 1]]
                exact = [t.detach().double().requires_grad_() for t in parts]
                some = call(masked, *exact, dy=dy[b : b + 1, own].double())
                for name, t in some.items():
                    found[name][b : b + 1, own if name in ("output", "q.grad") else slice(h, h + 1)] = t
        return found

    def wrongly(attend: Callable[..., Tensor]) -> Callable[[Results], Results]:
        return lambda baseline: call(attend, *inputs)

    calls: dict[str, Callable[..., Tensor]] = {
        "eager": causal,
        "cudnn": forced(SDPBackend.CUDNN_ATTENTION),
        "flash": forced(SDPBackend.FLASH_ATTENTION),
        "masked": masked,
    }
    return Workload(
        variants={
            name: Variant(partial(partial, call, attend, *inputs), as_returned) for name, attend in calls.items()
        },
        baseline="eager",
        reference=reference,
        bytes_read=0,
        bytes_written=0,
        flops=7 * batch * length**2 * heads * head_dim,
        wrong={
            "the future not masked": wrongly(partial(F.scaled_dot_product_attention, enable_gqa=True)),
            "5% too large": wrongly(wrong.scaled(causal)),
            "scores 10% too large": wrongly(lambda q, k, v: causal(1.1 * q, k, v)),
        },
    )


causal = partial(F.scaled_dot_product_attention, is_causal=True, enable_gqa=True)


RUN = {"case": "examples/llama", "shape": "4x4096x16x2048x128256"}
PEAK, COPY = ceiling("bfloat16", mode="sustained", **RUN), ceiling("copy", **RUN)
STEP = {"tokens": 16384, "layers": 16, "width": 2048, "inner": 8192, "vocabulary": 128256}
A_LAYER = "(2 * width**2 + 2 * width**2 // 4 + 3 * width * inner)"  # its weights
PRODUCTS = f"6 * tokens * (layers * {A_LAYER} + width * vocabulary)"
# All parameters and AdamW's two moments of them, in bf16.
parameters_and_state = bound("GB", f"3 * 2 * (layers * {A_LAYER} + 2 * width * vocabulary)", STEP)
# What the fastest step needs with the parameters and AdamW's state.
rewritten_needs = bound("GB", "step + state", step=memory("rewritten-update", "step"), state=parameters_and_state)
# What the library's step needs with the parameters and AdamW's state.
library_needs = bound("GB", "step + state", step=memory("eager", "step"), state=parameters_and_state)
# How many times as long attention takes with a mask as with the flag for a causal one.
mask_slower = bound("x", "masked / flag", masked=gpu("masked", "attention"), flag=gpu("eager", "attention"))
# The weights that take part in products: all but the table of embeddings.
multiplied_weights = bound("", f"layers * {A_LAYER} + width * vocabulary".replace("// 4", "// share"), STEP, share=4)
# The layers' products: for each weight and token two operations forward and four backward.
layer_flops = bound("TFLOP", f"6 * tokens * layers * {A_LAYER}", STEP)
# What the layers' products take at the sustained ceiling.
layer_products = bound("ms", f"6 * tokens * layers * {A_LAYER} / peak", STEP, peak=PEAK)
# The vocabulary's products: for each weight and token two operations forward and four backward.
vocabulary_flops = bound("TFLOP", "6 * tokens * width * vocabulary", STEP)
# What the vocabulary's products take at the sustained ceiling.
vocabulary_products = bound("ms", "6 * tokens * width * vocabulary / peak", STEP, peak=PEAK)
# What attention takes in all layers, by cuDNN's time alone.
attention_of_all_layers = bound("ms", "layers * attention", layers=16, attention=gpu("cudnn", "attention"))
# What moving SwiGLU's tensors takes, three forward and five backward.
moved_by_swiglu = bound("ms", "layers * (3 + 5) * tokens * inner * 2 / copy", STEP, copy=COPY)
# What moving AdamW's 14 bytes a parameter takes.
moved_by_adamw = bound("ms", f"14 * (layers * {A_LAYER} + 2 * width * vocabulary) / copy", STEP, copy=COPY)
# What moving the tensors of the residual adds and norms takes.
moved_by_norms = bound("ms", "layers * 2 * (4 + 4) * tokens * width * 2 / copy", STEP, copy=COPY)
# What reading the logits and writing their gradient takes.
moved_by_loss = bound("ms", "2 * tokens * vocabulary * 2 / copy", STEP, copy=COPY)
# What moving queries and keys takes for their rotation, forward and backward.
moved_by_rope = bound("ms", "layers * 2 * 2 * tokens * (32 + 8) * head * 2 / copy", STEP, head=64, copy=COPY)
products = bound("ms", f"{PRODUCTS} / peak", STEP, peak=PEAK)  # What all products take at the sustained ceiling.
# What all products would take at the rate of a burst.
products_in_burst = bound("ms", f"{PRODUCTS} / peak", STEP, peak=ceiling("bfloat16", mode="burst", **RUN))
# What all products at the sustained ceiling take, with cuDNN's attention.
products_and_attention = bound("ms", "products + attention", products=products, attention=attention_of_all_layers)
# What the fastest step takes beyond its products and attention.
beside_products_and_attention = bound(
    "ms", "step - parts", step=gpu("rewritten-update", "step"), parts=products_and_attention
)
# What all parts of the estimate take together.
all_parts = bound(
    "ms", "products_and_attention + swiglu + adamw + norms + loss + rope",
    products_and_attention=products_and_attention, swiglu=moved_by_swiglu, adamw=moved_by_adamw, norms=moved_by_norms,
    loss=moved_by_loss, rope=moved_by_rope,
)  # fmt: skip
all_logits = bound("GB", "tokens * vocabulary * 2", STEP)  # The logits of all tokens of a step, in bf16.
# How much shorter the step is with the compiler's AdamW than with the fused one.
gained_by_update = bound(
    "ms", "fused - compiled", fused=gpu("rewritten-cudnn", "step"), compiled=gpu("rewritten-update", "step")
)
# The inputs that `down_proj` keeps for its gradient, in all layers.
kept_by_down_proj = bound("GB", "layers * tokens * inner * 2", STEP)
# What one more SwiGLU forward a layer takes, three tensors each.
swiglu_again = bound("ms", "layers * 3 * tokens * inner * 2 / copy", STEP, copy=COPY)

LABELS = {
    "compile": {"label": "whole loss compiled", "short": "compiled", "role": "compile"},
    "compile-causal": {"label": "whole loss compiled, causality said", "short": "compiled, causal", "role": "compile"},
    "layers": {"label": "each layer compiled", "short": "layers compiled", "role": "compile-max"},
    "kernels": {"label": "four kernels of ours", "short": "four kernels", "role": "ours"},
    "rewritten": {"label": "rewritten with our kernels", "short": "rewritten", "role": "ours"},
    "rewritten-compiled": {"label": "rewritten, each layer compiled", "short": "rewritten, compiled", "role": "ours"},
    "rewritten-cudnn": {"label": "rewritten, cuDNN first", "short": "cuDNN first", "role": "ours"},
    "rewritten-update": {"label": "rewritten, AdamW compiled", "short": "AdamW compiled", "role": "ours"},
    "rewritten-graph": {"label": "rewritten, AdamW compiled, CUDA graph", "short": "CUDA graph", "role": "graph"},
    "rewritten-ahead": {"label": "rewritten, fused AdamW beside, CUDA graph", "short": "AdamW beside", "role": "graph"},
    "rewritten-loss": {"label": "rewritten, linear_cross_entropy", "short": "with kernel", "role": "ours"},
    "rewritten-wide": {"label": "rewritten, logits of 8192 rows", "short": "8192 rows", "role": "ours"},
    "rewritten-lt": {"label": "rewritten, products by cuBLASLt", "short": "cuBLASLt", "role": "ours"},
    "masked": {"label": "with a mask", "role": "other"},
}
CASE = Case(
    question="What is each step from the library's Llama to the fastest training step worth, in time and in memory?",
    check_at={
        "both": [
            {"batch": 2, "tokens": 64, "layers": 2, "width": 64, "vocabulary": 256},
            {"batch": 2, "tokens": 64, "layers": 2, "width": 64, "vocabulary": 256, "part": "traced"},
            {"batch": 1, "tokens": 256, "heads": 4, "kv_heads": 2, "head_dim": 64},
        ]
    },
)
