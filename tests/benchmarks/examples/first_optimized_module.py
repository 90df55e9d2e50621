"""What each step from a draft to a shipped package is worth, for the module of the tutorial."""

import copy
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor, nn

from snippets.examples.first_optimized_module_draft import FEATURES, STEPS, TASKS, Draft, make_draft
from snippets.examples.first_optimized_module_solutions import Better, ship
from tests.benchmarks import wrong
from tests.benchmarks.bounds import bound
from tests.benchmarks.case import Call, Case, Point, Variant, Workload
from tests.benchmarks.inference import call, compiled, wrongly

STEPWISE = ("first-draft", "better", "compile", "graph")
SMALL = {"batch": 64, "steps": STEPS, "width": 256}


def points(device: torch.device) -> Iterator[Point]:
    """Few accounts, where launches decide; many, where the products do; and last what takes long to build."""
    if device.type == "cpu":  # no launches, and no CUDA graph
        yield Point({"batch": 64, "steps": STEPS, "width": 64}, "float32", modes=("calls",), variants=STEPWISE[:3])
        return
    yield Point(SMALL, "float32", modes=("calls", "device"), variants=STEPWISE, name="64 accounts")
    yield Point(SMALL | {"batch": 4096}, "float32", modes=("burst",), variants=STEPWISE[:3], name="4096 accounts")
    for part, slow_to_build in (("unrolled", "compile-draft"), ("packaged", "package")):
        variants = ("first-draft", slow_to_build, "graph")
        yield Point(SMALL, "float32", modes=("calls",), variants=variants, part=part, name=part)


def prepare(point: Point, device: torch.device) -> Workload:
    """The draft, its input, and each step after it."""
    dtype = getattr(torch, point.dtype)
    draft = make_draft().to(device, dtype)
    x = torch.randn(point.shape["batch"], point.shape["steps"], FEATURES, device=device).to(dtype)
    better = Better(draft)
    rows, width = x.shape[0] * x.shape[1], point.shape["width"]
    return Workload(
        variants={
            "first-draft": Variant(lambda: call(draft, x)),
            "compile-draft": Variant(lambda: compiled(draft, x)),
            "better": Variant(lambda: call(better, x)),
            "compile": Variant(lambda: compiled(better, x)),
            "graph": Variant(lambda: compiled(better, x, mode="reduce-overhead")),
            "package": Variant(lambda: packaged(better, x)),
        },
        baseline="first-draft",
        reference=lambda: {"output": call(copy.deepcopy(draft).double(), x.double())()},
        bytes_read=x.nbytes + sum(weight.nbytes for weight in draft.parameters()),
        bytes_written=len(x) * TASKS * x.itemsize,
        # two a multiply-add of the products; the norm, the activation and the average at ten a value
        flops=2 * rows * (FEATURES * width + 6 * width**2) + 2 * len(x) * TASKS * width + 40 * rows * width,
        mix="read",
        wrong={
            "5% too large": wrongly(wrong.scaled(draft), x),
            **{what: wrongly(spoilt(draft, spoil), x) for what, spoil in WRONG.items()},
        },
    )


def packaged(module: nn.Module, x: Tensor) -> Call:
    """What the last step of the tutorial ships, loaded; for any batch."""
    with tempfile.TemporaryDirectory() as folder:
        ship(module, path := Path(folder) / "model.pt2")
        return call(torch._inductor.aoti_load_package(str(path)), x)


def spoilt(draft: Draft, spoil: Callable[[Draft], object]) -> nn.Module:
    spoil(other := copy.deepcopy(draft))
    return other


WRONG = {
    "input not made standard": lambda draft: draft.spread.fill_(1),
    "norm 20% too large": lambda draft: draft.scale.mul_(1.2),
    "forgets at half the speed": lambda draft: draft.memory.add_(0.7),
    "last task not written": lambda draft: (draft.heads[-1].weight.zero_(), draft.heads[-1].bias.zero_()),
}


operations_of_loop = bound("", "steps * each", steps=64, each=4)  # The operations that the loop runs in its steps.

LABELS = {  # the steps have the names that they have on the start page
    "first-draft": {"label": "first draft", "role": "eager"},
    "better": {"label": "better design", "short": "better", "role": "rewrite"},
    "graph": {"label": "CUDA graph", "short": "graph", "role": "graph"},
    "compile-draft": {"label": "first draft, compiled", "role": "compile-max"},
    "compile": {"label": "better design, compiled", "short": "better, compiled", "role": "compile"},
    "package": {"label": "package, loaded", "short": "package", "role": "rewrite-2"},
}
CASE = Case(
    question="What is each step from a draft to a shipped package worth, for one small module?",
    check_at={
        "forward": [{"part": part, "batch": 64, "steps": 64, "width": 64} for part in ("", "unrolled", "packaged")]
    },
)
