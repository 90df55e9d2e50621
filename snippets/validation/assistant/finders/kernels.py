"""Kernels that wait, are small, or miss the tensor cores."""

import re
from collections.abc import Iterator

import torch

from ..calls import Call, Value
from ..findings import MEMORY, Finding, in_order
from ..graphs import Captured
from ..names import PASSED, POINTWISE, PRODUCTS, words
from ..settings import products_in_tf32
from ..trace import Trace
from .readiness import MADE_ON_HOST, moves
from .sizes import instead, selecting, unpacks

READS = {
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
    "bincount": "reads the largest number", "linalg_inv": "asks whether it succeeded",
    "inverse": "asks whether it succeeded", "linalg_cholesky": "asks whether it succeeded",
    "linalg_solve": "asks whether it succeeded",
}  # fmt: skip
INSTEAD = {  # by a name, or by what a call ran under
    "linalg_inv": "torch.linalg.inv_ex; for an inverse times a matrix, solve_ex, or cholesky_ex and cholesky_solve",
    "inverse": "torch.linalg.inv_ex; for an inverse times a matrix, solve_ex, or cholesky_ex and cholesky_solve",
    "linalg_cholesky": "torch.linalg.cholesky_ex",
    "linalg_solve": "torch.linalg.solve_ex",
    "repeat_interleave": "give it output_size=, a number that the host knows",
    "distributions": "validate_args=False in the distribution's constructor",
}
FACTORED = "give the distribution scale_tril=, or where it is diagonal, Independent(Normal(mean, std), 1)"


def synchronisations(trace: Trace, captured: Captured) -> Iterator[Finding]:
    """Calls at which the host waits for the GPU, since it needs a number or a size from there."""
    for call in trace.calls:
        what = READS.get(call.name)
        if call.name in ("index", "setitem") and call.facts.get("by mask") and not call.facts.get("one value"):
            what = "selects by a mask, and has to count it"
        if call.name == "where" and len(call.inputs) == 1:
            what = "counts what is true"
        if unpacks(call):
            use = "place" if call.name == "index" else "size"
            what = f"takes a number on the device as a {use}, and the host has to read it"
        if call.name == "repeat_interleave" and len(call.inputs) == 2 and "output_size" not in call.named:
            what = "sums up the repeats"
        if call.name == "to" and "cpu" in [
            one for one in (*call.arguments[1:], *call.named.values()) if isinstance(one, str)
        ]:
            what = "copies to the host"
        host = bool(call.inputs) and all(on_host(trace, one) for one in call.inputs)
        if what and not host and "compile" not in call.inside:
            yield Finding(
                "sync",
                "The host waits for the GPU",
                (call.line,),
                f"{call.name.strip('_')} {what}: on a GPU the queue runs empty at each call, and no CUDA graph "
                f"can hold the line",
                not_waiting(trace, call),
                "compiler/graph-breaks.md#item",
                kernels=max(2, trace.kernels // 4),
            )


PACKS = words("pack_padded_sequence pad_packed_sequence")


def on_host(trace: Trace, value: Value) -> bool:
    """Whether a tensor lies in the host's memory, so that the host waits for none of its numbers.

    Where all runs on a CPU, that is what was just made of Python's numbers, and what comes of packed rows' lengths.
    """
    maker = trace.makers.get(value.id)
    if (maker is not None and maker.name in MADE_ON_HOST) or (value.device == "cpu" and runs_on_gpu(trace)):
        return True
    packed, todo = lengths_of_packed(trace), [value]
    seen: set[int] = set()
    while todo and len(seen) < 100:
        one = todo.pop()
        if one.id in packed:
            continue
        maker = trace.makers.get(one.id)
        if maker is None or not maker.inputs or moved(maker):
            return False
        seen.add(maker.index)
        todo += maker.inputs
    return not todo


def moved(call: Call) -> bool:
    """Whether a call may bring a tensor to another device."""
    return call.name in ("to", "cuda", "type_as", "cpu") and (call.name == "cpu" or moves(call))


def runs_on_gpu(trace: Trace) -> bool:
    """Whether any tensor is on a device: then what is on the CPU is there on purpose."""
    if "on gpu" not in trace.known:
        trace.known["on gpu"] = any(one.device != "cpu" for call in trace.calls for one in call.inputs)
    return trace.known["on gpu"]


def lengths_of_packed(trace: Trace) -> set[int]:
    """The lengths that rows are packed by, and the sizes of the batches they become: PyTorch wants both on the host."""
    if "packed" not in trace.known:
        packing = [call for call in trace.calls if call.name in PACKS]
        found = {one.id for call in packing for one in (*call.inputs[1:2], *call.outputs[1:2])}
        for call in reversed(trace.calls):  # what a view or a cast of it was made of, too
            if call.name in PASSED and call.inputs and not moved(call) and any(one.id in found for one in call.outputs):
                found.add(call.inputs[0].id)
        trace.known["packed"] = found
    return trace.known["packed"]


def not_waiting(trace: Trace, call: Call) -> str:
    """What to do instead of a call that waits."""
    if "distributions" in call.inside and call.name == "linalg_cholesky":
        return FACTORED
    if ranked(trace, call):
        return RANKED
    if call.name in ("index", "setitem") and not unpacks(call):
        return selecting(trace, call)
    known = next((INSTEAD[each] for each in (*call.inside, call.name) if each in INSTEAD), "")
    return known or instead(trace, call) or "keep it a tensor on the device, of a size that does not depend on values"


RANKED = "if the host ranks what it reads, torch.topk over all scores, flattened, ranks them on the device"


def ranked(trace: Trace, call: Call) -> bool:
    """Whether a number is one of the best few, as of the candidates of a beam search."""
    best = trace.made_by(call.inputs[0]) if call.name in ("item", "tolist", "__float__") and call.inputs else None
    return best is not None and best.name == "topk" and best.out is not None and best.out.shape[-1:] > (1,)


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
                "A product in more bits than its inputs have",
                in_order([call, *casts], call),
                f"{call.name} computes {call.flops / 1e6:.1f} MFLOP in {str(next(iter(dtypes)))[6:]}; {why}",
                "multiply in 16 bits (sums are kept in fp32 anyway), and widen the result where that is needed"
                if casts
                else NARROW,
                "validation/roofline.md#two-bounds-and-the-point-where-they-meet",
                saves=call.moved // 2,
                kernels=len(casts),
            )


NARROW = "make it float32 where it is made (NumPy makes float64), unless it needs more than seven digits"


def promoted(trace: Trace, captured: Captured) -> Iterator[Finding]:
    """What a tensor of fp64, such as a buffer from NumPy, turns to fp64 although it was not."""
    given = (one for call in trace.eager for one in call.inputs if one.origin in ("parameter", "input"))
    wanted = any(one.dtype in WIDE for one in given)  # by who gives fp64
    for call in trace.eager:
        wide = [one for one in call.inputs if one.dtype in WIDE and one.shape]
        narrow = (torch.float32, torch.float16, torch.bfloat16, torch.complex64)
        rest = [one for one in call.inputs if one.dtype in narrow]
        rest = rest or [one for one in call.inputs if whole_numbers(one) and one.origin == "input" and not wanted]
        if call.name in POINTWISE and wide and rest and call.out is not None and call.out.dtype in WIDE:
            after = [call, *downstream(trace, call)]
            yield Finding(
                "precision",
                "A tensor in fp64 turns what it meets to fp64",
                tuple(dict.fromkeys([call.line, *(maker.line for one in wide if (maker := trace.made_by(one)))])),
                f"{call.name} of {str(rest[0].dtype)[6:]} and {str(wide[0].dtype)[6:]}, and {len(after)} calls in fp64",
                NARROW,
                "validation/roofline.md#two-bounds-and-the-point-where-they-meet",
                saves=sum(one.moved for one in after) // 2,
            )


WIDE = (torch.float64, torch.complex128)


def whole_numbers(value: Value) -> bool:
    return not (value.dtype.is_floating_point or value.dtype.is_complex or value.dtype == torch.bool)


def downstream(trace: Trace, call: Call) -> list[Call]:
    """The calls that read a result in fp64, and those that read theirs, as long as it is fp64."""
    found: dict[int, Call] = {}
    todo = [*call.outputs]
    while todo:
        value = todo.pop()
        if value.dtype in WIDE:
            users = [user for user in trace.users[value.id] if user.index not in found]
            found |= {user.index: user for user in users if user.kernels}
            todo += [one for user in users for one in user.outputs]
    return [*found.values()]


def widened(trace: Trace, value: Value) -> Call | None:
    """The cast from 16 bits to more that a value came from."""
    call = trace.makers.get(value.id)
    while call is not None and call.name in PASSED and call.inputs:
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
            "Products in fp32, which tensor cores do not do",
            in_order(products, largest)[:8],
            f"{len(products)} products, {work / 1e9:.1f} GFLOP forward, the most on this line",
            "torch.set_float32_matmul_precision('high') for TF32, or autocast to bfloat16",
            "validation/roofline.md#two-bounds-and-the-point-where-they-meet",
            saves=int(work / 60e12 * MEMORY),
            weight="finding" if work >= 4e9 else "note",
        )


def odd_sizes(trace: Trace, captured: Captured) -> Iterator[Finding]:
    """Weights whose rows are no multiple of 16 bytes: tensor cores read those only in pieces, or not at all.

    In fp32 that costs a product nothing unless TF32 is on, and an attention its fused kernel.
    """
    work = sum(call.flops for call in trace.calls)
    for call in trace.calls:
        sizes: list[int] = []
        weights = [one for one in call.inputs if one.origin == "parameter" and len(one.shape) >= 2]
        width = 16 // call.out.dtype.itemsize if call.out is not None else 1
        attends = call.name == "scaled_dot_product_attention"
        if attends:
            sizes = [length for length in call.inputs[0].shape[-1:] if length > 16]
        elif call.name in PRODUCTS and weights and "compile" not in call.inside:
            sizes = [length for length in weights[0].shape[:2] if length >= 96]
        odd = [length for length in sizes if length % width]
        cores = width == 8 or (width == 4 and (attends or products_in_tf32()))
        if odd and cores and 20 * call.flops >= work:
            yield Finding(
                "odd-size",
                "A size that tensor cores dislike",
                (call.line,),
                f"{call.name} with a size of {odd[0]}, which is no multiple of {width}: a row is no multiple of "
                f"16 bytes",
                f"pad it to {-(-odd[0] // 64) * 64}",
                "patterns/attention.md#where-it-loses" if attends else "validation/roofline.md#where-it-loses",
                saves=call.moved // 4,
            )


def optimizers(trace: Trace, captured: Captured) -> Iterator[Finding]:
    """A step of one of PyTorch's optimizers, tensor by tensor or list by list."""
    for line in dict.fromkeys(call.line for call in trace.eager if STEP.search(call.line.text)):
        calls = [call for call in trace.eager if call.line == line and "library" in call.inside]
        updates = [call for call in calls if re.search(r"addcdiv|addcmul|lerp|foreach", call.name)]
        if len(updates) >= 3 and (kernels := sum(call.kernels for call in calls)) >= 8:
            yield Finding(
                "optimizer",
                "An optimizer that is not fused",
                (line,),
                f"a step runs {kernels} operations",
                "fused=True in the constructor of the optimizer: one kernel updates all parameters",
                "compiler/what-compile-does.md#what-is-slow",
                kernels=kernels - 1,
            )


STEP = re.compile(r"\.step\(")
