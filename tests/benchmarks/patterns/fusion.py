"""What each kind of fusion saves, and what the compiler saves on blocks of three models."""

import copy
from collections.abc import Iterable
from functools import partial

import torch
from torch import Tensor, nn

from snippets.compiler.what_compile_does_traffic import nbytes
from snippets.patterns import fusion as ways
from snippets.patterns.fusion_blocks import ResNetBlock, UNetBlock, ViTBlock, folded
from tests.benchmarks import alike
from tests.benchmarks.bounds import bound, captured, ceiling, gpu
from tests.benchmarks.case import Call, Case, Point, Results, Variant, Workload
from tests.benchmarks.own import own
from tests.benchmarks.sides import both, compiled_with_every_knob

VERTICAL = {"used once": (1, ways.used_once), "used again": (2, ways.used_again)}  # and how many results it has
BLOCKS = {"resnet": ResNetBlock, "vit": ViTBlock, "unet": UNetBlock}


def points(device: torch.device) -> Iterable[Point]:
    """Tensors that do not fit into a cache; a product with a short sum and with a long one; a block of each model."""
    if device.type == "cpu":
        shape = {"rows": 512, "columns": 1024}
        for part, sizes in (("used once", shape), ("horizontal", shape), ("epilogue", {"inner": 1} | shape)):
            yield Point(sizes, "float32", "forward", ("calls",), part=part)
        return
    large = {"rows": 16384, "columns": 4096}
    for part in (*VERTICAL, "horizontal"):
        yield Point(large, "bfloat16", part=part, name=part)
    several = {"tensors": 64, "rows": 16, "columns": 1024}
    yield Point(several, "bfloat16", modes=("calls", "graph"), part="independent", name="64 tensors")
    few = ("eager", "written-over", "as-epilogue", "compile")
    for inner, variants in ((512, None), (4096, few)):
        shape = {"inner": inner, "rows": 16384, "columns": 8192}
        yield Point(shape, "bfloat16", variants=variants, part="epilogue", name=f"epilogue {inner}")
    yield Point(large, "bfloat16", "both", part="recomputed", name="recompute step")
    yield Point({"batch": 128, "channels": 256, "side": 56}, "bfloat16", part="resnet", name="resnet block")
    yield Point({"batch": 128, "tokens": 197, "width": 768}, "bfloat16", part="vit", name="vit block")
    yield Point({"batch": 16, "channels": 320, "side": 64}, "bfloat16", part="unet", name="unet block")


def prepare(point: Point, device: torch.device) -> Workload:
    """A function of elements, a product, a step, or a block."""
    sizes, dtype = list(point.shape.values()), getattr(torch, point.dtype)
    if point.part in BLOCKS:
        return of_block(BLOCKS[point.part], sizes, dtype, device)
    if point.part == "epilogue":
        return of_epilogue(*sizes, dtype, device)  # type: ignore[call-arg]
    if point.part == "recomputed":
        return of_recomputed(*sizes, dtype, device)  # type: ignore[call-arg]
    tensors = point.shape.get("tensors", 1)
    return of_elements(point.part, tensors, point.shape["rows"], point.shape["columns"], dtype, device)


# ---- functions of which all variants get the same inputs ------------------------------------------------------------


def of_elements(part: str, count: int, rows: int, columns: int, dtype: torch.dtype, device: torch.device) -> Workload:
    """An intermediate result that is used once, or again; "horizontal": a shared input; "independent": none."""
    tensors = [torch.randn(rows, columns, device=device).to(dtype) for _ in range(count)]
    function: alike.Function = ways.statistics
    results = 0 if part == "horizontal" else count
    if part in VERTICAL:
        results, function = VERTICAL[part]
        tensors += [torch.randn(columns, device=device).to(dtype) for _ in range(2)]
    if part == "independent":
        function = ways.each_scaled
    variants: dict[str, alike.Function] = {"eager": function, "compile": torch.compile(own(function), dynamic=False)}
    if part == "independent":
        variants["one-call"] = ways.scaled_together
    written = rows * columns * dtype.itemsize * results
    return alike.workload(variants, tensors, written, rows * columns, "copy" if results else "read", spoilt=SPOILT)


def of_epilogue(inner: int, rows: int, columns: int, dtype: torch.dtype, device: torch.device) -> Workload:
    """relu(x @ w.T + b), where each element of the product is a sum over `inner` terms."""
    x = torch.randn(rows, inner, device=device).to(dtype)
    weight = (torch.randn(columns, inner, device=device) / inner**0.5).to(dtype)
    bias = torch.randn(columns, device=device).to(dtype)
    return alike.workload(
        {
            "eager": ways.apart,
            "written-over": ways.in_place,
            "as-epilogue": ways.in_the_product,
            "compile": torch.compile(own(ways.apart), dynamic=False),
            "compile-max": compiled_with_every_knob(own(ways.apart)),
        },
        [x, weight, bias],
        rows * columns * dtype.itemsize,
        flops=2 * rows * columns * inner,
        wrong={"no bias": lambda x, w, b: ways.apart(x, w, 0 * b)},
        spoilt=SPOILT,
    )


def shifted(t: Tensor) -> Tensor:
    """Half of the rows are those of the row after."""
    return torch.cat([t[: len(t) // 2], t[len(t) // 2 :].roll(1, 0)])


SPOILT = alike.SPOILT | {"half of it is its neighbours'": alike.each(shifted)}


# ---- a step: what backward needs is saved, or computed again --------------------------------------------------------


def of_recomputed(rows: int, columns: int, dtype: torch.dtype, device: torch.device) -> Workload:
    """silu(gate) * up, forward and backward."""
    gate, up, grad = (torch.randn(rows, columns, device=device).to(dtype) for _ in range(3))

    def leaves() -> tuple[Tensor, Tensor]:
        return gate.detach().requires_grad_(), up.detach().requires_grad_()

    def by_hand(saves: bool) -> Call:
        """Two compiled kernels, of which the second gets what the first kept."""
        first, second = (
            torch.compile(own(function), dynamic=False)
            for function in (
                (ways.forward_saving, ways.backward_of_saved) if saves else (ways.gated, ways.backward_recomputing)
            )
        )

        def step() -> tuple[Tensor, ...]:
            if saves:
                y, sigmoid, activated = first(gate, up)
                return y, *second(grad, up, sigmoid, activated)
            return first(gate, up), *second(grad, gate, up)

        return step

    def results(returned: object) -> Results:
        return dict(zip(("output", "gate.grad", "up.grad"), returned, strict=True))  # type: ignore[call-overload]

    def reference() -> Results:
        exact = tuple(t.double().requires_grad_() for t in (gate, up))
        return results(both(ways.gated, exact, (), (grad.double(),))())

    size = rows * columns * dtype.itemsize
    compiled = torch.compile(own(ways.gated), dynamic=False)
    return Workload(
        variants={
            "eager": Variant(lambda: both(ways.gated, leaves(), (), (grad,)), results),
            "compile": Variant(lambda: both(compiled, leaves(), (), (grad,)), results),
            "saved": Variant(partial(by_hand, True), results),
            "recomputed": Variant(partial(by_hand, False), results),
        },
        baseline="eager",
        reference=reference,
        bytes_read=5 * size,
        bytes_written=3 * size,
        flops=20 * rows * columns,
        mix="triad",
        wrong={
            "gate's gradient 5% too large": lambda right: {**right, "gate.grad": 1.05 * right["gate.grad"]},
            "gate's gradient is up's": lambda right: {**right, "gate.grad": right["up.grad"]},
            "the last eighth is not written": alike.each(alike.cut),
        },
    )


# ---- blocks ---------------------------------------------------------------------------------------------------------


def of_block(kind: type[nn.Module], sizes: list[int], dtype: torch.dtype, device: torch.device) -> Workload:
    """Inference: random weights, and random statistics in the batch norms; the ResNet with channels last.

    Eager has the U-Net in both layouts, since a group norm wants one and a convolution the other.
    """
    batch, second, third = sizes
    model: nn.Module = ViTBlock(third, third // 64) if kind is ViTBlock else kind(second)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.running_mean, -0.5, 0.5)
            nn.init.uniform_(module.running_var, 0.5, 1.5)
    shape = (batch, second, third) if kind is ViTBlock else (batch, second, third, third)
    inputs = [torch.randn(shape, device=device).to(dtype)]
    model = model.to(device, dtype).eval()
    if kind is UNetBlock:
        inputs.append(torch.randn(batch, second, device=device).to(dtype))
    last = torch.channels_last
    if kind is ResNetBlock:
        model, inputs[0] = model.to(memory_format=last), inputs[0].to(memory_format=last)

    def at(module: nn.Module, compile_: bool, inputs: list[Tensor] = inputs) -> Variant:
        def build() -> Call:
            made = torch.compile(copy.deepcopy(module), dynamic=False) if compile_ else module

            def call() -> Tensor:
                with torch.no_grad():
                    return made(*inputs)

            call()
            return call

        return Variant(build)

    def reference() -> Results:
        with torch.no_grad():
            return {"output": copy.deepcopy(model).double()(*(t.double() for t in inputs))}

    variants = {"eager": at(model, False), "compile": at(model, True)}
    if kind is UNetBlock:
        image, time = inputs
        of_last = [image.to(memory_format=last), time]
        variants["channels-last"] = at(copy.deepcopy(model).to(memory_format=last), False, of_last)
    if isinstance(model, ResNetBlock):
        made = folded(model).to(memory_format=last)
        variants |= {"folded": at(made, False), "folded-compile": at(made, True)}
    return Workload(
        variants=variants,
        baseline="eager",
        reference=reference,
        bytes_read=nbytes(inputs) + nbytes(list(model.parameters())),
        bytes_written=inputs[0].nbytes,
        flops=flops_of(kind, batch, second, third),
        wrong=alike.SPOILT | {"without the residual": lambda right: {"output": right["output"] - inputs[0]}},
    )


def flops_of(kind: type[nn.Module], batch: int, second: int, third: int) -> int:
    """Of the matrix products."""
    if kind is ViTBlock:
        tokens, width = second, third
        return 2 * batch * tokens * 12 * width**2 + 4 * batch * tokens**2 * width
    channels, places = second, batch * third**2
    if kind is UNetBlock:
        return 2 * places * 2 * 9 * channels**2 + 2 * batch * channels**2
    inner = channels // 4
    return 2 * places * (2 * channels * inner + 9 * inner**2)


COPY = ceiling("copy", case="patterns/fusion")
MATRIX = ceiling("bfloat16", "burst", case="patterns/fusion")
counted = partial(captured, "counted", "{line}")
TENSOR = {"rows": 16384, "columns": 4096, "width": 2}
tensor = bound("MB", "rows * columns * width", TENSOR)  # The size of one tensor of the table.
# By what the bytes that eager PyTorch moves exceed those of one kernel.
fewer_bytes = bound("x", "now / least", now=counted(which=2), least=counted(which=3))
# What six tensors take at the rate of a copy.
six_tensors = bound("us", "6 * rows * columns * width / copy", TENSOR, copy=COPY)
# What reading the tensor once takes.
read_once = bound("us", "rows * columns * width / read", TENSOR, read=ceiling("read", case="patterns/fusion"))
# What writing and reading the result of a matmul takes, which an epilogue saves.
epilogue = bound("us", "2 * rows * columns * width / copy", rows=16384, columns=8192, width=2, copy=COPY)
# What a matmul whose sums have 512 terms takes at least.
short_sums = bound("us", "2 * rows * columns * terms / matrix", rows=16384, columns=8192, terms=512, matrix=MATRIX)
# What a matmul whose sums have 4096 terms takes at least.
long_sums = bound("us", "2 * rows * columns * terms / matrix", rows=16384, columns=8192, terms=4096, matrix=MATRIX)
moved = partial(captured, which=2, of="patterns/fusion_blocks")
BLOCK = {"all_": moved("{block}", "all operations"), "fused": moved("{block}", "with every vertical fusion")}
# The part of a block's bytes that its matmuls and convolutions move.
matmuls = bound("%", "products / all_", products=moved("{block}", "matrix products among them"), all_=BLOCK["all_"])
# The bytes that folding the norms saves, counted operation by operation.
folding = bound(
    "MB", "before - after", before=moved("ResNet", "all operations"), after=moved("ResNet, folded", "all operations")
)
fusion_saves = bound("MB", "all_ - fused", BLOCK)  # The bytes of a block that vertical fusion saves.
# The time of the bytes that vertical fusion saves, at the rate of a copy.
fusion_gains = bound("us", "(all_ - fused) / copy", BLOCK, copy=COPY)
# How many times as fast compiled code is as eager PyTorch.
compiled_gain = bound("x", "eager / compiled", eager=gpu("eager", "{at}"), compiled=gpu("compile", "{at}"))
# The time that compiling saves.
compiled_saves = bound("us", "eager - compiled", eager=gpu("eager", "{at}"), compiled=gpu("compile", "{at}"))

LABELS = {
    "written-over": {"label": "eager, in place", "short": "in place", "role": "rewrite"},
    "as-epilogue": {"label": "the library's epilogue", "short": "epilogue", "role": "rewrite-2"},
    "one-call": {"label": "one call for all", "short": "one call", "role": "rewrite"},
    "saved": {"label": "compile, saved", "short": "saved", "role": "rewrite"},
    "recomputed": {"label": "compile, computed again", "short": "again", "role": "rewrite-2"},
    "channels-last": {"label": "eager, channels last", "short": "channels last", "role": "rewrite"},
    "folded": {"label": "folded", "short": "folded", "role": "rewrite"},
    "folded-compile": {"label": "compile, norms folded", "short": "folded, compile", "role": "rewrite-2"},
}
CASE = Case(
    question="What does each kind of fusion save, alone and in blocks of three models, and where nothing?",
    check_at={
        "forward": [
            {"part": "used once", "rows": 64, "columns": 1024},
            {"part": "used again", "rows": 64, "columns": 1024},
            {"part": "horizontal", "rows": 64, "columns": 1024},
            {"part": "independent", "tensors": 4, "rows": 64, "columns": 1024},
            {"part": "epilogue", "inner": 256, "rows": 64, "columns": 1024},
            {"part": "resnet", "batch": 2, "channels": 64, "side": 8},
            {"part": "unet", "batch": 2, "channels": 64, "side": 8},
            {"part": "vit", "batch": 2, "tokens": 32, "width": 128},
        ],
        "both": [{"part": "recomputed", "rows": 64, "columns": 1024}],
    },
)
