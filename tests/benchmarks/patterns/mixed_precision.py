"""A matrix product and a training step in each precision: what each saves in time and memory, and its error."""

import copy
from collections.abc import Callable, Iterable
from functools import cache, partial

import torch
from torch import Tensor

from snippets.patterns import mixed_precision_fp8 as fp8_page
from snippets.patterns import mixed_precision_step as step_page
from tests.benchmarks import wrong
from tests.benchmarks.bounds import bound, captured, gpu, h100
from tests.benchmarks.case import Case, Point, Results, Variant, Workload
from tests.benchmarks.compiler import training
from tests.benchmarks.own import own

MATMULS = ("fp32", "tf32", "fp16", "bf16", "fp8", "dynamic fp8")  # the last quantises in the call
STEPS = ("fp32", "tf32", "autocast fp16", "autocast bf16", "bf16")
DTYPES = {
    "fp32": "float32", "tf32": "float32", "fp16": "float16", "autocast fp16": "float16",
    "fp8": "float8_e4m3fn", "dynamic fp8": "float8_e4m3fn",
}  # fmt: skip
VOCABULARY = 8192
LAYERS = 4
HEAD = 64  # columns of one


def points(device: torch.device) -> Iterable[Point]:
    """Products and steps so large that the GPU decides, and steps so small that the host does."""
    if device.type == "cpu":
        yield from (product(name, 256, "calls") for name in ("fp32", "bf16"))
        yield from (step(name, 2, 64, 64, "calls") for name in ("fp32", "autocast bf16", "bf16"))
        return
    yield from (product(name, 8192, "burst") for name in MATMULS)
    yield from (product(name, 1024, "graph", "small ") for name in ("tf32", "bf16", "fp8", "dynamic fp8"))
    yield from (step(name, 8, 1024, 2048, "sustained") for name in STEPS)
    yield from (step(name, 2, 64, 256, "calls", "small ") for name in ("tf32", "autocast bf16", "bf16"))


def product(name: str, size: int, mode: str, before: str = "") -> Point:
    shape, dtype, part = {"rows": size, "columns": size}, DTYPES.get(name, "bfloat16"), f"{name} matmul"
    return Point(shape, dtype, "forward", (mode,), part=part, name=before + part)


def step(name: str, rows: int, length: int, width: int, mode: str, before: str = "") -> Point:
    shape, part = {"rows": rows, "length": length, "width": width}, f"{name} step"
    return Point(shape, DTYPES.get(name, "bfloat16"), "both", (mode,), part=part, name=before + part)


def prepare(point: Point, device: torch.device) -> Workload:
    name, _, what = point.part.rpartition(" ")
    step_page.products_of_fp32(tf32=name == "tf32")
    dtype = torch.bfloat16 if point.dtype == "float8_e4m3fn" else getattr(torch, point.dtype)
    of: dict[str, Callable[..., Workload]] = {"matmul": of_product, "step": of_step}
    return of[what](name, *point.shape.values(), dtype, device)


# ---- a product ------------------------------------------------------------------------------------------------------


def of_product(name: str, rows: int, columns: int, dtype: torch.dtype, device: torch.device) -> Workload:
    """a @ b.T of random matrices (rows, columns) in the precision; fp8 from bf16, by rows."""
    a, b = (torch.randn(rows, columns, device=device).to(dtype) for _ in range(2))

    def plain(a: Tensor = a, b: Tensor = b) -> Tensor:
        return a @ b.t()

    def of_quantised(a: Tensor = a, b: Tensor = b, wide: torch.dtype = torch.float32) -> Tensor:
        """The product of what rounding to fp8 leaves of a and b, which a product of fp8 is to compute."""
        left, right = (q.to(wide) * scale.to(wide) for q, scale in (fp8_page.quantised(a), fp8_page.quantised(b)))
        return left @ right.t()

    def emulated(a: Tensor = a, b: Tensor = b) -> Tensor:
        return of_quantised(a, b).to(dtype)

    variants: dict[str, Variant]
    if name == "fp8":
        variants = {
            "eager": Variant(lambda: emulated),
            "fp8": Variant(
                lambda: partial(
                    fp8_page.product_of_fp8,
                    *fp8_page.quantised(a),
                    *fp8_page.quantised(b),
                )
            ),
        }
    elif name == "dynamic fp8":
        variants = {
            "eager": Variant(lambda: emulated),
            "fp8": Variant(lambda: partial(fp8_page.linear_in_fp8, a, b)),
            "compile": Variant(lambda: partial(torch.compile(own(fp8_page.linear_in_fp8), dynamic=False), a, b)),
        }
    else:
        variants = {"eager": Variant(lambda: plain)}
    fp8 = name.endswith("fp8")
    right = emulated if fp8 else plain
    size = 1 if name == "fp8" else dtype.itemsize
    return Workload(
        variants=variants,
        baseline="eager",
        reference=lambda: {"output": of_quantised(wide=torch.float64) if fp8 else a.double() @ b.double().t()},
        bytes_read=2 * rows * columns * size,
        bytes_written=rows * rows * dtype.itemsize,
        flops=2 * rows * rows * columns,
        wrong={
            "5% too large": lambda baseline: {"output": wrong.scaled(right)(a, b)},
            "the last tile is not written": lambda baseline: {"output": wrong.cut(right)(a, b)},
            "an eighth of the terms left out": lambda baseline: {
                "output": right(a[:, columns // 8 :], b[:, columns // 8 :])
            },
        },
    )


# ---- a step ---------------------------------------------------------------------------------------------------------


class Training(training.Training):
    """A training as in the case of compiled steps, with the step of this page; its update is not looked at.

    In the first steps of Adam rounding decides about the sign of an update.
    """

    def __call__(self) -> Tensor:
        return self.step(self.model, self.optimizer, *self.batches[0])

    def results(self, loss: object) -> Results:
        return {name: t for name, t in super().results(loss).items() if not name.startswith("update")}


def of_step(name: str, rows: int, length: int, width: int, dtype: torch.dtype, device: torch.device) -> Workload:
    """Random tokens and targets; parameters in fp32, or in bf16 where the whole model is."""
    cast = dtype if name.startswith("autocast") else None
    model = step_page.Model(LAYERS, width, width // HEAD, VOCABULARY).to(device, dtype if name == "bf16" else None)
    before = {each: p.detach().clone() for each, p in model.named_parameters()}
    batch = training.batch_of(VOCABULARY, rows, length, device)

    def step(loss: Callable[..., Tensor]) -> Callable[..., Tensor]:
        scaler = torch.amp.GradScaler(device.type) if cast == torch.float16 else None
        return partial(step_page.train_step, loss_of=loss, cast=cast, scaler=scaler)

    def at(loss: Callable[..., Tensor]) -> Variant:
        return training.variant(lambda: Training(model, before, [batch], step(loss), fused=True), dtype)

    def wrongly(loss: Callable[..., Tensor]) -> Callable[[Results], Results]:
        return training.spoilt(lambda: Training(copy.deepcopy(model), before, [batch], step(loss)), dtype)

    @cache
    def reference() -> Results:
        exact = Training(copy.deepcopy(model).double(), before, [batch], step_page.train_step)
        return exact.results(exact())

    tokens_in_all, weights = rows * length, sum(p.numel() for p in model.parameters())
    return Workload(
        variants={
            "eager": at(step_page.loss_of),
            "compile": at(torch.compile(own(step_page.loss_of), dynamic=False)),
        },
        baseline="eager",
        reference=reference,
        largest_summands=cancelling(reference(), tokens_in_all) if name == "tf32" else {},
        bytes_read=0,  # no bound is drawn: matrix products take most of the time
        bytes_written=0,
        flops=3 * tokens_in_all * (2 * (weights - VOCABULARY * width) + 2 * LAYERS * length * width),
        wrong={
            "one row left out": wrongly(lambda model, x, y, cast=None: step_page.loss_of(model, x[1:], y[1:], cast)),
            "targets one token late": wrongly(
                lambda model, x, y, cast=None: step_page.loss_of(model, x, y.roll(1, -1), cast)
            ),
            "5% too large": wrongly(lambda *arguments: 1.05 * step_page.loss_of(*arguments)),
        },
    )


def cancelling(exact: Results, terms: int) -> dict[str, float]:
    """Of gradients that sum up terms of either sign: by chance the terms together are sqrt(terms) times their sum."""
    return {name: t.abs().max().item() * terms**0.5 for name, t in exact.items() if name != "loss"}


# How many times as fast a step is as one in fp32.
step_gain = bound("x", "fp32 / other", fp32=gpu("eager", "fp32 step"), other=gpu("eager", "{at}"))
# How many times as fast a matmul of 8192 is as in fp32.
matmul_gain = bound("x", "fp32 / other", fp32=gpu("eager", "fp32 matmul"), other=gpu("{variant}", "{at}"))
# What fp16 rounds away of a sum of 1024 terms.
fp16_rounding = bound("%", "error", error=captured("rounding", "1024", which=2))
tf32_rounding = bound("%", "error", error=captured("rounding", "1024"))  # What TF32 rounds away of a sum of 1024 terms.
# How many times as fast a matmul is that is quantised to fp8 in the call, compiled, as in bf16.
fp8_call_gain = bound("x", "bf16 / other", bf16=gpu("eager", "bf16 matmul"), other=gpu("compile", "dynamic fp8 matmul"))
# What fp8 rounds away of a sum of 1024 terms.
fp8_rounding = bound("%", "error", error=captured("rounding", "1024", which=4))
# What bf16 rounds away of a sum of 16384 terms.
long_rounding = bound("%", "error", error=captured("rounding", "16384", which=3))
# What is rounded away where each partial sum is rounded to bf16.
partial_rounding = bound("%", "error", error=captured("rounding", "16384", which=5))
spacing = bound("%", "1 / 2**bits", bits=7)  # How far a bf16 number's neighbour is, as a part of it.
smallest_fp16 = bound("", "10**9 / 2**bits", bits=24)  # The smallest fp16 number, in billionths.
# How many times as fast bf16 is as fp32, as the vendor has it.
promised_over_fp32 = bound("x", "bf16 / fp32", bf16=h100("bfloat16"), fp32=h100("float32"))
# How many times as fast bf16 is as TF32, as the vendor has it.
promised_over_tf32 = bound("x", "bf16 / tf32", bf16=h100("bfloat16"), tf32=h100("tfloat32"))
# The gradient of a mean loss for one class of one token, in billionths.
mean_gradient = bound("", "1 / (tokens * classes) * 10**9", tokens=4096, classes=8192)
# How many times as fast a matmul of fp8 is as one of bf16.
fp8_gain = bound("x", "bf16 / fp8", bf16=gpu("eager", "bf16 matmul"), fp8=gpu("fp8", "fp8 matmul"))
# What bf16 rounds away of a sum of 1024 terms.
bf16_rounding = bound("%", "error", error=captured("rounding", "1024", which=3))

LABELS = {"fp8": {"label": "fp8", "role": "rewrite-2"}}
CASE = Case(
    question="What does each precision save in a product and in a training step, and what does it cost in accuracy?",
    check_at={
        "forward": [{"part": f"{name} matmul", "rows": 64, "columns": 1024} for name in MATMULS],
        "both": [{"part": f"{name} step", "rows": 2, "length": 32, "width": 64} for name in STEPS],
    },
)
