"""Pieces that are copied into one tensor, which a sum, a view or a matrix product would give without the copy."""

import functools
from collections.abc import Callable, Iterator
from itertools import pairwise, product, zip_longest

import torch
from torch import Tensor

from ..calls import Call, Value
from ..findings import Finding, in_order, size
from ..graphs import Captured
from ..names import VIEWS, words
from ..rewrites import Rewrite, rewrite
from ..trace import Trace

LARGE, PART = 2**20, 0.02  # bytes of a copy that is worth a finding, and of what the forward moves
RUNNING: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "sum": torch.add,
    "mean": torch.add,
    "amax": torch.maximum,
    "amin": torch.minimum,
}
SUMS = {"sum": "total = total + piece", "mean": "total = total + piece, divided at the end"}
SUMMED = {torch.float32, torch.float64, torch.complex64, torch.complex128}  # others overflow, or lose digits


def summed(trace: Trace, captured: Captured) -> Iterator[Finding]:
    """Pieces that are stacked, and reduced over the dimension that the stack has made."""
    whole = sum(call.moved for call in trace.eager)
    for call in trace.eager:
        dim = joining(call)
        users = [] if dim is None or call.out is None else trace.users[call.out.id]
        if len(users) != 1 or len(call.inputs) < 2 or call.out is None or call.out.id in trace.returned:
            continue
        reduced, few = users[0], call.out.bytes < LARGE or call.moved < PART * whole
        if few or reduced.name not in RUNNING or dimension(reduced, call.out) != dim or reduced.out is None:
            continue
        dtypes = {one.dtype for one in (*call.inputs, call.out, reduced.out)}
        if reduced.name in SUMS and (len(dtypes) > 1 or not dtypes <= SUMMED):
            continue
        how = SUMS.get(reduced.name, f"torch.{RUNNING[reduced.name].__name__} of it and the piece")
        yield Finding(
            "temporary",
            "Pieces are copied into one tensor to be reduced",
            in_order([call, reduced], call),
            f"{call.name} copies {len(call.inputs)} tensors to {size(call.out.bytes)}, and {reduced.name} alone reads "
            "them",
            f"keep a running result where the pieces are made: {how}",
            "compiler/fusion.md#rows",
            saves=call.out.bytes,
            kernels=0,
            rewrites=rewrite(trace, reduced, call.inputs, running(reduced, call)),
        )


def joining(call: Call) -> int | None:
    """The dimension of length one for each piece along which a call joins pieces; None where it is another call."""
    if call.name not in ("stack", "cat") or call.out is None or not call.kernels:
        return None
    given = call.named.get("dim", call.arguments[1] if len(call.arguments) > 1 else 0)
    if type(given) is not int:
        return None
    dim = given % len(call.out.shape)
    alone = call.name == "stack" or all(one.shape[dim : dim + 1] == (1,) for one in call.inputs)
    return dim if alone and call.out.shape[dim] == len(call.inputs) else None


def dimension(reduced: Call, value: Value) -> int | None:
    """The one dimension that a reduction takes."""
    given = reduced.named.get("dim", reduced.arguments[1] if len(reduced.arguments) > 1 else None)
    if isinstance(given, (tuple, list)) and len(given) == 1:
        given = given[0]
    return given % len(value.shape) if type(given) is int and value.shape else None


def running(reduced: Call, call: Call) -> Callable[..., Tensor]:
    """What a running result gives, in the shape of the reduction."""
    combine, wanted = RUNNING[reduced.name], reduced.outputs[0].shape
    count = len(call.inputs) if reduced.name == "mean" else 1

    def compute(*pieces: Tensor) -> Tensor:
        made = functools.reduce(combine, pieces)
        return (made / count if count > 1 else made).reshape(wanted)

    return compute


# ---- windows --------------------------------------------------------------------------------------------------------

FEWEST, MANY = 3, 16  # slices that overlap; so many are a finding whatever they move
SMALLEST = 2**16  # bytes
UNSLICED = VIEWS - words("getitem narrow select chunk split unbind tensor_split unfold as_strided")


def windows(trace: Trace, captured: Captured) -> Iterator[Finding]:
    """Slices of one tensor that overlap, each a step further than the last, copied beside each other."""
    whole = sum(call.moved for call in trace.eager)
    for call in trace.eager:
        if call.name not in ("stack", "cat") or call.out is None or call.out.bytes < SMALLEST:
            continue
        slices = [slice_of(trace, one) for one in call.inputs]
        source, dims = window_of(slices)
        little = len(slices) < MANY and (call.moved < PART * whole or call.out.bytes < LARGE)
        if source is None or 2 * call.out.numel < 3 * source.numel or little:
            continue
        views, kernel = spelt(dims)
        views = covered(source, slices, dims) + views
        (dim, (length, step, _)), *more = dims.items()
        yield Finding(
            "copy",
            "Slices that overlap are copied one by one",
            in_order([call]),
            f"{len(slices)} slices, {call.name}: {size(call.out.bytes)} of {size(source.bytes)}",
            f"x{views} gives them as a view, its last dimension{'s' * bool(more)} the window; where a product with "
            f"weights follows, a convolution with a kernel of {kernel} reads x itself",
            "compiler/fusion.md#layout",
            saves=call.moved,
            kernels=1,
            rewrites=() if more or shifts(*dims[dim]) else unfolded(trace, call, source, dim, length, step),
        )


def shifts(length: int, step: int, count: int) -> bool:
    """Whether all slices overlap: a window is then the same place in all of them."""
    return step * (count - 1) < length


def covered(source: Value, slices: "Slices", dims: dict[int, tuple[int, int, int]]) -> str:
    """The cut after which a view has no more windows than there are slices; nothing where it has none anyway."""
    cuts = ""
    for dim, (length, step, count) in dims.items():
        first = min(each[1].get(dim, (0, 0))[0] for each in slices if each is not None)
        span, behind = step * (count - 1) + length, 0 if shifts(length, step, count) else step - 1
        if first or source.shape[dim] - span > behind:
            cuts += f".narrow({dim}, {first}, {span})"
    return cuts


def spelt(dims: dict[int, tuple[int, int, int]]) -> tuple[str, str]:
    """Windows as a view, and as the kernel of a convolution."""
    views, kernel, strides, dilations = "", [], [], []
    for dim, (length, step, count) in dims.items():
        same = shifts(length, step, count)
        views += f".unfold({dim}, {step * (count - 1) + 1}, 1)" if same else f".unfold({dim}, {length}, {step})"
        views += f"[..., ::{step}]" if same and step > 1 else ""
        kernel.append(str(count if same else length))
        strides.append(1 if same else step)
        dilations.append(step if same else 1)
    named = {"stride": strides, "dilation": dilations}.items()
    further = (f" and {key}={each[0] if len(each) == 1 else tuple(each)}" for key, each in named if max(each) > 1)
    return views, " × ".join(kernel) + "".join(further)


def slice_of(trace: Trace, value: Value) -> tuple[Value, dict[int, tuple[int, int]]] | None:
    """The tensor that a value is a slice of, and by dimension where the slice begins and ends."""
    maker = trace.makers.get(value.id)
    while maker is not None and maker.name in UNSLICED and not maker.kernels and maker.inputs:
        maker = trace.makers.get(maker.inputs[0].id)
    if maker is None or not maker.inputs:
        return None
    source, given = maker.inputs[0], maker.arguments[1:]
    if maker.name == "narrow" and len(given) == 3 and all(type(one) is int for one in given):
        dim = given[0] % len(source.shape)
        return source, {dim: (given[1], given[1] + given[2])}
    if maker.name != "getitem" or not given:
        return None
    index = given[0] if isinstance(given[0], tuple) else (given[0],)
    if Ellipsis in index:
        at = index.index(Ellipsis)
        index = (*index[:at], *[slice(None)] * (len(source.shape) - len(index) + 1), *index[at + 1 :])
    if not all(isinstance(one, slice) and one.step in (None, 1) for one in index) or len(index) > len(source.shape):
        return None
    if not all(type(end) in (int, type(None)) for one in index for end in (one.start, one.stop)):  # a tensor
        return None
    bounds = (one.indices(source.shape[dim])[:2] for dim, one in enumerate(index))
    return source, {dim: each for dim, each in enumerate(bounds) if each != (0, source.shape[dim])}


Slices = list[tuple[Value, dict[int, tuple[int, int]]] | None]


def window_of(slices: Slices) -> tuple[Value | None, dict[int, tuple[int, int, int]]]:
    """What windows are slices of, and by dimension their length, how far apart and how many they are; or nothing."""
    known = [one for one in slices if one is not None]
    if len(known) < max(FEWEST, len(slices)) or len({source.id for source, _ in known}) > 1:
        return None, {}
    source, found, begins = known[0][0], {}, []
    for dim in sorted({dim for _, bounds in known for dim in bounds}):
        bounds = [each.get(dim, (0, source.shape[dim])) for _, each in known]
        starts, lengths = sorted({start for start, _ in bounds}), {end - start for start, end in bounds}
        steps = {later - earlier for earlier, later in pairwise(starts)}
        if len(starts) == 1:
            continue
        if len(steps) > 1 or len(lengths) > 1:
            return None, {}
        (step,), (length,) = steps, lengths
        found[dim] = length, step, len(starts)
        begins.append([start for start, _ in bounds])
    grid = product(*(sorted(set(each)) for each in begins))
    ordered = all(one == other for one, other in zip_longest(zip(*begins, strict=True), grid))
    overlap = any(step < length for length, step, _ in found.values())
    return (source, found) if ordered and overlap else (None, {})


def unfolded(trace: Trace, call: Call, source: Value, dim: int, length: int, step: int) -> tuple[Rewrite, ...]:
    """The windows as a view, in the order of the stack, to be tried."""
    to = call.named.get("dim", call.arguments[1] if len(call.arguments) > 1 else 0)
    if call.name != "stack" or type(to) is not int or len(call.outputs[0].shape) != len(source.shape) + 1:
        return ()
    begins = slice_of(trace, call.inputs[0])
    first, to = begins[1].get(dim, (0, 0))[0] if begins else 0, to % (len(source.shape) + 1)
    covered = step * (len(call.inputs) - 1) + length

    def compute(x: Tensor) -> Tensor:
        return x.narrow(dim, first, covered).unfold(dim, length, step).movedim(-1, dim + 1).movedim(dim, to)

    return rewrite(trace, call, [source], compute)
