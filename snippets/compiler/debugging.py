"""Which stage of torch.compile first changes a result, by float64, and which part of that stage. One file to copy.

print(bisect(function, *inputs))
print(inside(function, *inputs))
"""

import contextlib
import copy
import io
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch._functorch.config
import torch._inductor.config
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

# --8<-- [start:stages]
STAGES = {  # a backend of torch.compile, and what it adds to the one before
    "eager": "Dynamo: the graph, and what your Python became in it",
    "aot_eager": "AOTAutograd: in-place operations, aliases, the backward",
    "aot_eager_decomp_partition": "decompositions, and the cut into forward and backward",
    "aot_eager_decomp_partition_crossref": "nothing, but compares each custom operator with its fake kernel",
    "inductor": "Inductor: passes, fusion, layouts, generated code",
}
# --8<-- [end:stages]

Results = dict[str, Tensor]


@dataclass(frozen=True)
class Row:
    """What one stage made of the function."""

    stage: str
    bits: str  # whether they are those of the stage before
    problem: str = ""  # empty where the results are right


@dataclass(frozen=True)
class Report:
    """The stages up to the first that is wrong."""

    rows: list[Row]
    reference: str

    @property
    def first(self) -> str:
        """The first stage that is wrong; empty if none is."""
        return next((row.stage for row in self.rows if row.problem), "")

    def __str__(self) -> str:
        lines = [f"{row.stage:<38}{row.bits:<11}{row.problem or 'right'}" for row in self.rows]
        end = f"first wrong: {self.first}" if self.first else "no stage is wrong"
        return "\n".join([f"{'compared with ' + self.reference:<38}bits       result", *lines, end])


# --8<-- [start:bisect]
def bisect(function: Callable, *inputs: object) -> Report:
    """Run a function or module eagerly and through each stage, and stop at the first that is wrong or raises."""
    eager, reference, named = yardsticks(function, inputs)
    rows, before = [again(function, inputs, eager)], eager
    if (undeclared := undeclared_writes(function, inputs)) and not rows[-1].problem:
        rows.append(Row("eager, operators as declared", "none", undeclared))
    for stage in STAGES:
        if rows[-1].problem:
            break
        try:
            results = call(function, inputs, stage)
        except Exception as error:  # noqa: BLE001  # compilers and kernels raise anything; that is an answer here
            rows.append(Row(stage, "none", f"raises {type(error).__name__}\n    {first_line(error)}"))
            break
        rows.append(Row(stage, compared(results, before), problem(results, eager, reference)))
        before = results
    return Report(rows, named)


def again(function: Callable, inputs: tuple, eager: Results) -> Row:
    """A second eager call, with what torch.empty returns full of NaN: is there one result to speak of?"""
    with fresh_memory_is_nan():
        results = call(function, inputs)
    return Row("eager again, NaN in fresh memory", compared(results, eager), problem(results, eager, doubled(eager)))


class Declared(TorchDispatchMode):
    """Whether custom operators write to what their schema does not name: no stage of the compiler is to blame then."""

    def __init__(self) -> None:
        super().__init__()
        self.problem = ""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function.namespace in ("aten", "prims", "prim"):
            return function(*args, **(kwargs or {}))
        named = dict(zip((one.name for one in function._schema.arguments), args, strict=False)) | (kwargs or {})
        declared = {one.name for one in function._schema.arguments if one.alias_info and one.alias_info.is_write}
        given = [(name, x) for name, value in named.items() for x in tree_leaves(value) if isinstance(x, Tensor)]
        before = [x.detach().clone() for _, x in given]
        result = function(*args, **(kwargs or {}))
        for (name, x), old in zip(given, before, strict=True):
            if name not in declared and not identical(x, old):
                self.problem = self.problem or f"{function.name()} writes to {name}, which its schema does not declare"
        return result


def undeclared_writes(function: Callable, inputs: tuple) -> str:
    """What a custom operator writes to without saying so; empty if none does."""
    with Declared() as mode:
        call(function, inputs)
    return mode.problem


def yardsticks(function: Callable, inputs: tuple) -> tuple[Results, Results, str]:
    """What eager computes, the same in float64, and the name of the latter, which eager stands in for if need be."""
    eager = call(function, inputs)
    try:
        exact = call(function, inputs, double=True)
    except Exception:  # noqa: BLE001  # an operator has no float64, or a constant has another dtype
        return eager, doubled(eager), "eager"
    return (eager, exact, "float64") if near(eager, exact) else (eager, doubled(eager), "eager")


# --8<-- [end:bisect]


# --8<-- [start:call]
def call(function: Callable, inputs: tuple, backend: str | None = None, double: bool = False) -> Results:
    """All that a call leaves behind: outputs, inputs and buffers that it may have written to, gradients."""

    def fresh(value: object) -> object:
        if not isinstance(value, Tensor):
            return value
        copied = value.detach().clone()
        return (wide(copied) if double else copied).requires_grad_(value.requires_grad)

    inputs = tree_map(fresh, inputs)
    leaves: Results = {f"input {i}": x for i, x in enumerate(tree_leaves(inputs)) if isinstance(x, Tensor)}
    written = dict(leaves)
    if isinstance(function, torch.nn.Module):
        function = module = copy.deepcopy(function)
        if double:
            module._apply(wide)
        leaves |= dict(module.named_parameters())
        written |= dict(module.named_buffers())
    with same_randomness():
        run = torch.compile(function, backend=backend) if backend else function
        found = [x for x in tree_leaves(run(*inputs)) if isinstance(x, Tensor)]
        differentiable = [x for x in found if x.requires_grad]
        if differentiable:  # along a direction that is the same for every dtype
            torch.autograd.backward(
                differentiable, [torch.linspace(1, 2, x.numel()).to(x).view_as(x) for x in differentiable]
            )
    results = {f"output {i}": x for i, x in enumerate(found)}
    results |= {f"{name} after the call": x for name, x in written.items()}
    results |= {f"gradient of {name}": x.grad for name, x in leaves.items() if x.grad is not None}
    return {name: as_pairs(x.detach().clone()) for name, x in results.items()}


def wide(x: Tensor) -> Tensor:
    return x.double() if x.is_floating_point() else x.cdouble() if x.is_complex() else x


def as_pairs(x: Tensor) -> Tensor:
    """Complex numbers as their real and imaginary parts, which are rounded each for itself."""
    return torch.view_as_real(x.resolve_conj()) if x.is_complex() else x


@contextlib.contextmanager
def same_randomness() -> Iterator[None]:
    """The random numbers of eager in every stage, nothing from caches, and the generator left as it was."""
    inductor, functorch = torch._inductor.config, torch._functorch.config
    with (
        torch.random.fork_rng(),
        inductor.patch(fallback_random=True, fx_graph_cache=False),
        functorch.patch(enable_autograd_cache=False),
    ):
        torch.compiler.reset()
        torch.manual_seed(0)
        yield
        torch.compiler.reset()


@contextlib.contextmanager
def fresh_memory_is_nan() -> Iterator[None]:
    """Who reads what torch.empty returned before writing to it will have NaN, or the largest integer."""
    mode = torch.get_deterministic_debug_mode()
    torch.use_deterministic_algorithms(True, warn_only=True)  # fills, by torch.utils.deterministic's default
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode(mode)


# --8<-- [end:call]


# --8<-- [start:problem]
def problem(results: Results, eager: Results, reference: Results) -> str:
    """What is wrong with the first result that is; empty where none is."""
    for name, expected in reference.items():
        if name not in results:
            return f"{name} is missing"
        found, plain = results[name], eager[name]
        if found.shape != plain.shape:
            return f"{name} has shape {tuple(found.shape)}, eager {tuple(plain.shape)}"
        if found.dtype != plain.dtype:
            return f"{name} is {found.dtype}, eager {plain.dtype}"
        if not plain.is_floating_point():
            if not torch.equal(found, plain):
                return f"{name} is not eager's"
            continue
        if text := not_finite(found, plain, expected) or too_far(found, plain, expected):
            return f"{name}: {text}"
    return ""


def not_finite(found: Tensor, plain: Tensor, expected: Tensor) -> str:
    """NaN or infinity has to stand where float64 has it, or where eager has."""
    odd = (found.isfinite() != expected.isfinite()) & (found.isfinite() != plain.isfinite())
    return f"{int(odd.sum())} of {odd.numel()} are NaN or infinite" if odd.any() else ""


def too_far(found: Tensor, plain: Tensor, expected: Tensor) -> str:
    """Twice eager's error and two steps of the dtype are allowed, for the largest error; half a step for the RMS."""
    both = found.isfinite() & plain.isfinite() & expected.isfinite()
    found, expected, error = found[both].double(), expected[both], (plain[both].double() - expected[both]).abs()
    if not found.numel():
        return ""
    ours, eps = (found - expected).abs(), torch.finfo(plain.dtype).eps
    shares = (
        share(ours.max(), 2 * error.max() + 2 * eps * expected.abs().max()),
        share(rms(ours), 2 * rms(error) + eps / 2 * rms(expected)),
    )
    return f"error 10^{math.ceil(math.log10(max(shares)))} times its bound" if max(shares) > 1 else ""


# --8<-- [end:problem]


def near(eager: Results, exact: Results) -> bool:
    """Whether eager is close enough to float64 for its error to be a yardstick: it rounds, and does nothing else."""
    for name, plain in eager.items():
        expected = exact.get(name)
        if expected is None or expected.shape != plain.shape:
            return False
        both = plain.isfinite() & expected.isfinite()
        if plain.is_floating_point() and both.any():
            apart = rms(plain[both].double() - expected[both])
            if apart > torch.finfo(plain.dtype).eps ** 0.5 * rms(expected[both]):
                return False
    return True


def doubled(results: Results) -> Results:
    return {name: x.double() if x.is_floating_point() else x for name, x in results.items()}


def compared(results: Results, before: Results) -> str:
    same = results.keys() == before.keys() and all(identical(results[name], before[name]) for name in results)
    return "the same" if same else "others"


def share(error: Tensor, bound: Tensor) -> float:
    return float(error / bound.clamp(min=torch.finfo(torch.float64).tiny))


def rms(values: Tensor) -> Tensor:
    return values.square().mean().sqrt()


def identical(one: Tensor, other: Tensor) -> bool:
    return one.dtype == other.dtype and one.shape == other.shape and torch.allclose(one, other, 0, 0, equal_nan=True)


def first_line(error: Exception) -> str:
    """The line of an error that says what happened: not the one that only says who passed it on."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    return next((line for line in lines if not line.startswith("backend=")), "")


# --8<-- [start:inside]
def inside(function: Callable, *inputs: object) -> str:
    """Which pass, decomposition or setting of the first wrong stage makes the difference, where torch can say."""
    from torch._inductor.compiler_bisector import CompilerBisector

    eager, reference, _ = yardsticks(function, inputs)

    def right() -> bool:
        try:
            return not problem(call(function, inputs, CompilerBisector.get_backend()), eager, reference)
        except Exception:  # noqa: BLE001  # as above
            return False

    with contextlib.redirect_stdout(io.StringIO()):
        found = CompilerBisector.do_bisect(right)
    if found is None:
        return "no stage is wrong"
    part = f"{found.subsystem}: {found.debug_info}" if found.subsystem else "a part that cannot be switched off"
    return f"{found.backend}, {part}"


# --8<-- [end:inside]
