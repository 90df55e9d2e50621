"""What depends on sizes or weights only and is made again: at each call, or for each row."""

from collections.abc import Iterator

from ..calls import Call
from ..findings import Finding, in_order, size
from ..graphs import Captured
from ..names import FILLS, NUMBERS, PASSED, words
from ..rewrites import rewrite
from ..trace import Trace
from .again import connected, repeatable

FEW, LARGE = 4, 2**14  # kernels that are worth a buffer, and bytes for which two are
PART = 0.05  # of the forward's kernels or bytes
RANDOM = words("rand randn randint randperm rand_like randn_like randint_like bernoulli multinomial normal uniform")


def from_sizes(trace: Trace, calls: list[Call]) -> bool:
    """Whether no call reads an input, a weight or a random number, however indirectly."""
    return makers_from_sizes(trace, calls) is not None


def makers_from_sizes(trace: Trace, calls: list[Call]) -> list[Call] | None:
    """All calls that make something of sizes only; None where anything else is read."""
    todo, seen = list(calls), {call.index: call for call in calls}
    while todo:
        call = todo.pop()
        late = trace.first_read is not None and call.index > trace.first_read
        if late or call.name in RANDOM or not call.outputs or call.facts.get("by list"):
            return None
        for value in call.read:
            maker = trace.makers.get(value.id)
            if value.origin != "made" or maker is None:
                return None
            if maker.index not in seen:
                seen[maker.index] = maker
                todo.append(maker)
    return [seen[index] for index in sorted(seen)]


def constants(trace: Trace, captured: Captured) -> Iterator[Finding]:
    """Positions, masks and tables: the last call of each that reads sizes only, and is read by one that does not."""
    constant: dict[int, list[Call]] = {}
    for call in trace.eager:
        makers = makers_from_sizes(trace, [call]) if made_of_constants(trace, call, constant) else None
        if makers is not None:
            constant[call.index] = makers
    moved = sum(call.moved for call in trace.eager) or 1
    for index, makers in constant.items():
        call = trace.calls[[one.index for one in trace.calls].index(index)]
        users = {user.index for value in call.outputs for user in trace.users.get(value.id, ())}
        kernels = sum(one.kernels for one in makers)
        large = kernels >= 2 and call.out is not None and call.out.bytes >= LARGE
        heavy = large and sum(one.moved for one in makers) >= PART * moved
        worth = heavy or (kernels >= FEW and kernels >= PART * trace.kernels)
        filled = all(one.name in FILLS for one in makers if one.kernels)
        if users <= constant.keys() or not worth or filled or "library" in call.inside:
            continue
        yield Finding(
            "constant",
            "A constant is made again at each call",
            in_order(makers, call),
            f"{kernels} kernels make {size(call.out.bytes if call.out else 0)} that depend on sizes only",
            "make it once, as a buffer of the module",
            "compiler/what-compile-does.md#what-is-slow",
            saves=sum(one.moved for one in makers),
            kernels=kernels,
            rewrites=rewrite(trace, call, [], None),
        )


def of_weights(trace: Trace) -> dict[int, Call]:
    """The calls that read nothing but weights, sizes and each other, by their number."""
    found: dict[int, Call] = {}
    written = {trace.root(call.inputs[0]).id for call in trace.eager if call.writes and call.inputs}
    for call in trace.eager:
        if call.name in NUMBERS:  # what follows may depend on a number that the host has read
            break
        makers = [trace.makers.get(one.id) for one in call.inputs]
        fixed = all(
            maker.index in found if maker is not None else one.origin in ("parameter", "buffer")
            for one, maker in zip(call.inputs, makers, strict=True)
        )
        drawn = not repeatable(call) or any(trace.root(one).id in written for one in call.inputs)
        if fixed and not drawn:
            found[call.index] = call
    return found


def weights_alone(trace: Trace, captured: Captured) -> Iterator[Finding]:
    """In evaluation mode, what is made of weights alone: it is the same at each call, until they are trained again."""
    if trace.backward or trace.training:
        return
    whole = sum(call.moved for call in trace.eager) or 1
    for every in connected(trace, of_weights(trace)):
        part = [call for call in every if call.name not in LOOK_UPS]
        read = [one for call in part for one in call.inputs]
        moved, kernels = sum(call.moved for call in part), sum(call.kernels for call in part)
        worth = kernels >= FEW or any(one.bytes >= LARGE for call in part for one in call.outputs)
        worth &= moved >= PART * whole or kernels >= PART * trace.kernels
        packed = any(one.dtype.itemsize == 1 for one in read)  # kept small on purpose
        if worth and not packed and any(one.origin == "parameter" for one in read):
            yield Finding(
                "constant",
                "What depends on weights alone is computed at each call",
                in_order(part, part[-1]),
                f"{kernels} kernels move {size(moved)}, read no input, and give the same until the weights change",
                "compute it once after loading the weights, and keep it as a buffer",
                "compiler/what-compile-does.md#what-is-slow",
                saves=moved,
                kernels=kernels,
                weight="finding" if 50 * moved >= whole else "note",  # launches alone: an embedding of fixed times
            )


def same_rows(trace: Trace, captured: Captured) -> Iterator[Finding]:
    """What reads weights alone, and is computed for each row of a batch, since it was expanded before."""
    fixed, wide = of_weights(trace), {}
    work: dict[int, list[Call]] = {}
    for call in fixed.values():
        makers = [maker.index for one in call.inputs if (maker := trace.makers.get(one.id))]
        first = next((wide[index] for index in makers if index in wide), None)
        repeats = call.name in EXPANDS and call.inputs and call.out and call.out.numel >= ROWS * call.inputs[0].numel
        if first is None and repeats:
            wide[call.index] = call
        elif first is not None and call.out is not None and call.out.numel >= first.out.numel:
            wide[call.index] = first
            work.setdefault(first.index, []).extend([call] if call.name not in PASSED else [])
    whole = max(1, sum(call.moved for call in trace.eager))
    for index, calls in work.items():
        moved = sum(call.moved for call in calls)
        if moved >= PART * whole:
            yield Finding(
                "wasted",
                "The same is computed for every row of a batch",
                in_order([fixed[index], *calls], fixed[index]),
                f"{fixed[index].name} repeats what reads no input, and {len(calls)} calls compute on each copy, "
                f"{size(moved)} in all",
                "compute it for one row, and expand the result",
                "compiler/what-compile-does.md#what-is-slow",
                saves=moved,
                kernels=0,
            )


LOOK_UPS = words("arange embedding index index_select")
EXPANDS, ROWS = words("expand broadcast_to repeat tile repeat_interleave"), 4


def made_of_constants(trace: Trace, call: Call, constant: dict[int, list[Call]]) -> bool:
    """Whether all that a call reads was found constant before."""
    return all((maker := trace.makers.get(one.id)) is not None and maker.index in constant for one in call.read)
