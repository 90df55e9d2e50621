"""Changes that can be made automatically, each to a copy of a module."""

import importlib.util
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch.overrides import TorchFunctionMode

from .calls import kind_of_mask
from .findings import Finding
from .graphs import is_attention
from .settings import precision_settings, products_in_tf32
from .subject import Subject

Change = Callable[[nn.Module], nn.Module]


# --8<-- [start:candidate]
@dataclass(frozen=True)
class Candidate:
    """A change: how it is made to a copy, how the reader makes it, and what it is for.

    Attributes:
        rounding: of the coarser numbers that it multiplies, where it does so. No bound of the module's own dtype holds
            then: the errors of both are told, and the reader decides.
        answers: the kinds of findings that it mends.
        during: the settings under which it runs.
        compiles: it is of no use to a module that is compiled anew at each call.
        runs: how many steps it takes until it runs as it will: a CUDA graph is recorded first, then replayed.
    """

    name: str
    code: str
    page: str
    change: Change
    answers: tuple[str, ...] = ()
    rounding: float = 0.0
    during: Callable[[], AbstractContextManager] = nullcontext
    compiles: bool = False
    runs: int = 1


# --8<-- [end:candidate]


class Inside(nn.Module):
    """A module that runs under a mode: what it holds is not changed."""

    def __init__(self, module: nn.Module, mode: Callable[[], AbstractContextManager]):
        super().__init__()
        self._orig_mod, self.mode = module, mode

    def forward(self, *inputs: Any, **named: Any) -> Any:
        with self.mode():
            return self._orig_mod(*inputs, **named)


class CausalFlag(TorchFunctionMode):
    """Attention with a causal mask becomes attention with a flag. In a call, each mask is looked at once."""

    def __init__(self) -> None:
        super().__init__()
        self.known: dict[tuple, tuple[str, Tensor]] = {}

    def __torch_function__(self, function: Callable, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = dict(kwargs or {})
        if function is F.scaled_dot_product_attention:
            mask = args[3] if len(args) > 3 else kwargs.get("attn_mask")
            if mask is not None and not torch.compiler.is_compiling():
                key = (mask.data_ptr(), tuple(mask.shape))
                if key not in self.known:
                    self.known[key] = kind_of_mask(mask), mask  # held, so that no other gets its address meanwhile
                if self.known[key][0] == "causal":
                    args = args[:3]
                    kwargs = {**kwargs, "attn_mask": None, "is_causal": True}
        return function(*args, **kwargs)


def compiled_with_flag(module: nn.Module) -> nn.Module:
    """Compiled, every mask of the captured graph that is causal, square and alike for all made a flag.

    Which masks are, the first run of the graph tells, as it was captured.
    """
    from torch._inductor.compile_fx import compile_fx

    def backend(graph: fx.GraphModule, inputs: list[Tensor]) -> Callable:
        state: dict[str, Callable] = {}

        def run(*given: Tensor) -> Any:
            if "compiled" not in state:
                causal = causal_nodes(graph, given)
                for node in causal:
                    node.kwargs = {**{k: v for k, v in node.kwargs.items() if k != "attn_mask"}, "is_causal": True}
                    node.args = node.args[:3]
                graph.graph.eliminate_dead_code()
                graph.recompile()
                state["compiled"] = compile_fx(graph, list(given))
            return state["compiled"](*given)

        return run

    return torch.compile(module, backend=backend)  # type: ignore[return-value]


def causal_nodes(graph: fx.GraphModule, inputs: tuple) -> list[fx.Node]:
    """The attentions of a graph whose mask is causal for these inputs."""
    found = []

    class Look(fx.Interpreter):
        def run_node(self, node: fx.Node) -> Any:
            if is_attention(node):
                args, kwargs = self.fetch_args_kwargs_from_env(node)
                mask = args[3] if len(args) > 3 else kwargs.get("attn_mask")
                if mask is not None and kind_of_mask(mask) == "causal":
                    found.append(node)
            return super().run_node(node)

    with torch.no_grad():
        Look(graph).run(*inputs)
    return found


class SiteKernels(TorchFunctionMode):
    """Calls of PyTorch that a kernel of this site does, too, are handed to the kernel."""

    def __torch_function__(self, function: Callable, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        replaced = self.replaced(function, args, kwargs)
        return replaced() if replaced else function(*args, **kwargs)

    def replaced(self, function: Callable, args: tuple, kwargs: dict) -> Callable[[], Tensor] | None:
        from kernels.cross_entropy import cross_entropy
        from kernels.layer_norm import layer_norm
        from kernels.rms_norm import rms_norm

        given = dict(zip(("x", "shape", "weight", "bias", "eps"), args, strict=False)) | kwargs
        if function is F.layer_norm and len(given["shape"] if "shape" in given else given["normalized_shape"]) == 1:
            return lambda: layer_norm(args[0], given.get("weight"), given.get("bias"), given.get("eps", 1e-5))
        if function is F.rms_norm and len(args) >= 2 and len(args[1]) == 1:
            names = dict(zip(("weight", "eps"), args[2:], strict=False)) | kwargs
            return lambda: rms_norm(args[0], names.get("weight"), names.get("eps"))
        if (
            function is F.cross_entropy
            and len(args) >= 2
            and args[0].dim() == 2
            and not set(kwargs) - {"ignore_index", "reduction"}
        ):
            return lambda: cross_entropy(*args[:2], **kwargs)
        return None


def with_site_norms(module: nn.Module) -> nn.Module:
    """Modules whose whole forward is an RMSNorm written out, as libraries have them, run the kernel instead."""
    from kernels.rms_norm import rms_norm

    for part in module.modules():
        eps = getattr(part, "variance_epsilon", None)
        if type(part).__name__.endswith("RMSNorm") and eps is not None and hasattr(part, "weight"):
            part.forward = lambda x, part=part, eps=eps: rms_norm(x, part.weight, eps)  # type: ignore[method-assign]
    return Inside(module, SiteKernels)


FUSED = ("chain", "norm", "norm-activation", "written-out", "gated-mlp", "rotary", "softmax-dropout", "host-bound")


def candidates(subject: Subject, findings: list[Finding]) -> Iterator[Candidate]:
    """What is worth trying on this module, given what was found."""
    yield Candidate(
        "torch.compile", "torch.compile(model)", "compiler/what-compile-does.md", compiled, FUSED, compiles=True
    )
    yield from for_masks(findings)
    if subject.device.type == "cuda":
        yield from on_a_gpu(subject, {finding.kind for finding in findings})
        yield Candidate(  # the last: what its graphs take from the allocator clouds the memory of others
            "torch.compile with CUDA graphs",
            "torch.compile(model, mode='reduce-overhead')",
            "compiler/what-compile-does.md#what-is-slow",
            lambda module: compiled(module, mode="reduce-overhead"),
            (*FUSED, "small-kernels"),
            compiles=True,
            runs=4,
        )


def for_masks(findings: list[Finding]) -> Iterator[Candidate]:
    """Causality as a flag, in eager code where a mask is found there, and in compiled code."""
    masks = [one for one in findings if one.kind == "mask" and one.weight == "finding"]
    if any("torch.compile" not in one.title for one in masks):
        yield Candidate(
            "causality as a flag",
            "F.scaled_dot_product_attention(q, k, v, is_causal=True)",
            "patterns/attention.md#one-kernel",
            lambda module: Inside(module, CausalFlag),
            ("mask",),
        )
    if masks:
        yield Candidate(
            "torch.compile, causality as a flag",
            "torch.compile(model), with is_causal=True said at the attention",
            "patterns/attention.md#compiled",
            compiled_with_flag,
            ("mask", *FUSED),
            compiles=True,
        )


def on_a_gpu(subject: Subject, kinds: set[str]) -> Iterator[Candidate]:
    """Kernels, a layout and dtypes that a CPU has no use for."""
    if kinds & {"norm", "norm-activation", "cross-entropy"} and importlib.util.find_spec("kernels"):
        yield Candidate(
            "kernels of this site",
            "kernels/rms_norm.py, layer_norm.py, cross_entropy.py",
            "kernels/rms-norm.md",
            with_site_norms,
            ("norm", "cross-entropy"),
        )
    if any(isinstance(part, nn.Conv2d) for part in subject.module.modules()):
        yield Candidate(
            "channels last",
            "model.to(memory_format=torch.channels_last)",
            "compiler/fusion.md#layout",
            lambda module: module.to(memory_format=torch.channels_last),
            ("copy",),
        )
    dtypes = {parameter.dtype for parameter in subject.module.parameters()}
    if dtypes == {torch.float32} and not products_in_tf32():
        roofline = "validation/roofline.md#two-bounds-and-the-point-where-they-meet"
        precision = ("precision",)
        high = "torch.set_float32_matmul_precision('high')"
        yield Candidate("TF32", high, roofline, lambda module: module, precision, 2.0**-11, tf32)
        yield Candidate(
            "bfloat16 by autocast",
            "with torch.autocast('cuda', torch.bfloat16): …",
            roofline,
            lambda module: Inside(module, lambda: torch.autocast("cuda", torch.bfloat16)),
            precision,
            2.0**-8,
        )


def compiled(module: nn.Module, **options: Any) -> nn.Module:
    return torch.compile(module, **options)  # type: ignore[return-value]


class tf32:  # a setting, for a while
    """Products of fp32 matrices on tensor cores, in 11 bits."""

    def __enter__(self) -> None:
        self.before = [(put, get()) for get, put in precision_settings()]
        torch.set_float32_matmul_precision("high")

    def __exit__(self, *error: object) -> None:
        for put, value in self.before:
            put(value)
