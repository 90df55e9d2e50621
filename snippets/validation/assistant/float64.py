"""Is a changed module right? Its outputs and gradients are compared with the original's in float64."""

import contextlib
import math
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from .results import SECOND, Results, coarsest, results_of
from .settings import nothing_changed, quiet, seeded
from .subject import Subject, one_line, original


@dataclass(frozen=True)
class Agreement:
    """The errors against float64 and what their bounds allow, all absolute: the largest, and the root mean square."""

    error: float
    bound: float
    rms: float = 0.0
    rms_bound: float = 0.0
    problem: str = ""  # what is wrong where no bound can be drawn

    @property
    def holds(self) -> bool:
        return not self.problem and self.error <= self.bound and self.rms <= self.rms_bound

    def __str__(self) -> str:
        both = (("largest", self.error, self.bound), ("RMS", self.rms, self.rms_bound))
        told = [one for one in both if one[1] > one[2]] or both
        return self.problem or " and ".join(f"{which} error {e:.1e}, expected at most {b:.1e}" for which, e, b in told)


def compare(actual: Tensor, baseline: Tensor, reference: Tensor, largest_summand: float | None = None) -> Agreement:
    """Hold a result against float64, by the yardstick of PyTorch's own op in the same dtype.

    largest error(actual) <= 2 * largest error(baseline) + 2 eps * largest summand
    RMS error(actual)     <= 2 * RMS error(baseline) + eps / 4 * RMS summand (see `allowance`)

    Args:
        actual: the result to judge: any shape, fp32/fp16/bf16.
        baseline: the result of the plain PyTorch op on the same inputs; same shape and dtype.
        reference: the result of that op on the same inputs, upcast to float64; same shape.
        largest_summand: the largest absolute term of the sums that make up the result, for results whose
            terms cancel; where it is not given, the largest finite absolute value of the reference.
    """
    if problem := mismatch(actual, baseline, reference):
        return Agreement(float("inf"), 0.0, problem=problem)
    if actual.numel() == 0:
        return Agreement(0.0, 0.0)
    ours, plain, inside, error = Size(), Size(), Size(), 0.0
    for result, op, exact in zip(*map(chunks, (actual, baseline, reference)), strict=True):
        of_op = distance(op, exact)
        beyond = of_op.isinf()  # where PyTorch's op itself leaves the dtype's range, doing as it does is no error
        apart = torch.where(beyond & (distance(result, op.double()) == 0), 0.0, distance(result, exact))
        error = max(error, apart.max().item())
        ours.add(torch.where(beyond, 0.0, apart))
        plain.add(of_op)
        inside.add(torch.where(beyond, 0.0, exact))
    eps = torch.finfo(actual.dtype).eps
    scale = largest_summand or inside.largest
    if plain.largest > eps**0.5 * scale:
        why = f"the baseline is {plain.largest:.1e} from the reference, whose largest summand is {scale:.1e}"
        return Agreement(float("inf"), 0.0, problem=f"no yardstick: {why}; one of the three is wrong")
    return Agreement(
        error=error,
        bound=2 * plain.largest + 2 * eps * scale,
        rms=ours.rms,
        rms_bound=max(2 * plain.rms + allowance(eps) * scale * inside.evenness, eps * scale / actual.numel() ** 0.5),
    )


def distance(result: Tensor, reference: Tensor) -> Tensor:
    """|result - reference| in float64: 0 where both are NaN or the same infinity, inf where only one is."""
    same = (result == reference) | (result.isnan() & reference.isnan())
    apart = (result.double() - reference).abs().nan_to_num(nan=float("inf"), posinf=float("inf"))
    return torch.where(same, 0.0, apart)


def chunks(tensor: Tensor, elements: int = 2**26) -> tuple[Tensor, ...]:
    """A tensor in parts: the float64 copies that a comparison makes of a large one would fill a GPU."""
    return tensor.reshape(-1).split(elements)


@dataclass
class Size:
    """How large the values are that were added; what is not finite adds nothing.

    Attributes:
        largest: the largest absolute value.
        norm: the root of the sum of squares, of so many values (`number`).
    """

    largest: float = 0.0
    norm: float = 0.0
    number: int = 0

    def add(self, values: Tensor) -> None:
        finite = values.abs().nan_to_num(nan=0.0, posinf=0.0)
        self.largest = max(self.largest, finite.max().item())
        self.norm = math.hypot(self.norm, torch.linalg.vector_norm(finite).item())
        self.number += values.numel()

    @property
    def rms(self) -> float:
        return self.norm / self.number**0.5

    @property
    def evenness(self) -> float:
        """The RMS as a share of the largest value: 1 where all are as large, less the fewer are."""
        return self.rms / (self.largest or 1.0)


def size_of(values: Tensor) -> Size:
    size = Size()
    size.add(values)
    return size


def allowance(eps: float) -> float:
    """The relative error of a result that is rounded once, by RMS: eps / 4, and of some arithmetic in fp32."""
    return eps / 4 + 4 * torch.finfo(torch.float32).eps


def mismatch(actual: Tensor, baseline: Tensor, reference: Tensor) -> str:
    """Why the three cannot be compared; empty if they can."""
    if reference.dtype != torch.float64:
        return f"expected a float64 reference, got {reference.dtype}"
    if baseline.shape != reference.shape:
        return f"expected a baseline of shape {tuple(reference.shape)}, got {tuple(baseline.shape)}"
    if actual.shape != reference.shape:
        return f"expected shape {tuple(reference.shape)}, got {tuple(actual.shape)}"
    if actual.dtype != baseline.dtype:
        return f"expected {baseline.dtype}, got {actual.dtype}"
    return ""


NARROW = {torch.float32: torch.float64, torch.float16: torch.float64, torch.bfloat16: torch.float64}
NARROW |= {torch.complex64: torch.complex128, torch.complex32: torch.complex128}
CASTS = {"float": Tensor.double, "half": Tensor.double, "bfloat16": Tensor.double, "cfloat": Tensor.cdouble}


def widened(leaf: Any) -> Any:
    """A tensor or a dtype in float64; anything else as it is."""
    if isinstance(leaf, torch.dtype):
        return NARROW.get(leaf, leaf)
    if isinstance(leaf, Tensor) and leaf.dtype in NARROW:
        return leaf.to(NARROW[leaf.dtype])
    return leaf


class Widened(TorchFunctionMode):
    """Runs a module in float64 even where it says `.float()`, names a narrower dtype, or brings a constant in one."""

    def __torch_function__(self, function: Callable, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        name = getattr(function, "__name__", "")
        if name in CASTS and args and isinstance(args[0], Tensor):
            function = CASTS[name]
        kept = args[:1] if name.endswith("_") else ()  # what is written to, or has an attribute set
        args, kwargs = tree_map(widened, (args[len(kept) :], kwargs or {}))
        return function(*kept, *args, **kwargs)


class SameNoise(TorchDispatchMode):
    """Draws the random numbers of a narrower dtype: a generator gives others for another width."""

    def __init__(self, dtype: torch.dtype):
        super().__init__()
        self.dtype = dtype

    def __torch_dispatch__(self, function: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = dict(kwargs or {})
        if torch.Tag.nondeterministic_seeded not in function.tags:
            return function(*args, **kwargs)
        if function is torch.ops.aten.native_dropout.default:  # its result is not rounded, only its mask is drawn
            mask = function(torch.ones_like(args[0], dtype=self.dtype), *args[1:])[1]
            return args[0] * mask / max(1 - args[1], 1e-300), mask
        names = {one.name for one in function._schema.arguments}
        makes = "dtype" in names and not any(isinstance(one, Tensor) for one in args)
        if makes and kwargs.get("dtype") is None and "rand" in function.name() and "int" not in function.name():
            kwargs |= {"dtype": torch.float32} if "perm" not in function.name() else {}
        narrow = tree_map(lambda leaf: self.narrowed(leaf), (args, kwargs))
        result = function(*narrow[0], **narrow[1])
        return args[0].copy_(result) if function._schema.is_mutable else tree_map(widened, result)

    def narrowed(self, leaf: Any) -> Any:
        if isinstance(leaf, Tensor) and leaf.dtype == torch.float64:
            return leaf.to(self.dtype)
        return self.dtype if leaf is torch.float64 else leaf


@contextlib.contextmanager
def in_float64(dtype: torch.dtype) -> Iterator[None]:
    """What a module of this dtype makes is made in float64, its random numbers apart, which are then widened."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with Widened(), SameNoise(dtype):
            yield
    finally:
        torch.set_default_dtype(before)


def still(module: nn.Module) -> nn.Module:
    """Without dropout, so that two versions can be compared number by number."""
    for part, name in rates(module):
        setattr(part, name, 0.0)
    return module


def rates(module: nn.Module) -> Iterator[tuple[nn.Module, str]]:
    """The attributes that say how much is dropped, of modules of PyTorch and by their usual names."""
    for part in module.modules():
        for name in ("dropout", "dropout_p", "attention_dropout", "attn_dropout", "p"):
            if type(vars(part).get(name)) in (float, int) and (name != "p" or "drop" in type(part).__name__.lower()):
                yield part, name


def drops(module: nn.Module) -> bool:
    """Whether a module drops anything in the mode that it is in."""
    return any(part.training and getattr(part, name) for part, name in rates(original(module)))


def wide_copy(subject: Subject) -> Subject:
    """The module, what it remembers, and its inputs in float64."""
    twin = subject.fresh()
    module, inputs, named = twin.module, *tree_map(wide_leaf, (twin.inputs, twin.named))
    for part in module.modules():
        for name, value in vars(part).items():
            if not name.startswith("_"):
                setattr(part, name, tree_map(wide_leaf, value))
        for own in (part._parameters, part._buffers):
            own |= {name: wide_leaf(one) for name, one in own.items() if one is not None}
    return Subject(module, inputs, named)


def wide_leaf(leaf: Any) -> Any:
    """A leaf of the graph, as it was; a parameter stays one."""
    if not isinstance(leaf, Tensor) or leaf.dtype not in NARROW:
        return leaf
    wide = widened(leaf.detach()).requires_grad_(leaf.requires_grad)
    return nn.Parameter(wide, leaf.requires_grad) if isinstance(leaf, nn.Parameter) else wide


@dataclass(frozen=True)
class Checked:
    """How far a result is from float64, in units of what the bound allows.

    Attributes:
        relative: the error by RMS of the module as it was and of the changed one, as a share of the result's own RMS,
            or of the largest of its layer's where that is more.
    """

    name: str
    share: float
    problem: str = ""
    relative: tuple[float, float] = (0.0, math.inf)

    @property
    def holds(self) -> bool:
        return not self.problem and self.share <= 1.0


@dataclass
class References:
    """What a module gives in float64, and in its own dtype.

    Attributes:
        problem: why there is nothing in float64: what the module gives in its own dtype then stands for it.
    """

    exact: Results
    baseline: Results
    problem: str = ""

    @classmethod
    def of(cls, subject: Subject, dropout: bool = True) -> "References":
        """Of a call, and of a second where the first left something that may change it."""
        prepare = (lambda module: module) if dropout else still
        with nothing_changed(), quiet():
            twin = subject.fresh()
            seeded()
            baseline = results_of(prepare(twin.module), twin.inputs, twin.named, again=None)
            again = any(name.endswith(SECOND) for name in baseline)
            try:
                seeded()
                twin = wide_copy(subject)
                during = lambda: in_float64(coarsest(subject.module, (subject.inputs, subject.named)))  # noqa: E731
                exact = results_of(prepare(twin.module), twin.inputs, twin.named, again, during)
            except torch.OutOfMemoryError:
                raise
            except Exception as error:  # noqa: BLE001  # some operations have no float64
                return cls({}, baseline, f"the original cannot run in float64: {one_line(error)}")
        problem = next((far for name in baseline if (far := astray(name, baseline, exact))), "")
        return cls({} if problem else exact, baseline, problem)


def astray(name: str, baseline: Results, exact: Results) -> str:
    """Why a result in float64 is none of the same function, such as one with other random numbers; empty if it is."""
    if not name.startswith("output"):
        return ""
    if name not in exact or exact[name].shape != baseline[name].shape:
        return f"in float64, {name} is missing or has another shape"
    agreement = judged(name, baseline, baseline, exact)
    return f"{name}: {agreement.problem}" if agreement.problem.startswith("no yardstick") else ""


def check_against(
    references: References, run: Callable[[], Results], unknown: Collection[str] = frozenset()
) -> list[Checked]:
    """Hold what `run` gives against the reference module in float64, by the error of that module in its own dtype.

    Args:
        unknown: parameters that the changed module does not have, whose gradients cannot be compared.
    """
    baseline, exact = references.baseline, references.exact
    with nothing_changed(), quiet():
        seeded()
        actual = run()
    known = [name for name in baseline if name.removeprefix("gradient of ") not in unknown]
    more = [name for name in actual if name not in baseline and not name.startswith("gradient")]
    return [checked(name, actual, baseline, exact) for name in [*known, *more]]


def summand_of_one(exact: Tensor, dtype: torch.dtype, baseline: dict[str, Tensor]) -> float | None:
    """For a single number, such as a loss: the baseline's error in it may be small by luck, and is no yardstick.

    A mean of numbers that were computed in a coarser dtype may be off by a 64th of that dtype's unit: their own errors
    of half a unit average out.
    """
    units = [torch.finfo(one.dtype).eps for one in baseline.values() if one.is_floating_point()]
    if not dtype.is_floating_point:
        return None
    own = torch.finfo(dtype).eps
    return size_of(exact.detach()).largest * max(1.0, max(units, default=own) / own / 128) or None


# --8<-- [start:checked]
def checked(name: str, actual: Results, baseline: Results, exact: Results) -> Checked:
    """Hold one result against float64, or, where there is none, against the original's own."""
    if name not in actual or name not in baseline:
        return Checked(name, math.inf, f"{name} is {'missing' if name in baseline else 'not one of the original'}")
    if not (baseline[name].is_floating_point() or baseline[name].is_complex()):
        problem = difference(actual[name], baseline[name], exact.get(name, baseline[name]))
        return Checked(name, math.inf if problem else 0.0, f"{name}: {problem}" if problem else "", (0.0, 0.0))
    agreement = judged(name, actual, baseline, exact)
    relative = relative_errors(*three_of(name, actual, baseline, exact), layer_of(name, baseline, exact))
    if agreement.problem:
        return Checked(name, math.inf, f"{name}: {agreement.problem}", relative)
    pairs = ((agreement.error, agreement.bound), (agreement.rms, agreement.rms_bound))
    share = max((error / bound for error, bound in pairs if bound), default=0.0 if agreement.holds else math.inf)
    return Checked(name, share, "" if agreement.holds else f"{name}: {agreement}", relative)


def judged(name: str, actual: Results, baseline: Results, exact: Results) -> Agreement:
    """The errors of a result of real or complex numbers, and what is allowed."""
    if actual[name].dtype != baseline[name].dtype or actual[name].shape != baseline[name].shape:
        return Agreement(math.inf, 0.0, problem=difference(actual[name], baseline[name], baseline[name]))
    three = three_of(name, actual, baseline, exact)
    layer = [size_of(one).largest for one in layer_of(name, baseline, exact) if one.numel()]
    if name not in exact or three[1].dtype == torch.float64:  # the baseline has no error of its own to go by
        size = max([*layer, size_of(three[2]).largest if three[2].numel() else 0.0])
        return compare(*three, largest_summand=UNMEASURED[name in exact] * size or None)
    one_number = summand_of_one(three[2], three[1].dtype, baseline) if three[2].numel() == 1 else None
    agreement = compare(*three, largest_summand=one_number)
    if (
        agreement.problem.startswith("no yardstick") and layer
    ):  # terms cancel; the layer's other gradients tell their size
        agreement = compare(*three, largest_summand=max(layer))
    return agreement


# --8<-- [end:checked]

UNMEASURED = {True: 1024.0, False: 16.0}  # summands allowed for: in float64, whose rounding nobody minds, and elsewhere


def three_of(name: str, actual: Results, baseline: Results, exact: Results) -> tuple[Tensor, Tensor, Tensor]:
    """A result, the original's, and the one in float64; complex numbers as pairs."""
    three = actual[name], baseline[name], widened(exact.get(name, baseline[name]))
    return tuple(torch.view_as_real(one.resolve_conj()) if one.is_complex() else one for one in three)  # type: ignore[return-value]


def layer_of(name: str, baseline: Results, exact: Results) -> list[Tensor]:
    """The gradients of a layer, all in float64."""
    layer = name.rpartition(".")[0] if name.startswith("gradient") else ""
    names = [each for each in baseline if layer and each.startswith(f"{layer}.")]
    return [three_of(each, baseline, baseline, exact)[2] for each in names]


def difference(actual: Tensor, baseline: Tensor, exact: Tensor) -> str:
    """What is wrong with integers, truth values or words; empty if nothing is.

    Where float64 already decides another way than the original, such as between two equal scores, either is right.
    """
    if actual.dtype != baseline.dtype:
        return f"expected {baseline.dtype}, got {actual.dtype}"
    if actual.shape != baseline.shape:
        return f"expected shape {tuple(baseline.shape)}, got {tuple(actual.shape)}"
    decided = baseline == exact if exact.shape == baseline.shape else torch.ones_like(baseline, dtype=torch.bool)
    other = int(((actual != baseline) & decided).sum())
    return f"{other} of {baseline.numel()} are others than the original's" if other else ""


def relative_errors(actual: Tensor, baseline: Tensor, exact: Tensor, layer: list[Tensor]) -> tuple[float, float]:
    """The RMS of the error before and after, as a share of the size of the result."""
    if actual.shape != exact.shape or not exact.numel():
        return 0.0, 0.0 if actual.shape == exact.shape else math.inf
    size = max(size_of(one.detach().double()).rms for one in (exact, *layer)) or 1.0
    return size_of(distance(baseline, exact)).rms / size, size_of(
        distance(actual, exact).nan_to_num(posinf=1e300)
    ).rms / size
