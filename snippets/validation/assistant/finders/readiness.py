"""What keeps torch.compile and CUDA graphs from a module."""

import ast
import functools
import linecache
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator

import torch
from torch.utils._pytree import tree_leaves

from ..calls import Call
from ..findings import Finding, in_order
from ..graphs import Break, Captured, Recompiled
from ..lines import Line
from ..names import words
from ..trace import Trace
from .sizes import instead

BREAKS = "compiler/graph-breaks.md"
COMPREHENSIONS = ("<listcomp>", "<dictcomp>", "<setcomp>")  # functions of their own before Python 3.12
CAUSES = {
    r"one_hot": ("item", "give one_hot the number of classes"),
    r"trace_autograd_ops": (
        "autograd",
        "torch._dynamo.config.trace_autograd_ops = True, and requires_grad_() outside of what is compiled",
    ),
    r"Data-dependent branching|generic_jump": (
        "branch",
        "torch.where, or torch.cond where one side is expensive; for a loop's end, a fixed number of turns",
    ),
    r"Tensor\.item|scalar_outputs|_local_scalar": ("item", "keep the number a tensor"),
    r"print|[Ll]ogg": ("logging", "print outside, or name the function in config.reorderable_logging_functions"),
    r"[Nn]um[Pp]y": ("numpy", "write it in torch"),
    r"context manager": ("context", "put the with statement around the compiled call"),
    r"generator|iternext": ("generator", "pass what the generator yields"),
    r"autograd\.Function": ("autograd", "mend the body of the function as if it stood alone"),
    r"requires_grad_|setattr|mutat": ("mutation", "change the state before the first call"),
    r"tolist|dynamic shape|nonzero|data.dependent": (
        "item",
        "let no shape depend on values: keep all rows, and mask those that do not count",
    ),
    r"skipped|builtin|disable|C function": ("library", "call it outside, or wrap it with torch.library.custom_op"),
}  # fmt: skip


SYMBOLIC = "a comparison of sizes is no bool in a graph that serves several sizes"


def graph_breaks(trace: Trace, captured: Captured) -> Iterator[Finding]:
    """Every line at which Dynamo ends a graph, or gives a function up."""
    for one in captured.breaks:
        if one.line.function in COMPREHENSIONS and "tp_iternext" in one.reason:
            continue  # Dynamo tries it alone where it gave up the function around it, which has a finding
        anchor, change = mended(trace, one)
        what = "ends the graph"
        if one.skipped:
            inside = ", since it stands in a loop, a with or a try" if stands_inside(one.line) else ""
            what = f"makes the whole function run uncompiled{inside}"
        rnn = "RNN" in one.reason or "allow_rnn" in one.reason or change == PACKED
        yield Finding(
            "graph-break",
            f"A graph break: the line {what}",
            (one.line,),
            f"Dynamo: {one.reason}",
            change,
            f"{BREAKS}#{anchor}",
            kernels=trace.kernels // 2,
            weight="note" if rnn else "finding",
        )


@functools.cache
def stands_inside(line: Line) -> bool:
    """Whether a line stands in a loop, a with or a try of its function, as far as its file can be read."""
    try:
        tree = ast.parse("".join(linecache.getlines(line.file)))
    except SyntaxError:
        return False
    held = [node for node in ast.walk(tree) if isinstance(node, HOLDING + FUNCTIONS) and holds_line(node, line)]
    innermost = max(held, key=lambda node: (node.lineno, node.col_offset), default=None)
    return isinstance(innermost, HOLDING)


HOLDING = (ast.For, ast.While, ast.With, ast.Try, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


def holds_line(node: ast.stmt | ast.expr, line: Line) -> bool:
    return node.lineno <= line.number <= (node.end_lineno or node.lineno)


BY_VALUE = re.compile(r"data.dependent|tolist|Tensor\.item|scalar_outputs|_local_scalar|dynamic shape", re.IGNORECASE)


def mended(trace: Trace, one: Break) -> tuple[str, str]:
    """The part of the page on a break's cause, and what ends the break."""
    if any("pack" in call.name and call.name.endswith("_sequence") for call in calls_at(trace, one.line)):
        return "library", PACKED
    if symbolic := re.search(r"argument '(\w+)' must be bool, not SymBool", one.reason):
        return "library", f"{SYMBOLIC}: give {symbolic[1]} a bool that the caller computes outside of it"
    if one.by_size:
        return "library", "it breaks once sizes change: torch.compile(dynamic=False), a graph for each size, does not"
    if re.search(r"\b(np|numpy)\.", one.line.text):
        return "numpy", "write it in torch, or where it reads no tensor, make it once, as a buffer"
    told = (instead(trace, call) for call in trace.calls if call.line == one.line)
    if BY_VALUE.search(one.reason) and (size := next(filter(None, told), "")):
        return "item", size
    if re.search(r"dynamic shape operator", one.reason, re.IGNORECASE) and not any(
        map(chooses, calls_at(trace, one.line))
    ):
        return "library", OUTSIDE
    values = re.search(r"data.dependent operator|tolist", one.reason, re.IGNORECASE)
    reads = [call.index for call in trace.calls if call.line == one.line and call.name in NUMBERS]
    cuts = any(call.name in CUTS and call.index > reads[0] for call in trace.calls) if reads else False
    if values and reads and not cuts:
        return "item", "do on the device what Python does with the numbers: torch.isin, torch.where, an index"
    found = (found for pattern, found in CAUSES.items() if re.search(pattern, one.reason, re.IGNORECASE))
    return next(found, ("library", "write the line in operations that Dynamo captures, or move it out of the module"))


PACKED = (
    "packed rows go around the graph: compile what comes before and what comes after, and leave the packing and the "
    "recurrent layer as they are"
)
OUTSIDE = (
    "the size of what the operator gives depends on values, and nothing captures it: call it outside of what is "
    "compiled, as a loss after it, or wrapped in torch.compiler.disable"
)
COUNTED = words(
    "nonzero argwhere masked_select unique unique_consecutive bincount repeat_interleave one_hot item tolist"
)


def calls_at(trace: Trace, line: Line) -> list[Call]:
    return [call for call in trace.calls if call.line == line]


def chooses(call: Call) -> bool:
    """Whether a call gives as many rows as values say, of which the author can keep all and mask some."""
    by_mask = call.name in ("index", "getitem", "setitem") and call.facts.get("by mask")
    return call.name in COUNTED or bool(by_mask) or (call.name == "where" and len(call.inputs) == 1)


CUTS = words("split tensor_split split_with_sizes narrow repeat_interleave")  # by numbers that the host knows


def recompilations(trace: Trace, captured: Captured) -> Iterator[Finding]:
    """What makes another graph at the same sizes, or at each new one: a size by its line, all values together."""
    by_place: dict[Line | None, list[Recompiled]] = defaultdict(list)
    for one in (each for each in captured.recompiled if not of_pieces(trace, each)):
        by_place[None if VALUE.search(one.reason) else one.line].append(one)
    for group in by_place.values():
        first, reasons = group[0], list(dict.fromkeys(one.reason for one in group))
        changes = first.by_size or VALUE.search(first.reason) or "size" in first.reason
        changes = changes and not re.search(r"%|Mod|^len\(", first.reason)
        settles = len(reasons) == 1 and not changes  # as what is made at the first call, once
        settles |= all("//" in reason for reason in reasons)  # a loop over chunks: a graph serves a range of sizes
        named = not settles and not first.line.text.startswith(("def ", "@", "async "))
        named &= first.marked or not first.by_size or bool(OF_SIZES.search(first.line.text))
        yield Finding(
            "recompilation",
            "A recompilation: what is compiled serves one value only",
            tuple(dict.fromkeys([*(line for one in group for line in one.causes), *(one.line for one in group)])),
            f"{len(group)} more graph{'s' * (len(group) > 1)} over {captured.sizes} sizes of the inputs; "
            f"what changed: {'; '.join(reasons)}",
            settled(first),
            "compiler/recompilation.md#what-the-log-says-and-what-ends-it",
            kernels=trace.kernels // 2,
            weight="finding" if named else "note",
        )


def of_pieces(trace: Trace, one: Recompiled) -> bool:
    """Whether a size is how many pieces a list that no call changes cuts something else into."""
    found = re.match(r"dimension [1-9] of .*: (\d+), then ", one.reason)
    cuts = (call.arguments[1] for call in trace.calls if call.name in CUTS and len(call.arguments) > 1)
    return found is not None and int(found[1]) in {len(one) for one in cuts if isinstance(one, tuple)}


VALUE = re.compile(r"^[^%]*== -?[\d.]+$")
OF_SIZES = re.compile(
    r"\b(for|while|if|assert|range|len|zip|enumerate|split|chunk|unbind|int|float|round|math|np|shape|size|one_hot)\b"
)


def settled(one: Recompiled) -> str:
    """What ends the recompilations, by what the line does with the size or the value."""
    text = one.line.text
    if one.marked:
        return "torch._dynamo.mark_dynamic of that dimension before the first call"
    if "one_hot(" in text:
        return "one_hot makes a constant of the number of classes: compare with torch.arange of it instead"
    if one.causes or not (one.by_size or "size" in one.reason):
        return "keep the value in a tensor, such as a buffer, and change it in place"
    if re.search(r"\b(int|float|round)\(|\b(math|np)\.", text):
        return (
            "Python's numbers make a constant of the size: integer arithmetic for a shape, "
            "torch.full((), size, device=...) and torch's functions for a value"
        )
    if re.search(r"\b(for|while)\b|unbind|split|chunk", text):
        return "a loop over a size is unrolled: one call for all turns, or compile the step alone"
    return "let the size stay a symbol: no comparison, no number stored, no list made of it on the host"


SHAPED = words(
    "meshgrid stack cat flatten ravel permute transpose sum cumprod sin cos cartesian_prod combinations roll flip sqrt "
    "rsub abs repeat_interleave tile squeeze chunk split unbind getitem index "
    "tril triu view reshape unsqueeze expand repeat bool float long int mul add sub div neg pow exp eq ge gt lt "
    "le bitwise_not outer setitem fill copy masked_fill cumsum log where zero"
)
MADE_ON_HOST = words("tensor as_tensor from_numpy new_tensor")
FACTORIES = words("arange zeros ones full randn rand eye linspace randperm tril_indices triu_indices")


def made_on_host(trace: Trace, captured: Captured) -> Iterator[Finding]:
    """Tensors that are made in the host's memory at each call, and copied: no CUDA graph can hold that."""
    for call in trace.calls:
        if "compile" in call.inside or call.out is None:
            continue
        constant = call.name in MADE_ON_HOST and not call.inputs and call.out.shape != ()
        made = call.name in FACTORIES and "device" not in call.named and call.out.device == "cpu"
        users = trace.past(call.out, SHAPED - {"to"}) if constant or made else []
        moved = [user for user in users if user.name in ("to", "cuda", "type_as") and moves(user)]
        brought = bool(call.inputs) and call.inputs[0].origin == "found" and call.inputs[0].device == "cpu"
        listed = constant or call.facts.get("by list")
        if listed:
            what = f"{call.name} makes it" if constant else "the list of places is made a tensor"
            change = from_where(trace, call, in_float32([call, *moved]))
            yield host_finding([call, *moved], f"{what} on the host", change=change)
        elif brought and moves(call) and call.name in ("to", "cuda", "type_as"):
            what = f"{call.name} copies a tensor that is no buffer, so it stays on the host"
            yield host_finding([call], what, change=f"{BUFFER}{in_float32([call])}")
        elif made and moved:
            made_there = f", or make it where it is used, with {device_named(in_order(moved))}"
            yield host_finding([call, *moved], f"{call.name} makes it on the host", made_there)


def in_float32(calls: list[Call]) -> str:
    """That a buffer is better kept narrow, where what becomes of it is in fp64."""
    wide = calls[-1].out is not None and calls[-1].out.dtype in (torch.float64, torch.complex128)
    return ", in float32 unless it needs more than seven digits" if wide else ""


def from_where(trace: Trace, call: Call, narrow: str) -> str:
    """What to do instead of a tensor of Python's numbers, by where the numbers are from."""
    if reads_before(trace, call):
        return "compute it on the device, from the tensors whose numbers the host reads"
    numbers = {one for one in tree_leaves((call.arguments, call.named)) if type(one) is int}
    if numbers and numbers <= trace.numbers:
        return "make it a tensor on the device where the list is made, and give forward the tensor"
    return f"{BUFFER}{narrow}"


BUFFER = "make it once, as a buffer of the module"


def reads_before(trace: Trace, call: Call) -> bool:
    """Whether the function that makes a tensor has read numbers before: they may be in it."""
    read = [one for one in trace.calls if one.index < call.index and one.name in NUMBERS]
    return any(activation == call.where[-1][0] for one in read for activation, _ in one.where)


NUMBERS = words("item tolist __int__ __float__ __index__")


def host_finding(calls: list[Call], what: str, otherwise: str = "", change: str = BUFFER) -> Finding:
    return Finding(
        "cuda-graph",
        "A tensor is made in the host's memory at each call",
        in_order(calls, calls[0]),
        f"{what}, and the copy to a GPU waits; a CUDA graph would replay the first one",
        f"{change}{otherwise}",
        "compiler/what-compile-does.md#where-it-loses",
        kernels=2,
    )


def device_named(lines: Iterable[Line]) -> str:
    """The argument that makes a tensor on the right device, which the lines that move the tensor may name."""
    found = re.search(r"\.to\((?:device=)?([A-Za-z_][\w.]*\.device)\b", " ".join(line.text for line in lines))
    return f"device={found[1]}" if found else "the device= of a tensor that is there already"


def moves(call: Call) -> bool:
    """Whether a `to` names a device."""
    given = [*call.arguments[1:], *call.named.values()]
    return call.name in ("cuda", "type_as") or any(isinstance(one, (torch.device, str, type(None))) for one in given)


def written_inputs(trace: Trace, captured: Captured) -> Iterator[Finding]:
    """Inputs that forward overwrites."""
    for call in trace.calls:
        if call.writes and call.inputs and call.inputs[0].origin == "input":
            yield Finding(
                "cuda-graph",
                "The module writes into its input",
                (call.line,),
                f"{call.name} changes the caller's tensor; torch.compile then makes no CUDA graph "
                f"(mode='reduce-overhead')",
                "write into a new tensor",
                "compiler/what-compile-does.md#where-it-loses",
            )
