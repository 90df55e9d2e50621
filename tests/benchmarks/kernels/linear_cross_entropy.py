"""Linear layer and cross-entropy, a step: how close to three matmuls, and in how much memory beside the gradients."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels import linear_cross_entropy as kernel
from tests.benchmarks import sides, wrong
from tests.benchmarks.bounds import bound
from tests.benchmarks.case import Case, Point, Workload

# tokens, width of their hidden states, vocabulary: of Llama 3 8B; of Llama 3.2 1B; of Llama 2 7B; few tokens
LARGE = {
    "typical": (8192, 4096, 128256), "narrow": (8192, 2048, 128256), "32k vocabulary": (8192, 4096, 32000),
    "few tokens": (1024, 4096, 128256),
}  # fmt: skip
OPTIONS = "options"  # label smoothing, z-loss and a soft cap
LOSSES = "losses"  # a loss for each token, and a factor for each


def points(device: torch.device) -> Iterator[Point]:
    if device.type == "cpu":
        shape = {"tokens": 256, "hidden": 64, "vocabulary": 1024}
        yield Point(shape, "float32", "both", modes=("calls",), variants=("eager", "compile"))
        return
    for name, sizes in LARGE.items():
        yield Point(shaped(sizes), "bfloat16", "both", modes=("sustained", "calls"), name=f"{name} step")
    yield Point(shaped(LARGE["typical"]), "bfloat16", "forward", modes=("sustained",), name="typical")
    for part in (OPTIONS, LOSSES):
        yield Point(shaped(LARGE["narrow"]), "bfloat16", "both", ("sustained",), part=part, name=f"{part} step")


def shaped(sizes: tuple[int, int, int]) -> dict[str, int]:
    return dict(zip(("tokens", "hidden", "vocabulary"), sizes, strict=True))


def prepare(point: Point, device: torch.device) -> Workload:
    """A sweep times forwards that compute the gradients too: as part "step"."""
    if point.part == "step":
        point = replace(point, direction="both")
    tokens, width, vocabulary = point.shape.values()
    dtype, training = getattr(torch, point.dtype), point.direction != "forward"
    hidden = torch.randn(tokens, width, device=device).to(dtype)
    # logits twice as far apart as normal numbers: else little of the gradient is anywhere but at the target
    weight = (torch.randn(vocabulary, width, device=device) * 2 / width**0.5).to(dtype)
    target = torch.randint(0, vocabulary, (tokens,), device=device)
    options: dict[str, Any] = {}
    if point.part == OPTIONS:
        options = {"label_smoothing": 0.1, "z_loss": 1e-4, "softcap": 30.0}
    each = point.part == LOSSES
    dloss = torch.rand(tokens, device=device).to(dtype) if each else torch.ones((), device=device, dtype=dtype)
    function = partial(plain, reduction="none" if each else "mean", **options)
    ours = partial(kernel.linear_cross_entropy, reduction="none" if each else "mean", **options)
    functions: dict[str, sides.Find | sides.Side] = {"eager": lambda: function, "ours": lambda: ours}
    if not each:
        functions["liger"] = partial(liger, **options)
    if not point.part:
        functions["torch"] = torch_in_chunks
    return sides.workload(
        point,
        kernel,
        {"hidden": hidden, "weight": weight},
        functions,
        rest=(target,),
        bytes_read=hidden.nbytes + weight.nbytes,
        bytes_written=hidden.nbytes + weight.nbytes if training else 0,
        flops=(6 if training else 2) * tokens * width * vocabulary,
        mix="copy" if training else "read",
        grads=(dloss,),
        wrong=wrong_functions(point.direction, function),
    )


def plain(
    hidden: Tensor, weight: Tensor, target: Tensor, label_smoothing: float = 0.0, z_loss: float = 0.0,
    softcap: float = 0.0, reduction: str = "mean",
) -> Tensor:  # fmt: skip
    """As most models have it; a soft cap and a z-loss in fp32."""
    logits = F.linear(hidden, weight)
    if softcap:
        logits = softcap * torch.tanh(logits / softcap)
    losses = F.cross_entropy(logits, target, label_smoothing=label_smoothing, reduction=reduction)
    if z_loss:
        sums = torch.logsumexp(logits if logits.dtype == torch.float64 else logits.float(), -1)
        losses = losses + (z_loss * sums.square().mean()).to(losses.dtype)
    return losses


def liger(label_smoothing: float = 0.0, z_loss: float = 0.0, softcap: float = 0.0) -> sides.Function:
    from liger_kernel.transformers.functional import liger_fused_linear_cross_entropy

    def function(hidden: Tensor, weight: Tensor, target: Tensor) -> Tensor:
        returned = liger_fused_linear_cross_entropy(
            hidden, weight, target, label_smoothing=label_smoothing, lse_square_scale=z_loss, softcap=softcap or None
        )
        return returned[0] if isinstance(returned, tuple) else returned

    return function


def torch_in_chunks() -> sides.Function:
    """From torch 2.13 on."""
    if not hasattr(torch.nn, "LinearCrossEntropyOptions"):
        raise ImportError(f"torch {torch.__version__} has no F.linear_cross_entropy in chunks")
    return partial(F.linear_cross_entropy, options=torch.nn.LinearCrossEntropyOptions())


def wrong_functions(direction: str, function: sides.Function) -> Mapping[str, sides.Function]:
    def zero_except_at_the_target(hidden: Tensor, weight: Tensor, target: Tensor) -> Tensor:
        loss = function(hidden, weight, target)
        assert isinstance(loss, Tensor)
        return loss.detach() - (hidden * weight[target]).sum(-1).mean().to(hidden.dtype)

    functions = {
        "5% too large": wrong.scaled(function),
        "half of the classes left out": lambda hidden, weight, target: function(
            hidden, weight[: weight.shape[0] // 2], target % (weight.shape[0] // 2)
        ),
        "logits 20% too large": lambda hidden, weight, target: function(1.2 * hidden, weight, target),
    }
    return functions | ({} if direction == "forward" else {"no softmax": zero_except_at_the_target})


LABELS = {"torch": {"label": "F.linear_cross_entropy", "role": "peer-2"}}

TYPICAL = shaped(LARGE["typical"])
# Three matmuls of a step: logits, gradient of hidden, gradient of the weight.
step_flops = bound("TFLOP", "3 * 2 * tokens * hidden * vocabulary", TYPICAL)
# The logits of all tokens in bf16.
logits_bytes = bound("GB", "tokens * vocabulary * 2", TYPICAL)
# The larger of two: logits in bf16 of 8192 classes for the first tokens, as many as hidden; such logits for 2048 tokens
# with their gradients of hidden in fp32.
workspace_bytes = bound("GB", "max(2 * 8192 * hidden, 2048 * (2 * 8192 + 4 * hidden))", TYPICAL)
# Both gradients in bf16.
gradient_bytes = bound("GB", "(tokens + vocabulary) * hidden * 2", TYPICAL)

CASE = Case(
    question="What does a loss from hidden states cost, beside its three matmuls and its gradients' memory?",
    check_at={
        "forward both": [{"tokens": 64, "hidden": 64, "vocabulary": 1024}],
        "both": [{"part": part, "tokens": 64, "hidden": 64, "vocabulary": 1024} for part in (OPTIONS, LOSSES)],
    },
)
