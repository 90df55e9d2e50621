"""The levels of a component side by side: checked against float64, forward and backward, and timed interleaved.

    python -m snippets.patterns.compare_levels layer_norm_gelu --shape 8192x4096 --dtype bfloat16
    python -m snippets.patterns.compare_levels --list

As a library, for implementations of your own: `print(compare({"mine": f, "theirs": g}, {"x": x}, gradients=["x"]))`.
The exit status is 1 where implementations disagree, and 2 where what was asked for is unknown or cannot run here.
"""

import argparse
import difflib
import importlib
import re
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from html import escape
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from snippets.patterns.levels import (
    LEVELS,
    Component,
    Function,
    Shape,
    forward,
    largest_summands,
    named,
    trained,
)
from snippets.validation.equivalence import check
from snippets.validation.timing import Timing, measure

COMPONENTS = {  # by name, the snippet that it stands in
    "layer_norm": "normalization",
    "rms_norm": "normalization",
    "layer_norm_gelu": "normalization",
    "gelu": "activations",
    "gelu_tanh": "activations",
    "silu": "activations",
    "quick_gelu": "activations",
    "swiglu": "activations",
    "softmax": "softmax_and_loss",
    "masked_softmax": "softmax_and_loss",
    "cross_entropy": "softmax_and_loss",
    "embedding": "embeddings",
    "positional": "embeddings",
    "rotary": "embeddings",
    "qkv": "linear",
    "gate_up": "linear",
    "linear_gelu": "linear",
    "batched": "linear",
    "experts": "linear",
    "block": "transformer_block",
}
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
COLOURS = ("#73716b", "#3d4046", "#8d63b8", "#3372ba", "#b5460f", "#8a2f5f")  # of bars, in turns


class Refused(Exception):
    """What was asked for is unknown, or cannot run here. The message is one line."""


# --8<-- [start:comparison]
@dataclass
class Line:
    """What is known of one implementation.

    Attributes:
        problem: why it has no times.
        error: its error against float64, where it is largest beside what is allowed, as a share of that.
        first: seconds of the first forward and backward, in which code is compiled.
    """

    name: str
    problem: str = ""
    error: float = 0.0
    first: float = 0.0
    forward: Timing | None = None
    step: Timing | None = None


@dataclass
class Comparison:
    """Implementations side by side: `str` is the table, `chart` the picture.

    Attributes:
        notes: what is left out, and why, a line each.
    """

    title: str
    lines: list[Line] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def agree(self) -> bool:
        return not any(line.problem for line in self.lines)

    def __str__(self) -> str:
        return as_text(self)

    def chart(self) -> str:
        """An SVG that needs nothing else."""
        return as_svg(self)


def compare(
    implementations: Mapping[str, Function],
    inputs: Mapping[str, Any],
    gradients: Sequence[str] = (),
    reference: Function | None = None,
    yardstick: str = "",
    title: str = "",
    rounds: int = 30,
) -> Comparison:
    """Check implementations against float64, forward and backward, and time those that agree, interleaved.

    Args:
        implementations: functions of the inputs, by name.
        inputs: the arguments, by name and in order.
        gradients: the arguments that get a gradient.
        reference: what is called in float64; the first implementation where it is not given.
        yardstick: the implementation that sets the bound, the first where it is not given: none may be further from
            float64 than twice its error and two roundings (see snippets/validation/equivalence.py).
        title: of the table and the chart.
        rounds: samples of each time; 0 to check only.
    """
    if not implementations or not any(isinstance(t, Tensor) for t in inputs.values()):
        raise Refused("expected at least one implementation, and a tensor among the inputs")
    device = next(t.device for t in inputs.values() if isinstance(t, Tensor))
    known = tuple(gradients)
    exact = reference or next(iter(implementations.values()))
    found = Comparison(title or f"{len(implementations)} implementations")
    incoming = tuple(torch.randn_like(y) if _differs(y) else None for y in forward(exact, inputs))
    right = _checked(found, implementations, inputs, known, exact, incoming, yardstick or next(iter(implementations)))
    if right and rounds:
        leaves, mode = trained(inputs, known), "device" if device.type == "cuda" else "calls"
        forwards = {name: partial(forward, function, inputs) for name, function in right.items()}
        steps = {name: partial(_step, function, leaves, known, incoming) for name, function in right.items()}
        with torch.no_grad():
            alone = measure(forwards, device, mode, rounds, patience=5.0)
        both = measure(steps, device, mode, rounds, patience=5.0) if known else {}
        for line in found.lines:
            line.forward, line.step = alone.get(line.name), both.get(line.name)
    return found


# --8<-- [end:comparison]


# --8<-- [start:checked]
def _checked(
    found: Comparison,
    implementations: Mapping[str, Function],
    inputs: Mapping[str, Any],
    gradients: tuple[str, ...],
    reference: Function,
    incoming: tuple[Tensor | None, ...],
    yardstick: str,
) -> dict[str, Function]:
    """The implementations that agree with float64. A line is noted of each, with what is wrong with the others."""
    wide = tuple(_wide(t) for t in incoming)
    exact = _step(reference, trained({name: _wide(t) for name, t in inputs.items()}, gradients), gradients, wide)
    results: dict[str, Mapping[str, Tensor]] = {}
    for name, function in implementations.items():
        line = Line(name)
        found.lines.append(line)
        try:
            began = time.perf_counter()
            results[name] = _step(function, trained(inputs, gradients), gradients, incoming)
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            line.first = time.perf_counter() - began
        except Exception as error:  # noqa: BLE001  whatever a function raises is said in a line
            line.problem = f"does not run: {type(error).__name__}: {_one_line(error)}"
    baseline = results.get(yardstick, next(iter(results.values()), {}))
    floats = any(isinstance(t, Tensor) and t.is_floating_point() for t in inputs.values())
    summands = largest_summands(exact, inputs) if floats else {}
    for line in found.lines:
        try:
            if not line.problem:
                line.error = _error(results[line.name], baseline, exact, summands)
        except AssertionError as error:
            line.problem = f"disagrees with float64: {_one_line(error)}"
    return {line.name: implementations[line.name] for line in found.lines if not line.problem}


# --8<-- [end:checked]


def _differs(value: Any) -> bool:
    """Whether a value may have a gradient."""
    return isinstance(value, Tensor) and (value.is_floating_point() or value.is_complex())


def _wide(value: Any) -> Any:
    """In float64, or in the complex numbers of that precision."""
    return (value.cdouble() if value.is_complex() else value.double()) if _differs(value) else value


def _step(
    function: Function, leaves: Mapping[str, Any], gradients: tuple[str, ...], incoming: tuple[Tensor | None, ...]
) -> dict[str, Tensor]:
    """All results by name. Complex ones are pairs of real numbers, and integers have no gradient."""
    outputs = forward(function, leaves)
    pairs = [(y, dy) for y, dy in zip(outputs, incoming, strict=False) if dy is not None and y.requires_grad]
    names = gradients if pairs else ()
    given = [[one for one, _ in pairs], [leaves[name] for name in names], [dy for _, dy in pairs]]
    results = named((*outputs, *(torch.autograd.grad(*given) if names else ())), names)
    return {name: torch.view_as_real(t.resolve_conj()) if t.is_complex() else t for name, t in results.items()}


def _error(
    actual: Mapping[str, Tensor], baseline: Mapping[str, Tensor], exact: Mapping[str, Tensor], summands: dict
) -> float:
    """The largest error as a share of what is allowed.

    Raises:
        AssertionError: a result misses its bound, or integers are others than the yardstick's.
    """
    for name in exact.keys() & actual.keys() & baseline.keys():
        if not exact[name].is_floating_point() and not torch.equal(actual[name], baseline[name]):
            raise AssertionError(f"{name}: expected the integers of the yardstick, got others")
    real = [{name: t for name, t in one.items() if _differs(t)} for one in (actual, baseline, exact)]
    if actual.keys() != exact.keys():
        raise AssertionError(f"expected the results {sorted(exact)}, got {sorted(actual)}")
    return max((one.error / max(one.bound, 1e-300) for one in check(*real, summands).values()), default=0.0)


def _one_line(error: Exception) -> str:
    return " ".join(re.sub(r"\x1b\[[0-9;]*m", "", str(error)).split())[:300]


# ---- the levels of a component ------------------------------------------------------------------------------------


def component(name: str) -> Component:
    """A component by its name.

    Raises:
        Refused: there is none, or its file is not here.
    """
    if name not in COMPONENTS:
        close = difflib.get_close_matches(name, COMPONENTS, n=1)
        expected = f"did you mean {close[0]}?" if close else f"expected one of {', '.join(COMPONENTS)}"
        raise Refused(f"no component {name!r}: {expected}")
    try:
        module = importlib.import_module(f"snippets.patterns.{COMPONENTS[name]}")
    except ModuleNotFoundError as error:
        raise Refused(f"{name} is in the repository, and this is its tool alone: {error}") from error
    return next(each for each in module.COMPONENTS if each.name == name)


def compare_levels(
    of: Component,
    shape: Shape,
    dtype: torch.dtype,
    device: torch.device,
    wanted: Sequence[int] = (),
    rounds: int = 30,
) -> Comparison:
    """The levels of a component that run here, side by side; what does not is noted.

    Args:
        wanted: these levels only, each of which must run here.

    Raises:
        Refused: a wanted level is none of the component's, or cannot run here.
    """
    if unknown := [number for number in wanted if number not in of.levels]:
        raise Refused(f"{of.name} has no level {unknown[0]}: expected one of {', '.join(map(str, of.levels))}")
    torch.manual_seed(0)
    functions, notes = {}, []
    for number in wanted or of.levels:
        missing = _missing(number, device)
        try:
            if not missing:
                functions[f"{number} {LEVELS[number]}"] = of.levels[number]()
        except ImportError as error:
            missing = _one_line(error)
        if missing and wanted:
            raise Refused(f"level {number}, {LEVELS[number]}, cannot run here: {missing}")
        if missing:
            notes.append(f"{number} {LEVELS[number]}: {missing}{_interpreted(of, number, device)}")
    sizes = " x ".join(map(str, shape))
    where = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU, back-to-back calls"
    title = f"{of.name}, {sizes}, {str(dtype).removeprefix('torch.')}, {where}"
    inputs, own = of.inputs(shape, dtype, device), f"{of.yardstick} {LEVELS[of.yardstick]}"
    yardstick = own if own in functions else ""
    found = compare(functions, inputs, of.gradients, of.reference, yardstick, title, rounds)
    found.notes += notes
    return found


def _missing(number: int, device: torch.device) -> str:
    """What a level needs that is not here; empty if nothing."""
    if number == 4 and device.type == "cpu":
        return "needs a GPU to be timed"
    return "needs an NVIDIA GPU" if number == 5 and (device.type == "cpu" or torch.version.hip) else ""


def _interpreted(of: Component, number: int, device: torch.device) -> str:
    """Whether level 4 agrees in Triton's interpreter, at a tiny shape; nothing where it is not on."""
    from triton import knobs

    if number != 4 or device.type != "cpu" or not knobs.runtime.interpret:
        return ""
    shape = of.shapes["tiny"]
    functions = {"yardstick": of.levels[of.yardstick](), "triton": of.levels[4]()}
    tiny = compare(functions, of.inputs(shape, torch.float32, device), of.gradients, of.reference, rounds=0)
    said = "it agrees with float64" if tiny.agree else f"it {tiny.lines[-1].problem}"
    return f"; at {' x '.join(map(str, shape))} in Triton's interpreter {said}"


# ---- what is shown --------------------------------------------------------------------------------------------------


def as_text(found: Comparison) -> str:
    """The table; times are medians, and what is in brackets is how many times as fast as the first it is."""
    first = found.lines[0]
    width = max(len(line.name) for line in found.lines) + 2
    rows = [found.title, f"{' ' * width}{'forward':>20}{'forward, backward':>22}{'first call':>12}{'error':>8}"]
    for line in found.lines:
        name = line.name.ljust(width)
        if line.problem:
            rows.append(name + line.problem)
            continue
        both = (_told(line.forward, first.forward), _told(line.step, first.step))
        rows.append(f"{name}{both[0]:>20}{both[1]:>22}{line.first:>10.2f} s{line.error:>8.2f}")
    return "\n".join([*rows, "error: the largest, as a share of what is allowed", *found.notes])


def _told(timing: Timing | None, first: Timing | None) -> str:
    if timing is None:
        return "-"
    return _time(timing.p50) + (f" ({first.p50 / timing.p50:.2f}x)" if first else "")


def _time(seconds: float) -> str:
    for unit, scale in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds * 1e6:.3g} us"


STYLE = """text { font: 14px system-ui, sans-serif; fill: #1e1f22 } .soft { fill: #585751 } .paper { fill: #fbfaf6 }
@media (prefers-color-scheme: dark) { text { fill: #e8e4da } .soft { fill: #aeaba1 } .paper { fill: #17181b } }"""


def as_svg(found: Comparison) -> str:
    """A bar for each time, those of the forward first."""
    parts, y = [], 40
    for title, times in (
        ("forward", {line.name: line.forward for line in found.lines if line.forward}),
        ("forward and backward", {line.name: line.step for line in found.lines if line.step}),
    ):
        if not times:
            continue
        parts.append(f'<text class="soft" x="16" y="{y + 16}">{title}</text>')
        y += 28
        longest = max(timing.p50 for timing in times.values())
        for index, (name, timing) in enumerate(times.items()):
            length = 380 * timing.p50 / longest
            parts.append(
                f'<text x="16" y="{y + 16}">{escape(name)}</text>'
                f'<rect x="200" y="{y + 2}" width="{length:.1f}" height="18" fill="{COLOURS[index % len(COLOURS)]}"/>'
                f'<text x="{208 + length:.1f}" y="{y + 16}">{_time(timing.p50)}</text>'
            )
            y += 26
        y += 12
    for note in [f"{line.name}: {line.problem}" for line in found.lines if line.problem] + found.notes:
        parts.append(f'<text class="soft" x="16" y="{y + 12}">{escape(note[:96])}</text>')
        y += 20
    title = escape(found.title)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 700 {y + 8}" width="700" role="img">'
        f"<title>{title}</title><style>{STYLE}</style>"
        f'<rect class="paper" width="700" height="{y + 8}"/><text x="16" y="26">{title}</text>{"".join(parts)}</svg>\n'
    )


# ---- the command ----------------------------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare what was asked for; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m snippets.patterns.compare_levels", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("component", nargs="?", help="by its name, see --list")
    parser.add_argument("--list", action="store_true", help="the components with their shapes")
    parser.add_argument("--shape", help="such as 8192x4096; the typical one on a GPU, the small one on a CPU")
    parser.add_argument("--dtype", help=f"{', '.join(DTYPES)}; bfloat16 on a GPU, float32 on a CPU")
    parser.add_argument("--levels", nargs="+", type=int, default=(), help="these only")
    parser.add_argument(
        "--chart", type=Path, help="where the SVG is written (default: compare_levels-COMPONENT-SHAPE-DTYPE.svg)"
    )
    options = parser.parse_args(arguments)
    try:
        if options.list or options.component is None:
            print("\n".join(_listed(component(name)) for name in COMPONENTS))
            return 0
        return _run(options)
    except Refused as error:
        print(error, file=sys.stderr)
        return 2


def _listed(of: Component) -> str:
    shapes = ", ".join(f"{name} {'x'.join(map(str, shape))}" for name, shape in of.shapes.items())
    return f"{of.name:20} levels {', '.join(map(str, of.levels))}; {' x '.join(of.sizes)}: {shapes}"


def _run(options: argparse.Namespace) -> int:
    of = component(options.component)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    on_gpu = device.type == "cuda"
    shape = _shape(of, options.shape) if options.shape else of.shapes["typical" if on_gpu else "small"]
    dtype = options.dtype or ("bfloat16" if on_gpu else "float32")
    if dtype not in DTYPES:
        raise Refused(f"--dtype: expected {', '.join(DTYPES)}, got {dtype!r}")
    found = compare_levels(of, shape, DTYPES[dtype], device, options.levels)
    print(found)
    chart = options.chart or Path(f"compare_levels-{of.name}-{'x'.join(map(str, shape))}-{dtype}.svg")
    chart.write_text(found.chart(), encoding="utf-8")
    print(f"the chart is in {chart}")
    return 0 if found.agree else 1


def _shape(of: Component, text: str) -> Shape:
    if not re.fullmatch(r"[1-9]\d*(x[1-9]\d*)*", text) or text.count("x") + 1 != len(of.sizes):
        example = "x".join(map(str, of.shapes["typical"]))
        raise Refused(f"--shape: expected {' x '.join(of.sizes)}, such as {example}, got {text!r}")
    return tuple(map(int, text.split("x")))


if __name__ == "__main__":
    sys.exit(main())
