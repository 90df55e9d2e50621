"""Exactly what changes what a case measures makes its rows stale: twenty changes of the project's code, in memory."""

import functools
import importlib
import math
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import CodeType

import pytest
import torch

from tests.benchmarks import runner
from tests.benchmarks.functions import FOLDERS, SWEEPS, Code
from tests.benchmarks.reviewed import REVIEWED, VERSION, version
from tests.benchmarks.source import ROOT
from tests.benchmarks.sweeps.__main__ import kernels

# What cases reach is looked for in all of them. Named here, they count for tests/remembered.py.
READ = "tests/benchmarks", "snippets/**/*.py"

Texts = dict[str, str]
Change = Callable[[Texts], Texts]

CASES = {name: path.relative_to(ROOT).as_posix() for name, path in runner.discover().items()}
RMS_NORM = {
    "compiler/fusion",
    "examples/hf-llama",
    "examples/llama",
    "examples/llama-flash4",
    "kernels/rms-norm",
    "patterns/normalization",
    "patterns/transformer-block",
}
SIDE_BY_SIDE = {  # cases that call sides.backward, by themselves or through sides.workload
    name for name, file in CASES.items() if re.search(r"\bsides\.(workload\(|backward\b)", (ROOT / file).read_text())
}


def replaced(file: str, old: str, new: str) -> Change:
    """The first place in a file."""

    def change(texts: Texts) -> Texts:
        assert old in texts[file], f"{file}: expected {old!r}, found none"
        return texts | {file: texts[file].replace(old, new, 1)}

    return change


def renamed(old: str, new: str) -> Change:
    """A name, wherever it is used."""
    return lambda texts: {file: re.sub(rf"\b{old}\b", new, text) for file, text in texts.items()}


KERNEL, SIDES, OF_KERNEL = "kernels/rms_norm.py", "tests/benchmarks/sides.py", "tests/benchmarks/kernels/rms_norm.py"
NOTHING = {
    "a comment in CUDA C++": replaced("kernels/layer_norm_gelu.cu", "// of the lower half", "// of the lower 16 bits"),
    "a local variable's name": renamed("of_ours", "compiled_kernels"),
    "an annotation": replaced(SIDES, "kernel: ModuleType", "kernel: object"),
    "the layout of a line": replaced(SIDES, "return (returned,) if", "return (\n        returned,) if"),
    "the label of a variant": replaced(
        "tests/benchmarks/compiler/modes.py", '"label": "coordinate descent"', '"label": "cd"'
    ),
    "what a case asks": replaced("tests/benchmarks/kernels/rope.py", 'question="', 'question="Well: '),
    "one more point": replaced(OF_KERNEL, '"narrow": (65536', '"narrower": (131072, 1024), "narrow": (65536'),
    "a function that nobody calls": replaced(KERNEL, "def rms_norm", "def unused(x):\n    return x\n\n\ndef rms_norm"),
    "one more case": lambda texts: texts | {"tests/benchmarks/kernels/new.py": texts[CASES["kernels/rope"]]},
}
STALE: dict[str, tuple[Change, set[str]]] = {
    "a constant of a launch table": (replaced(KERNEL, "BLOCK=8192, KEPT=4", "BLOCK=8192, KEPT=2"), RMS_NORM),
    "an operator of a kernel": (replaced(KERNEL, "axis=1) / N + tl", "axis=1) / N - tl"), RMS_NORM),
    "a constant argument of a kernel": (replaced(KERNEL, "ROWS: tl.constexpr", "ROWS"), RMS_NORM),
    "an argument of a decorator": (replaced(KERNEL, '=["x_stride", "N"]', '=["x_stride"]'), RMS_NORM),
    "a default": (replaced(KERNEL, "eps: float | None = 1e-6", "eps: float | None = 1e-5"), RMS_NORM),
    "how an operator is registered": (replaced(KERNEL, '("CUDA", "CPU")', '("CUDA",)'), RMS_NORM),
    "a token of CUDA C++": (replaced("kernels/swiglu.cu", "w += 4", "w += 8"), {"patterns/activations"}),
    "the baseline of a case": (
        replaced(OF_KERNEL, "F.rms_norm(x, x.shape[-1:], weight, EPS)", "F.rms_norm(x, x.shape[-1:], weight)"),
        {"kernels/rms-norm"},
    ),
    "another library's call": (
        replaced(OF_KERNEL, 'weight, EPS, 0.0, "gemma"', 'weight, EPS, 0.0, "llama"'),
        {"kernels/rms-norm"},
    ),
    "the inputs of a case": (
        replaced("tests/benchmarks/kernels/softmax.py", "x = torch.randn(", "x = torch.rand("),
        {"kernels/softmax"},
    ),
    "a helper of many cases": (replaced(SIDES, "retain_graph=True", "retain_graph=False"), SIDE_BY_SIDE),
    "a setting at the top of a file": (
        replaced("snippets/compiler/custom_kernels.py", "import torch\n", "import torch\n\ntorch.set_num_threads(1)\n"),
        {"compiler/custom-kernels"},
    ),
}
REVIEW = {
    "a tolerance": replaced("snippets/validation/equivalence.py", "return eps / 4 +", "return eps / 2 +"),
    "the rounds of a timing": replaced("tests/benchmarks/method.py", '"device": 30', '"device": 6'),
}


@functools.cache
def texts() -> Texts:
    return dict(Code.of().texts)


@functools.cache
def before() -> dict[str, str]:
    return hashes(Code(texts()))


def hashes(code: Code) -> dict[str, str]:
    return {name: code.measured(file).hash for name, file in CASES.items()}


def changed(change: Change) -> Code:
    after = change(texts())
    assert after != texts(), "expected a change, got the same texts"
    return Code(after)


def stale(code: Code) -> set[str]:
    return {name for name, found in hashes(code).items() if found != before()[name]}


@pytest.mark.parametrize("what", NOTHING)
def test_nothing_is_stale_for(what: str) -> None:
    code = changed(NOTHING[what])
    assert stale(code) == set()
    assert version(code) == VERSION


@pytest.mark.parametrize("what", STALE)
def test_exactly_its_cases_are_stale_for(what: str) -> None:
    change, expected = STALE[what]
    code = changed(change)
    assert stale(code) == expected
    assert version(code) == VERSION


@pytest.mark.parametrize("what", REVIEW)
def test_the_method_needs_a_review_for(what: str) -> None:
    code = changed(REVIEW[what])
    assert stale(code) == set()
    assert version(code) != VERSION, "until somebody has said what the change means"


def test_the_method_is_reviewed() -> None:
    found = Code(texts()).method().hash
    assert REVIEWED.get(found) == VERSION, (
        f"expected a reviewed method, got {found}: add it to tests/benchmarks/reviewed.py, as version {VERSION} "
        f"if every row would come out as before, and as {VERSION + 1} if not"
    )


def test_a_sweep_reaches_its_plan_and_what_tries_alternatives() -> None:
    for name in kernels():
        case_file, plan = f"tests/benchmarks/kernels/{name}.py", f"{SWEEPS}{name}.py"
        found = Code(texts()).measured(case_file, plan).functions
        assert {
            f"{plan}:alternatives",
            f"kernels/{name}.py:{name}",
            "tests/benchmarks/alternatives.py:timed",
        } <= found.keys()
        assert Code(texts()).measured(case_file).functions.keys() < found.keys()


# ---- what runs was reached ------------------------------------------------------------------------------------------


def called(what: Callable[[], object]) -> set[str]:
    """The functions of ours, of a file or a class, that run meanwhile, as `Reached.functions` names them."""
    ran: set[CodeType] = set()
    sys.setprofile(lambda frame, event, argument: ran.add(frame.f_code))  # an import calls millions: look at them later
    try:
        what()
    finally:
        sys.setprofile(None)
    found = {
        f"{path.relative_to(ROOT).as_posix()}:{code.co_qualname.partition('.<')[0]}"
        for code in ran
        if (path := Path(code.co_filename)).is_relative_to(ROOT) and not code.co_qualname.startswith("<")
    }
    elsewhere = ("tests/benchmarks/machine.py", Path(__file__).relative_to(ROOT).as_posix())
    return {name for name in found if name.startswith(FOLDERS) and not name.startswith(elsewhere)}


def baseline_of(name: str) -> Callable[[], object]:
    """Makes a case's workload at its smallest point on a CPU, and runs the reference and the baseline."""
    case, cpu = runner.load(ROOT / CASES[name]), torch.device("cpu")
    point = min(case.points(cpu), key=lambda each: math.prod(each.shape.values()))

    def run() -> None:
        workload = case.prepare(point, cpu)
        workload.reference()
        variant = workload.variants[workload.baseline]
        variant.results(variant.build()())

    return run


TOO_LARGE = {"examples/llama"}  # a minute on a CPU; what it calls, examples/llama-flash4 calls as well
ON_A_CPU = [
    name
    for name, path in CASES.items()
    if name not in TOO_LARGE and any(runner.load(ROOT / path).points(torch.device("cpu")))
]


@pytest.mark.parametrize("name", ON_A_CPU)
def test_whatever_a_case_calls_was_reached(name: str) -> None:
    if "llama" in name or name == "examples/generation":  # importing this, millions of calls would be noted
        importlib.import_module("transformers.models.llama.modeling_llama")
    ran = called(baseline_of(name))
    assert f"{CASES[name]}:prepare" in ran
    missed = ran - Code(texts()).measured(CASES[name]).functions.keys()
    assert not missed


# ---- what counts ----------------------------------------------------------------------------------------------------

TOY = (
    """
from snippets.b import helper, other
import torch.nn.functional as F

SIZE = 8

class Options:
    used: int = 1
    unused: int = 2

    def method(self):
        return SIZE

def prepare(x, size=SIZE):
    def inner(y):
        total = y + x
        return helper(total), [helper(n) for n in range(size)]

    if size < 0:
        raise ValueError(f"expected a size, got {size}")
    assert size, "no size"
    return inner(F.relu(x)), Options().used

"""
    "CASE = dict(prepare=prepare)\n"
)
HELPERS = """
REGISTRY = []

def helper(x):
    return x + 1

def other(x):
    return x + 1

def third(x):
    return x + 2

def _(): ...
REGISTRY.append(3)
"""


def toy(case: str = TOY, helpers: str = HELPERS) -> str:
    return Code({"tests/benchmarks/a.py": case, "snippets/b.py": helpers}).measured("tests/benchmarks/a.py").hash


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("SIZE", "WIDTH"),
        ("total", "summed"),
        ("inner", "within"),
        ("helper", "helps"),
        ("n", "number"),
        ("helper(n)", "helper((n))"),
        ("import torch.nn.functional as F", "from torch.nn import functional as F"),
        ("from snippets.b import helper, other", "from snippets import b\nfrom snippets.b import helper"),
        ("unused: int = 2", "unused: int = 3"),
        ("used: int = 1", "used: float = 1"),
        ("return SIZE", "return 2 * SIZE"),
        ("expected a size, got", "no size but"),
        ("no size", "nothing"),
        ("def inner(y):", "def inner(y: object) -> tuple:"),
        ("def inner(y):", 'def inner(y):\n        """Why."""'),
    ],
)
def test_what_does_not_count(old: str, new: str) -> None:
    assert old in TOY
    anywhere = rf"\b{old}\b" if old.isidentifier() else re.escape(old)
    assert toy() == toy(*(re.sub(anywhere, lambda _: new, text) for text in (TOY, HELPERS)))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("SIZE = 8", "SIZE = 9"),
        ("y + x", "x + y"),
        ("size=SIZE", "size=2"),
        ("F.relu", "F.gelu"),
        ("as F", "as G"),
        ("helper(total)", "other(total)"),
        ("helper(n)", "helper(x)"),
        ("Options().used", "Options().method()"),
        ("used: int = 1", "used: int = 3"),
        ("raise ValueError", "raise TypeError"),
        ("assert size", "assert not size"),
        ("size < 0", "size <= 0"),
        ("prepare=prepare", "prepare=len"),
        ("def inner(y):", "def inner(SIZE):\n        y = SIZE"),
        ("return x + 1\n\ndef other", "return x - 1\n\ndef other"),
        ("REGISTRY.append(3)", "REGISTRY.append(4)"),
        ("def helper", "@REGISTRY.append\ndef helper"),
        ("def _()", "@third\ndef _()"),
        ("class Options:", "class Base:\n    def called(self): ...\n\nclass Options(Base):"),
        ("def _()", "@REGISTRY.append\ndef _()"),
    ],
)
def test_what_counts(old: str, new: str) -> None:
    assert old in TOY + HELPERS and toy() != toy(TOY.replace(old, new), HELPERS.replace(old, new))


def test_a_name_that_is_not_there_is_an_error() -> None:
    with pytest.raises(KeyError, match="expected a name 'helper' at its top level, got none"):
        toy(helpers="")
