"""What torch.export captures, what it refuses, and what it makes a constant without a word.

Run `python -m snippets.compiler.ahead_of_time_export`. Nothing is compiled.
"""

import copy
import json
import logging
import random
import re
import subprocess
import sys
import tempfile
import time
import warnings
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch._dynamo.exc import UserError
from torch.export import Dim, ExportedProgram, export

X = torch.linspace(-1, 2, 32).view(4, 8)


@dataclass(frozen=True)
class Asked:
    """A module, what it is exported with, and what is said of sizes."""

    module: nn.Module
    inputs: tuple[Any, ...] = (X,)
    shapes: Any = None
    strict: bool = False

    def export(self) -> ExportedProgram:
        return export(self.module, self.inputs, dynamic_shapes=self.shapes, strict=self.strict)


# --8<-- [start:first]
class Norm(nn.Module):
    """Rows of length one, times a learned scale."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(8))

    def forward(self, x: Tensor) -> Tensor:
        return x / x.norm(dim=-1, keepdim=True) * self.scale


def first() -> ExportedProgram:
    return export(Norm(), (X,), dynamic_shapes={"x": {0: Dim("batch", min=1, max=64)}})


# --8<-- [end:first]


# ---- what became of the batch ---------------------------------------------------------------------------------------


# --8<-- [start:batch]
def sizes(program: ExportedProgram) -> list[str]:
    """The first size of each input of an exported program: a number, or the range that it may have."""
    names = set(program.graph_signature.user_inputs)
    inputs = [node.meta["val"] for node in program.graph.nodes if node.op == "placeholder" and node.name in names]
    return [size_of(program, value.shape[0]) for value in inputs if isinstance(value, Tensor)]


def size_of(program: ExportedProgram, size: int | torch.SymInt) -> str:
    if isinstance(size, int) or not size.node.expr.free_symbols:
        return f"only {size}"  # a symbol that the code made a number stays one of type SymInt
    limits = program.range_constraints.get(size.node.expr)
    if limits is None:
        return "any"
    return f"{limits.lower} to {limits.upper}" if limits.upper < 10**9 else f"{limits.lower} or more"


# --8<-- [end:batch]


# --8<-- [start:marks]
def marked(x: Tensor) -> Tensor:
    x = x.clone()
    torch._dynamo.mark_dynamic(x, 0)
    return x


# --8<-- [end:marks]


# --8<-- [start:asked]
ASKED: dict[str, tuple[Any, Callable[[Tensor], Tensor]]] = {
    "nothing": (None, torch.clone),
    "Dim('batch', min=1, max=64)": (({0: Dim("batch", min=1, max=64)},), torch.clone),
    "Dim.DYNAMIC": (({0: Dim.DYNAMIC},), torch.clone),
    "Dim.AUTO": (({0: Dim.AUTO},), torch.clone),
    "mark_dynamic(x, 0)": (None, marked),
    "mark_dynamic(x, 0); x = x.half()": (None, lambda x: marked(x).half()),
}
# --8<-- [end:asked]


def became(module: nn.Module, x: Tensor, shapes: Any) -> str:
    try:
        return sizes(Asked(module, (x,), shapes).export())[0]
    except (UserError, ValueError):
        return "refused"


# ---- what is refused, and how to write it ---------------------------------------------------------------------------


# --8<-- [start:branch]
class Branch(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 0:
            return x.sin()
        return x.cos()


class Where(nn.Module):
    """Computes both, and picks: for cheap branches."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.where(x.sum() > 0, x.sin(), x.cos())


class Cond(nn.Module):
    """Both are in the graph, and one of them runs."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,))


# --8<-- [end:branch]


# --8<-- [start:count]
class MeanOfSome(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        kept = x[x > 0]  # how many these are, only the data know
        if kept.numel() > 0:
            return kept.mean()
        return x.new_zeros(())


class MeanOfAll(nn.Module):
    """All elements stay, and a mask says which of them count."""

    def forward(self, x: Tensor) -> Tensor:
        mask = x > 0
        return torch.where(mask, x, 0).sum() / mask.sum().clamp(min=1)


# --8<-- [end:count]


# --8<-- [start:fixed]
class Heads(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.view(4, 2, 4).sum(1)


class AnyHeads(nn.Module):
    """Says what is known, and leaves the batch alone."""

    def forward(self, x: Tensor) -> Tensor:
        return x.unflatten(1, (2, 4)).sum(1)


# --8<-- [end:fixed]


# --8<-- [start:pairs]
class Pairs(nn.Module):
    """Adds neighbouring rows: the batch must be even, and the range has to say so."""

    def forward(self, x: Tensor) -> Tensor:
        return x.view(-1, 2, 8).sum(1)


ANY = ({0: Dim("batch", max=64)},)
EVEN = ({0: 2 * Dim("half", min=2, max=32)},)
# --8<-- [end:pairs]


# --8<-- [start:equal]
class Sum(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return x + y


TWO = ({0: Dim("a")}, {0: Dim("b")})
ONE = ({0: Dim("batch")}, {0: Dim("batch")})
# --8<-- [end:equal]


# --8<-- [start:container]
@dataclass
class Sample:
    tokens: Tensor
    mask: Tensor


@dataclass
class Registered:
    tokens: Tensor
    mask: Tensor


torch.export.register_dataclass(Registered)


class Masked(nn.Module):
    def forward(self, sample: Sample | Registered) -> Tensor:
        return sample.tokens * sample.mask


# --8<-- [end:container]


# --8<-- [start:numpy]
class NumPy(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.from_numpy(x.numpy().clip(0, 1))


class Torch(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.clamp(0, 1)


# --8<-- [end:numpy]


# --8<-- [start:operator]
@torch.library.custom_op("ridgepoint_export::bare", mutates_args=())
def bare(x: Tensor) -> Tensor:
    return x * 2


@torch.library.custom_op("ridgepoint_export::twice", mutates_args=())
def twice(x: Tensor) -> Tensor:
    return x * 2


@twice.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


class Calls(nn.Module):
    def __init__(self, operator: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.operator = operator

    def forward(self, x: Tensor) -> Tensor:
        return self.operator(x)


# --8<-- [end:operator]

MASK = torch.ones(4, 8)
BATCH = ({0: Dim("batch", max=64)},)
REFUSED: dict[str, tuple[Asked, Asked]] = {
    "branch": (Asked(Branch()), Asked(Cond())),
    "count": (Asked(MeanOfSome()), Asked(MeanOfAll())),
    "fixed": (Asked(Heads(), shapes=BATCH), Asked(AnyHeads(), shapes=BATCH)),
    "one": (Asked(AnyHeads(), (X[:1],), ({0: Dim.DYNAMIC},)), Asked(AnyHeads(), (X[:2],), ({0: Dim.DYNAMIC},))),
    "pairs": (Asked(Pairs(), shapes=ANY), Asked(Pairs(), shapes=EVEN)),
    "equal": (Asked(Sum(), (X, MASK), TWO), Asked(Sum(), (X, MASK), ONE)),
    "container": (Asked(Masked(), (Sample(X, MASK),)), Asked(Masked(), (Registered(X, MASK),))),
    "numpy": (Asked(NumPy()), Asked(Torch())),
    "operator": (Asked(Calls(bare)), Asked(Calls(twice))),
}


def words(asked: Asked) -> str:
    """What export says: the kind of the error and the sentence that matters."""
    try:
        asked.export()
    except Exception as error:  # noqa: BLE001 - whatever kind it is, that is what is asked
        lines = [line.strip(" -") for line in str(error).splitlines() if line.strip()]
        said = lines[1] if lines[0].startswith(("Constraints violated", "Found the following")) else lines[0]
        said = re.sub(r"<class '\S+\.(\w+)'>", r"<class '\1'>", said)  # wherever the class stands
        return f"{type(error).__name__}: {re.split(r'[.!:] | [(]unhinted', said)[0].rstrip('.')}"
    return "exported"


# ---- strict and non-strict ------------------------------------------------------------------------------------------


# --8<-- [start:modes]
class Drawn(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * random.random()


class Timed(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * time.time()


class Configured(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * json.loads('{"scale": 2}')["scale"]


class Tried(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        try:
            return x.view(3, 3)
        except RuntimeError:
            return x


MODES = {
    "random.random()": Drawn(),
    "time.time()": Timed(),
    "json.loads(text)": Configured(),
    "try: x.view(3, 3)": Tried(),
    "x.numpy()": NumPy(),
    "if x.sum() > 0": Branch(),
}
# --8<-- [end:modes]


# ---- exported, and no longer the same -------------------------------------------------------------------------------


# --8<-- [start:silent]
class Counter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return x[0, 0] * 0 + self.calls


class Buffer(nn.Module):
    """The same with a tensor that export knows of; calling the program changes it."""

    calls: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls.add_(1)
        return x[0, 0] * 0 + self.calls


class Remembers(nn.Module):
    last: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        self.last = x
        return x + 1


class Dropped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.dropout = nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.dropout(x)


def three_calls(module: nn.Module) -> str:
    """What three calls return, the module itself and then its exported program."""
    program = export(copy.deepcopy(module), (X,)).module()
    eager, exported = ([f"{module_(X).mean():.3f}" for _ in range(3)] for module_ in (module, program))
    return f"{' '.join(eager)}   {' '.join(exported)}"


def left_behind() -> str:
    """What an attribute holds that forward has set, after export and a call of the program."""
    module = Remembers()
    export(module, (X,)).module()(X)
    return type(module.last).__name__


# --8<-- [end:silent]


# ---- saved, and loaded elsewhere ------------------------------------------------------------------------------------


# --8<-- [start:saved]
def loaded_elsewhere(program: ExportedProgram, folder: Path) -> str:
    """Load a saved program in a process that has PyTorch and nothing of ours, and call it."""
    torch.export.save(program, folder / "program.pt2")
    code = "import torch; print(tuple(torch.export.load('program.pt2').module()(torch.ones(5, 8)).shape))"
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=False)
    return done.stdout.strip() or what_failed(done.stderr)


# --8<-- [end:saved]


def what_failed(said: str) -> str:
    """The sentence of a long log that says why a program could not be loaded."""
    found = re.findall(r"^(?:.*\] )?(?:[\w.]+\.)?(\w+Error: .*)", said, flags=re.MULTILINE)
    return re.split(r"(?<=[a-z])\. ", (found or said.strip().splitlines()[-1:])[0])[0]


def doctored(path: Path, change: Callable[[str], str]) -> Path:
    """A saved program with another text in the place of its graph, as another version would have written it."""
    other = path.with_name("other.pt2")
    with zipfile.ZipFile(path) as before, zipfile.ZipFile(other, "w") as after:
        for name in before.namelist():
            data = before.read(name)
            after.writestr(name, change(data.decode()) if name.endswith("models/model.json") else data)
    return other


def load(path: Path) -> str:
    logged: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: logged.append(logging.Formatter().format(record))  # type: ignore[method-assign]
    logger = logging.getLogger("torch.export")
    logger.addHandler(handler)
    try:
        torch.export.load(path)
    except RuntimeError as error:
        return what_failed("\n".join([*logged, f"{type(error).__name__}: {error}"]))
    finally:
        logger.removeHandler(handler)
    return "loaded"


def show() -> None:
    print("==== graph")
    program = first()
    print(program.graph_module.code.strip())
    print(f"\n{program.graph_signature.user_inputs[0]}: batch {sizes(program)[0]}")

    print("==== batch")
    print(f"{'asked for, in the first dimension':<34}{'of 4 rows':>12}{'of 1 row':>12}{'4 in the code':>16}")
    for asked, (shapes, prepared) in ASKED.items():
        plain = [became(AnyHeads(), prepared(x), shapes) for x in (X, X[:1])]
        print(f"{asked:<34}{plain[0]:>12}{plain[1]:>12}{became(Heads(), prepared(X), shapes):>16}")

    print("==== refused")
    for name, (before, after) in REFUSED.items():
        print(f"{name:<10} {words(before)}")
        assert words(after) == "exported", name

    print("==== modes")
    for what, module in MODES.items():
        print(what)
        for strict in (False, True):
            print(f"    strict={strict!s:<6} {words(Asked(module, strict=strict))}")

    print("==== silent")
    torch.manual_seed(0)
    random.seed(0)
    print(f"{'three calls':<22}{'the module':<20} its program")
    for what, silent in {
        "self.calls += 1": Counter(),
        "the same, a buffer": Buffer(),
        "random.random()": Drawn(),
        "dropout, not .eval()": Dropped(),
        "dropout, .eval()": Dropped().eval(),
    }.items():
        print(f"{what:<22}{three_calls(silent)}")
    print(f"self.last = x leaves behind: {left_behind()}")

    print("==== elsewhere")
    with tempfile.TemporaryDirectory() as folder:
        print(f"{'operations of PyTorch':<24} {loaded_elsewhere(first(), Path(folder))}")
        calls = Asked(Calls(twice), shapes=BATCH).export()
        print(f"{'an operator of ours':<24} {loaded_elsewhere(calls, Path(folder))}")
        print("==== versions")
        torch.export.save(first(), path := Path(folder) / "program.pt2")
        text = json.loads(zipfile.ZipFile(path).read("program/models/model.json"))
        print(f"written as schema {text['schema_version']['major']}.{text['schema_version']['minor']}")
        for what, change in CHANGES.items():
            print(f"{what:<24} {load(doctored(path, change))}")


CHANGES: dict[str, Callable[[str], str]] = {
    "nothing": str,
    "a later minor version": lambda text: re.sub(r'("minor": )\d+', r"\g<1>999", text),
    "a later major version": lambda text: re.sub(r'("major": )\d+', r"\g<1>99", text),
    "an operation not known": lambda text: text.replace(
        "torch.ops.aten.div.Tensor", "torch.ops.aten.divide_new.Tensor"
    ),
}


def main() -> None:
    warnings.simplefilter("ignore")
    show()


if __name__ == "__main__":
    main()
