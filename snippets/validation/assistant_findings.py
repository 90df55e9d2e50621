"""What is wrong with a module: one function a kind of fault, each from evidence that was collected before.

Readiness for compilation, memory and the efficiency of kernels stand here; what could be fused, in assistant_patterns.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

import torch

from snippets.validation.assistant_capture import Captured
from snippets.validation.assistant_module import products_in_tf32
from snippets.validation.assistant_trace import CASTS, VIEWS, Call, Line, Trace, Value, words

GROUPS = {
    "readiness": "Compilation readiness",
    "fusion": "Fusion opportunities",
    "memory": "Memory bottlenecks",
    "kernels": "Kernel efficiency",
}
LAUNCH, MEMORY = (
    5e-6,
    4e12,
)  # seconds of host time an eager operation, bytes a second: to order findings by, never shown


# --8<-- [start:finding]
@dataclass(frozen=True)
class Finding:
    """One thing to change: what it is, where, how it is known, and the page that explains it.

    Attributes:
        kind: in one word or two, such as "graph-break".
        lines: all that take part, the one to look at first in front.
        saves: bytes that would not be moved in one forward, as far as they can be counted.
        kernels: launches that would not be made in one forward.
        weight: "finding", or "note" for what is worth knowing and no fault.
    """

    kind: str
    group: str
    title: str
    lines: tuple[Line, ...]
    evidence: str
    change: str
    page: str
    saves: int = 0
    kernels: int = 0
    times: int = 1
    weight: str = "finding"

    @property
    def line(self) -> Line:
        return self.lines[0]

    @property
    def gain(self) -> float:
        """Seconds, roughly, on a large GPU: only the order of findings comes from it."""
        return self.saves / MEMORY + self.kernels * LAUNCH


def merged(findings: Iterable[Finding]) -> list[Finding]:
    """The same finding in every layer of a model is one, found so many times; the largest gain first."""
    found: dict[tuple, Finding] = {}
    for one in findings:
        key = one.kind, one.line.file, one.line.number, one.weight
        if key in found:
            old = found[key]
            both = tuple(dict.fromkeys((*old.lines, *one.lines)))
            found[key] = replace(
                old,
                lines=both,
                saves=old.saves + one.saves,
                kernels=old.kernels + one.kernels,
                times=old.times + one.times,
            )
        else:
            found[key] = one
    return sorted(found.values(), key=lambda one: (one.weight != "finding", -one.gain))


# --8<-- [end:finding]


def in_order(calls: Iterable[Call], first: Call | None = None) -> tuple[Line, ...]:
    """The lines of some calls, each once, as they ran."""
    lines = [call.line for call in sorted(calls, key=lambda call: call.index)]
    return tuple(dict.fromkeys([*([first.line] if first else []), *lines]))


def size(count: float) -> str:
    """Bytes, as people say them."""
    for unit in ("bytes", "KB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            return f"{count:.0f} {unit}" if unit == "bytes" or count >= 99.5 else f"{count:.1f} {unit}"
        count /= 1000
    raise AssertionError


# ---- compilation readiness ------------------------------------------------------------------------------------------

BREAKS = "compiler/graph-breaks.md"


_CAUSES = {
    r"Data-dependent branching|generic_jump": ("branch", "torch.where, or torch.cond where one side is expensive"),
    r"Tensor\.item|scalar_outputs|_local_scalar": ("item", "keep the number a tensor"),
    r"print|[Ll]ogg": ("logging", "print outside, or name the function in config.reorderable_logging_functions"),
    r"[Nn]um[Pp]y": ("numpy", "write it in torch"),
    r"context manager": ("context", "put the with statement around the compiled call"),
    r"generator|iternext": ("generator", "pass what the generator yields"),
    r"autograd\.Function": ("autograd", "mend the body of the function as if it stood alone"),
    r"requires_grad_|setattr|mutat": ("mutation", "change the state before the first call"),
    r"tolist|dynamic shape|nonzero|data.dependent": ("item", "let no shape depend on values: use torch.where"),
    r"skipped|builtin|disable|C function": ("library", "call it outside, or wrap it with torch.library.custom_op"),
}  # fmt: skip


def graph_breaks(trace: Trace, captured: Captured) -> Iterator[Finding]:
    """Every line at which Dynamo ends a graph, or gives a function up."""
    for one in captured.breaks:
        anchor, change = next(
            (found for pattern, found in _CAUSES.items() if re.search(pattern, one.reason, re.IGNORECASE)),
            ("library", "move the line out of the module"),
        )
        what = "ends the graph"
        if one.skipped:
            what = "makes the whole function run uncompiled, since it stands in a loop, a with or a try"
        rnn = "RNN" in one.reason or "allow_rnn" in one.reason
        yield Finding(
            "graph-break",
            "readiness",
            f"A graph break: the line {what}",
            (one.line,),
            f"Dynamo: {one.reason}",
            change,
            f"{BREAKS}#{anchor}",
            kernels=trace.kernels // 2,
            weight="note" if rnn else "finding",
        )


def recompilations(trace: Trace, captured: Captured) -> Iterator[Finding]:
    """What makes another graph at the same sizes, or at each new one."""
    for line in dict.fromkeys(one.line for one in captured.recompiled):
        reasons = [one.reason for one in captured.recompiled if one.line == line]
        causes = [cause for one in captured.recompiled if one.line == line for cause in one.causes]
        change = "make what changes a tensor, or keep it out of forward"
        changes = re.search(r"size|== -?[\d.]+", reasons[0]) and not re.search(r"%|Mod|^len\(", reasons[0])
        settles = len(reasons) == 1 and not changes  # as what is made at the first call, once
        settles |= all("//" in reason for reason in reasons)  # a loop over chunks: a graph serves a range of sizes
        named = not settles and not line.text.startswith(("def ", "@", "async "))
        if any("size" in reason for reason in reasons):
            change = "do not compare, loop over or store the size: let it stay a symbol"
        yield Finding(
            "recompilation",
            "readiness",
            "A recompilation: what is compiled serves one value only",
            tuple(dict.fromkeys((*causes, line))),
            f"{len(reasons)} more graph{'s' * (len(reasons) > 1)} over {captured.sizes} sizes of the inputs; "
            f"failed: {reasons[0]}",
            change,
            "compiler/recompilation.md#what-the-log-says-and-what-ends-it",
            kernels=trace.kernels // 2,
            weight="finding" if named else "note",
        )


_MADE_ON_HOST = ("tensor", "as_tensor", "from_numpy", "new_tensor")
_FACTORIES = (
    "arange",
    "zeros",
    "ones",
    "full",
    "randn",
    "rand",
    "eye",
    "linspace",
    "randperm",
    "tril_indices",
    "triu_indices",
)


def made_on_host(trace: Trace, captured: Captured) -> Iterator[Finding]:
    """Tensors that are made in the host's memory at each call, and copied: no CUDA graph can hold that."""
    for call in trace.calls:
        if "compile" in call.inside or call.out is None:
            continue
        moved = [
            user
            for user in past(trace, call.out, _SHAPED - {"to"})
            if user.name in ("to", "cuda", "type_as") and moves(user)
        ]
        constant = call.name in _MADE_ON_HOST and not call.inputs and call.out.shape != ()
        made = call.name in _FACTORIES and "device" not in call.named and call.out.device == "cpu"
        brought = bool(call.inputs) and call.inputs[0].origin == "found" and call.inputs[0].device == "cpu"
        if call.facts.get("by list"):
            yield host_finding([call], "the list of places is made a tensor on the host")
        elif brought and moves(call) and call.name in ("to", "cuda", "type_as"):
            yield host_finding([call], f"{call.name} copies a tensor that is no buffer, so it stays on the host")
        elif constant:  # its numbers come from Python, whichever device= they are for
            yield host_finding([call, *moved], f"{call.name} makes it on the host")
        elif made and moved:
            made_there = f", or make it where it is used, with {device_named(in_order(moved))}"
            yield host_finding([call, *moved], f"{call.name} makes it on the host", made_there)


def host_finding(calls: list[Call], what: str, otherwise: str = "") -> Finding:
    return Finding(
        "cuda-graph",
        "readiness",
        "A tensor is made in the host's memory at each call",
        in_order(calls, calls[0]),
        f"{what}, and the copy to a GPU waits; a CUDA graph would replay the first one",
        f"make it once, as a buffer of the module{otherwise}",
        "compiler/what-compile-does.md#where-it-loses",
        kernels=2,
    )


def device_named(lines: Iterable[Line]) -> str:
    """The argument that makes a tensor on the right device, which the lines that move the tensor may name."""
    found = re.search(r"\.to\((?:device=)?([A-Za-z_][\w.]*\.device)\b", " ".join(line.text for line in lines))
    return f"device={found[1]}" if found else "the device= of a tensor that is there already"


_SHAPED = words(
    "tril triu view reshape unsqueeze expand repeat bool float long int mul add sub div neg pow exp eq ge gt lt "
    "le bitwise_not outer setitem fill copy masked_fill cumsum log where zero"
)


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
                "readiness",
                "The module writes into its input",
                (call.line,),
                f"{call.name} changes the caller's tensor; torch.compile then makes no CUDA graph "
                f"(mode='reduce-overhead')",
                "write into a new tensor",
                "compiler/what-compile-does.md#where-it-loses",
            )


# ---- memory ---------------------------------------------------------------------------------------------------------

PRODUCTS = words(
    "matmul bmm einsum baddbmm addmm linear conv1d conv2d conv3d conv_transpose1d conv_transpose2d mv tensordot "
    "inner addbmm"
)
POINTWISE = words(
    "add sub rsub mul div neg exp exp2 expm1 log log1p log2 sqrt rsqrt pow square reciprocal abs sign sin cos tan "
    "tanh sigmoid relu relu6 silu gelu elu selu leaky_relu softplus mish hardswish hardsigmoid hardtanh erf erfc "
    "clamp clamp_min clamp_max maximum minimum where masked_fill dropout lerp addcmul addcdiv sinh cosh atan sgn "
    "floor ceil round nan_to_num logsigmoid celu threshold prelu bitwise_and bitwise_or bitwise_not logical_and "
    "logical_not logical_or eq ne lt le gt ge copysign fmod remainder fill alpha_dropout xlogy logit heaviside"
)
REDUCTIONS = words("sum mean amax amin max min norm var std prod logsumexp var_mean std_mean all any argmax argmin")
NORMS = frozenset(["layer_norm", "rms_norm", "batch_norm", "group_norm", "instance_norm", "normalize"])


def layout_copies(trace: Trace, captured: Captured) -> Iterator[Finding]:
    """Copies that only change how a tensor lies in memory, though what follows takes any layout."""
    takes_any = PRODUCTS | POINTWISE | REDUCTIONS | NORMS | {"scaled_dot_product_attention", "softmax"}
    for call in trace.calls:
        if call.name not in ("contiguous", "clone") or not call.kernels or call.out is None or call.inside:
            continue
        users = past(trace, call.out, {"to", "transpose", "T", "mT", "t", "permute"})
        if users and all(user.name in takes_any and not user.writes for user in users):
            names = ", ".join(dict.fromkeys(user.name for user in users))
            yield Finding(
                "copy",
                "memory",
                "A copy that only changes the layout",
                (call.line,),
                f"{call.name} copies {size(call.out.bytes)}; what follows ({names}) takes any strides",
                f"leave out {call.name}()",
                "compiler/fusion.md#layout",
                saves=call.moved,
                kernels=1,
            )


def repeats(trace: Trace, captured: Captured) -> Iterator[Finding]:
    """Copies of the same numbers, where broadcasting or a flag would do."""
    for call in trace.calls:
        if call.out is None or not call.kernels or not call.inputs or "compile" in call.inside:
            continue
        source = call.inputs[0] if call.name in ("repeat", "tile", "repeat_interleave") else narrow(trace, call)
        if source is None or call.out.numel < 2 * source.numel or source.origin == "parameter":
            continue
        users = past(trace, call.out, VIEWS - {"clone", "contiguous"})
        attention = any(user.name == "scaled_dot_product_attention" for user in users)
        if users and all(user.name in PRODUCTS | POINTWISE | {"scaled_dot_product_attention"} for user in users):
            yield Finding(
                "copy",
                "memory",
                "The same numbers are copied several times",
                (call.line,),
                f"{call.name} makes {size(call.out.bytes)} of {size(source.bytes)}",
                "give scaled_dot_product_attention enable_gqa=True"
                if attention
                else "let broadcasting do it: expand copies nothing",
                "patterns/attention.md#one-kernel" if attention else "compiler/fusion.md#layout",
                saves=call.moved,
                kernels=1,
            )


def narrow(trace: Trace, call: Call) -> Value | None:
    """What was expanded before a call copies it; None if nothing was, or the call copies nothing."""
    maker = trace.makers.get(call.inputs[0].id) if call.name in ("reshape", "contiguous", "flatten", "clone") else None
    while maker is not None and maker.name in VIEWS:
        if maker.name in ("expand", "broadcast_to"):
            return maker.inputs[0]
        maker = trace.makers.get(maker.inputs[0].id)
    return None


def outsized(trace: Trace, captured: Captured) -> Iterator[Finding]:
    """Temporaries that are far larger than what they are made of and what comes of them."""
    for call in trace.calls:
        if call.name not in POINTWISE or call.out is None or len(call.inputs) < 2 or "compile" in call.inside:
            continue
        largest = max(root(trace, one).numel for one in call.inputs)
        if call.out.numel < 8 * largest or call.out.bytes < 2**16:
            continue
        reduced = [user for user in past(trace, call.out, POINTWISE | CASTS) if user.name in REDUCTIONS]
        if reduced:
            path = [call, *between(trace, call, reduced[0]), reduced[0]]
            yield Finding(
                "temporary",
                "memory",
                "A temporary far larger than its inputs, made to be reduced",
                in_order(path, call),
                f"{call.name} makes {size(call.out.bytes)} of "
                f"{size(sum(root(trace, one).bytes for one in call.inputs))}, and {reduced[0].name} sums it up",
                "write it as a matrix product or torch.cdist; torch.compile fuses the two",
                "compiler/fusion.md#rows",
                saves=2 * call.out.bytes,
                kernels=1,
            )


def one_hot_products(trace: Trace, captured: Captured) -> Iterator[Finding]:
    """A product with a matrix of zeros and ones, where a look-up would do."""
    for call in trace.calls:
        if call.name == "one_hot" and call.out is not None:
            products = [user for user in past(trace, call.out, CASTS | VIEWS) if user.name in PRODUCTS]
            if products:
                yield Finding(
                    "temporary",
                    "memory",
                    "A look-up written as a product",
                    in_order([call, *products], call),
                    f"one_hot makes {size(call.out.bytes)}, almost all zeros",
                    "index the table: F.embedding(index, table)",
                    "compiler/fusion.md#scatter",
                    saves=2 * call.out.bytes + products[0].moved,
                    kernels=2,
                )


def growing(trace: Trace, captured: Captured) -> Iterator[Finding]:
    """A tensor that grows by concatenation in a loop: each turn copies all that is there."""
    for groups in trace.loops.values():
        for calls in groups:
            links = sum(any(value in earlier.outputs for value in later.inputs) for earlier, later in pairwise(calls))
            if calls[0].name == "cat" and links >= 3:
                yield Finding(
                    "growing",
                    "memory",
                    "A tensor grows by concatenation in a loop",
                    (calls[0].line,),
                    f"{len(calls)} copies of all that came before, {size(sum(call.moved for call in calls))} in all",
                    "collect the parts in a list and concatenate once, or write into a tensor of the final size",
                    "compiler/fusion.md#layout",
                    saves=sum(call.moved for call in calls[:-1]),
                    kernels=len(calls) - 1,
                )
                return


def kept_graphs(trace: Trace, captured: Captured) -> Iterator[Finding]:
    """Results that the module stores with their graph: every activation behind them stays in memory."""
    for line in trace.held:
        yield Finding(
            "kept-graph",
            "memory",
            "The module stores a result with its graph",
            (line,),
            "the tensor still has a grad_fn after the call: all activations that it depends on stay in memory",
            "store x.detach()",
            "compiler/graph-breaks.md#hooks",
            saves=sum(kept.bytes for kept in trace.saved),
        )


def saved_activations(trace: Trace, captured: Captured) -> Iterator[Finding]:
    """The lines whose results take the most memory until backward: worth knowing, no fault."""
    by_line: dict[Line, list] = {}
    for kept in trace.saved:
        by_line.setdefault(kept.line, []).append(kept)
    total = sum(kept.bytes for kept in trace.saved)
    for line, kept in sorted(by_line.items(), key=lambda item: -sum(one.bytes for one in item[1]))[:5]:
        held = sum(one.bytes for one in kept)
        if 10 * held >= total:
            largest = kept[0]
            shape = "×".join(map(str, largest.shape))
            yield Finding(
                "saved",
                "memory",
                "Kept for backward",
                (line,),
                f"{size(held)} of {size(total)} in {len(kept)} tensors; the largest is {shape} "
                f"{str(largest.dtype)[6:]}, by {largest.made_by}",
                "recompute it in backward: torch.utils.checkpoint around the part that makes it",
                "compiler/what-compile-does.md#aotautograd-backward-too-in-fewer-kinds-of-operation",
                weight="note",
            )


# ---- kernels --------------------------------------------------------------------------------------------------------

_READS = {
    "item": "reads a number", "tolist": "reads all numbers", "__bool__": "asks whether a tensor is true",
    "__int__": "reads a number",
    "__float__": "reads a number", "__index__": "reads a number", "cpu": "copies to the host",
    "numpy": "copies to the host",
    "nonzero": "counts what is not zero", "masked_select": "counts what is selected",
    "unique": "counts what is different",
    "unique_consecutive": "counts what is different", "argwhere": "counts what is not zero",
    "equal": "compares on the host",
    "allclose": "compares on the host", "__repr__": "prints numbers", "__format__": "prints numbers",
    "__contains__": "asks the host",
    "bincount": "reads the largest number",
}  # fmt: skip


def synchronisations(trace: Trace, captured: Captured) -> Iterator[Finding]:
    """Calls at which the host waits for the GPU, since it needs a number or a size from there."""
    for call in trace.calls:
        what = _READS.get(call.name)
        if call.name in ("index", "setitem") and call.facts.get("by mask") and not call.facts.get("one value"):
            what = "selects by a mask, and has to count it"
        if call.name == "where" and len(call.inputs) == 1:
            what = "counts what is true"
        if call.name == "repeat_interleave" and len(call.inputs) == 2 and "output_size" not in call.named:
            what = "sums up the repeats"
        if call.name == "to" and "cpu" in [
            one for one in (*call.arguments[1:], *call.named.values()) if isinstance(one, str)
        ]:
            what = "copies to the host"
        host = bool(call.inputs) and all(
            maker is not None and maker.name in _MADE_ON_HOST
            for maker in (trace.makers.get(one.id) for one in call.inputs)
        )
        if what and not host and "compile" not in call.inside:
            yield Finding(
                "sync",
                "kernels",
                "The host waits for the GPU",
                (call.line,),
                f"{call.name.strip('_')} {what}: on a GPU the queue runs empty at each call, and no CUDA graph "
                f"can hold the line",
                "keep it a tensor on the device, of a size that does not depend on values",
                "compiler/graph-breaks.md#item",
                kernels=max(2, trace.kernels // 4),
            )


def upcast_products(trace: Trace, captured: Captured) -> Iterator[Finding]:
    """Products in fp32 or fp64 of numbers that were 16 bits wide, and any product in fp64."""
    for call in trace.calls:
        dtypes = {op.dtype for op in call.forward if op.flops}
        if "compile" in call.inside or not dtypes & {torch.float32, torch.float64}:
            continue
        casts = [found for one in call.inputs if (found := widened(trace, one)) is not None]
        if casts or torch.float64 in dtypes:
            why = (
                f"{casts[0].name} widens {str(casts[0].inputs[0].dtype)[6:]} before"
                if casts
                else "fp64 has no fast tensor cores"
            )
            yield Finding(
                "precision",
                "kernels",
                "A product in more bits than its inputs have",
                in_order([call, *casts], call),
                f"{call.name} computes {call.flops / 1e6:.1f} MFLOP in {str(next(iter(dtypes)))[6:]}; {why}",
                "multiply in 16 bits (sums are kept in fp32 anyway), and widen the result where that is needed",
                "validation/roofline.md#two-bounds-and-the-point-where-they-meet",
                saves=call.moved // 2,
                kernels=len(casts),
            )


def widened(trace: Trace, value: Value) -> Call | None:
    """The cast from 16 bits to more that a value came from."""
    call = trace.makers.get(value.id)
    while call is not None and call.name in VIEWS | CASTS and call.inputs:
        if call.inputs[0].dtype in (torch.bfloat16, torch.float16) and call.outputs[0].dtype in (
            torch.float32,
            torch.float64,
        ):
            return call
        call = trace.makers.get(call.inputs[0].id)
    return None


def fp32_products(trace: Trace, captured: Captured) -> Iterator[Finding]:
    """A module whose products are fp32 throughout, where TF32 is off."""
    if products_in_tf32():
        return
    products = [
        call
        for call in trace.calls
        if any(op.flops and op.dtype == torch.float32 for op in call.forward) and "compile" not in call.inside
    ]
    work = sum(call.flops for call in products)
    if work >= 1e8:
        largest = max(products, key=lambda call: call.flops)
        yield Finding(
            "precision",
            "kernels",
            "Products in fp32, which tensor cores do not do",
            in_order(products, largest)[:8],
            f"{len(products)} products, {work / 1e9:.1f} GFLOP forward, the most on this line",
            "torch.set_float32_matmul_precision('high') for TF32, or autocast to bfloat16",
            "validation/roofline.md#two-bounds-and-the-point-where-they-meet",
            saves=int(work / 60e12 * MEMORY),
            weight="finding" if work >= 4e9 else "note",
        )


def odd_sizes(trace: Trace, captured: Captured) -> Iterator[Finding]:
    """Weights whose rows are no multiple of 16 bytes: tensor cores read those only in pieces, or not at all."""
    for call in trace.calls:
        sizes: list[int] = []
        weights = [one for one in call.inputs if one.origin == "parameter" and len(one.shape) >= 2]
        if call.name in PRODUCTS and weights and "compile" not in call.inside:
            sizes = [length for length in weights[0].shape[:2] if length >= 96]
        elif call.name == "scaled_dot_product_attention":
            weights = list(call.inputs[:1])
            sizes = [length for length in call.inputs[0].shape[-1:] if length > 16]
        odd = [length for length in sizes if length * weights[0].dtype.itemsize % 16]
        if odd:
            width = 16 // weights[0].dtype.itemsize
            yield Finding(
                "odd-size",
                "kernels",
                "A size that tensor cores dislike",
                (call.line,),
                f"{call.name} with a size of {odd[0]}, which is no multiple of {width}: a row is no multiple of "
                f"16 bytes",
                f"pad it to {-(-odd[0] // 64) * 64}",
                "patterns/attention.md#where-it-loses"
                if "attention" in call.name
                else "validation/roofline.md#where-it-loses",
                saves=call.moved // 4,
            )


SMALL = 2**22  # bytes: fewer take a large GPU less time than the host takes to launch


def small_kernels(trace: Trace, captured: Captured) -> Iterator[Finding]:
    """Loops that launch many kernels, each too small to keep the host ahead."""
    reported: set[tuple[str, int]] = set()
    for (line, _), groups in trace.loops.items():
        turns = max(map(len, groups))
        if any(call.inside - {"library"} for group in groups for call in group):
            continue
        calls = [call for group in groups for call in group if len(group) >= 4]
        kernels = sum(call.kernels for call in calls)
        if (
            (line.file, line.number) in reported
            or not calls
            or kernels < 8
            or sum(call.moved for call in calls) / kernels > SMALL
        ):
            continue
        why = loop_of(groups, turns)
        if why:
            reported.add((line.file, line.number))
            lines = tuple(dict.fromkeys((line, *(each.line for each in calls))))
            yield Finding(
                "small-kernels",
                "kernels",
                "A loop of kernels too small to keep the host ahead",
                lines[:8],
                f"{turns} turns, {kernels} kernels, {size(sum(call.moved for call in calls) / kernels)} each; {why}",
                "do all turns in one operation (batched products, cuDNN's layers), or replay them in a CUDA graph",
                "compiler/what-compile-does.md#what-is-slow",
                kernels=kernels - kernels // turns,
            )


def loop_of(groups: list[list[Call]], turns: int) -> str:
    """What kind of loop runs these calls; nothing for the layers of a model, each of which has weights of its own."""
    weighted = [
        [frozenset(one.id for one in call.inputs if one.origin == "parameter") for call in group]
        for group in groups
        if len(group) >= 4
    ]
    weighted = [weights for weights in weighted if any(weights)]
    if any(len(set(weights)) == 1 for weights in weighted) and turns >= 8:
        return "each turn uses the same weights"
    if not weighted and turns >= 8:
        return "no turn has weights of its own"
    shared = [
        group
        for group in groups
        if len(group) >= 4 and any(call.inputs and call.inputs[0].origin != "parameter" for call in group)
    ]
    for group in shared:
        firsts = [tuple(one.id for one in call.inputs if one.origin != "parameter") for call in group]
        alone = [any(one.origin == "parameter" for one in call.inputs) for call in group]
        often = Counter(firsts).most_common(1)[0][1]
        if all(alone) and often >= 4 and 3 * often >= len(group):
            return "all turns read the same input"
    return ""


# ---- the graph of calls ---------------------------------------------------------------------------------------------


def root(trace: Trace, value: Value) -> Value:
    """What a value is a view or a cast of."""
    call = trace.makers.get(value.id)
    while call is not None and call.name in (VIEWS | CASTS) - {"cat"} and call.inputs:
        value = call.inputs[0]
        call = trace.makers.get(value.id)
    return value


def past(trace: Trace, value: Value, through: Iterable[str], limit: int = 200) -> list[Call]:
    """The calls that use a value in the end, where some kinds of calls only pass it on."""
    through, found, seen, todo = frozenset(through), [], set(), [value]
    while todo and len(seen) < limit:
        for user in trace.users[todo.pop().id]:
            if user.index in seen:
                continue
            seen.add(user.index)
            if user.name in through:
                todo += user.outputs
            else:
                found.append(user)
    return sorted(found, key=lambda call: call.index)


def between(trace: Trace, first: Call, last: Call) -> list[Call]:
    """The calls on a way from one call to another."""
    after, todo = set(), list(first.outputs)
    while todo:
        for user in trace.users[todo.pop().id]:
            if user.index not in after and user.index <= last.index:
                after.add(user.index)
                todo += user.outputs
    before, waiting = set(), [last]
    while waiting:
        for value in waiting.pop().inputs:
            maker = trace.makers.get(value.id)
            if maker is not None and maker.index not in before and maker.index > first.index:
                before.add(maker.index)
                waiting.append(maker)
    return [call for call in trace.calls if call.index in after & before]


FINDERS = (
    graph_breaks,
    recompilations,
    made_on_host,
    written_inputs,
    layout_copies,
    repeats,
    outsized,
    one_hot_products,
    growing,
    kept_graphs,
    saved_activations,
    synchronisations,
    upcast_products,
    fp32_products,
    odd_sizes,
    small_kernels,
)
