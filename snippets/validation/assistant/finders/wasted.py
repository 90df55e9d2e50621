"""Work on more rows than anything reads: what is picked, sorted or gathered in the wrong order."""

import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch.nn.functional as F

from ..calls import Call, Value
from ..findings import Finding, in_order, size
from ..graphs import Captured
from ..names import CASTS, PASSED, POINTWISE, PRODUCTS, VIEWS, words
from ..rewrites import Rewrite, rewrite
from ..trace import Trace
from .again import connected, shared_line
from .attention import data_of, weight_of

REPEATS = words("index index_select repeat tile repeat_interleave")
PICKS = words("getitem index narrow select gather index_select take_along_dim")
PART = 0.05  # of the forward's work, for a product that is worth a finding
PAGE = "compiler/what-compile-does.md#what-is-slow"


def picked_late(trace: Trace, captured: Captured) -> Iterator[Finding]:
    """A product of which at most half is read, since the next lines pick rows or columns."""
    for call in large_products(trace):
        picks = picks_of(trace, call.outputs[0])
        read = sum(pick.outputs[0].numel for pick in picks)
        if not picks or 2 * read > call.outputs[0].numel:
            continue
        rows = all(pick.outputs[0].shape[-1:] == call.outputs[0].shape[-1:] for pick in picks)
        yield Finding(
            "wasted",
            "A product of which only a part is read",
            in_order([call, *picks], call),
            f"{call.name} computes {size(call.outputs[0].bytes)}, and {picks[0].name} keeps "
            f"{read / call.outputs[0].numel:.0%} of it",
            "pick the rows first, then multiply" if rows else "pick the rows of the weight first, then multiply",
            PAGE,
            saves=call.moved * (call.outputs[0].numel - read) // call.outputs[0].numel,
            kernels=0,
        )


def large_products(trace: Trace, weight: Callable[[Call], Value | None] = weight_of) -> Iterator[Call]:
    """The products of lines that do a good part of the work, in all turns of a loop together."""
    of_line: Counter = Counter()
    for call in trace.eager:
        of_line[call.line] += call.flops
    calls = (call for call in trace.eager if weight(call) is not None and call.outputs)
    return (call for call in calls if of_line[call.line] >= PART * of_line.total() and call.outputs[0].bytes >= 2**14)


def picks_of(trace: Trace, value: Value) -> list[Call]:
    """The calls that pick a part of a value; none where anything reads all of it."""
    found, todo = [], [value]
    while todo:
        one = todo.pop()
        if one.id in trace.returned:
            return []
        for user in trace.users[one.id]:
            if user.name in PICKS and user.inputs[0] is one and user.outputs[0].numel < one.numel:
                found.append(user)
            elif passes_on(user, one) and not user.writes:
                todo += user.outputs
            else:
                return []
    return found


def passes_on(call: Call, value: Value) -> bool:
    """Whether a call gives each number of a value back, changed by itself; a sum with a state mixes two."""
    alone = all(one is value or one.numel < value.numel for one in call.inputs)
    return bool(call.outputs) and (call.name in CASTS | VIEWS or (call.name in POINTWISE and alone))


def sorted_to_pick(trace: Trace, captured: Captured) -> Iterator[Finding]:
    """All numbers are sorted, and a slice keeps the first or the last of them; or a function gives one of them."""
    for call in trace.eager:
        if call.name in SELECTS and call.inputs and call.out is not None:
            yield from selected(call)
        if call.name not in ("sort", "argsort", "msort") or not call.inputs:
            continue
        users = [user for value in call.outputs for user in trace.users[value.id]]
        kept = [user.outputs[0].numel for user in users if user.name in PICKS and user.outputs]
        escapes = any(value.id in trace.returned for value in call.outputs)
        if kept and len(kept) == len(users) and not escapes and 0 < 4 * max(kept) <= call.inputs[0].numel:
            yield Finding(
                "wasted",
                "All is sorted to take a few",
                in_order([call, *users[:1]], call),
                f"{call.name} orders {call.inputs[0].numel} numbers, and {max(kept)} are read",
                f"torch.kthvalue; {SAMPLED}" if inside(users) else "torch.topk (largest=False for the least)",
                PAGE,
                saves=8 * call.moved,
                kernels=1,
            )


SELECTS = {
    "quantile": 2,
    "nanquantile": 2,
    "median": 1,
    "nanmedian": 1,
    "kthvalue": 2,
}  # and the place of the dimension
LONG, ROWS = 2**12, 64  # numbers of a row that are many; rows among which several parts of a GPU select at once
SAMPLED = "where an estimate will do, of a sample of some thousand numbers, or of every n-th call"


def selected(call: Call) -> Iterator[Finding]:
    """One or few numbers of long rows, by their rank."""
    source, place = call.inputs[0], SELECTS[call.name]
    whole = None if call.name != "kthvalue" else -1
    given = [one for one in call.arguments[place : place + 1] if type(one) is int]
    dim = call.named.get("dim", given[0] if given else whole)
    length = source.numel if dim is None or not source.shape else source.shape[dim]
    sorts = "quantile" in call.name
    few = 4 * call.outputs[0].numel <= source.numel
    if length >= LONG and few and (sorts or source.numel <= ROWS * length):
        share = next((one for one in (*call.arguments[1:2], call.named.get("q")) if type(one) is float), None)
        exact = at_an_end(share, length) if sorts and share is not None else ""
        yield Finding(
            "wasted",
            "All is sorted to take a few",
            (call.line,),
            f"{call.name} {'sorts' if sorts else 'searches'} {source.numel} numbers to give {call.outputs[0].numel}",
            "; ".join(filter(None, [exact, SAMPLED])),
            PAGE,
            saves=8 * call.moved,
            kernels=1,
        )


def at_an_end(share: float, length: int) -> str:
    """How `topk` gives a quantile that lies near an end, where it is between two of its numbers."""
    place = share * (length - 1)
    most = length - math.floor(place) if share >= 0.5 else math.ceil(place) + 1
    which = "largest" if share >= 0.5 else "least (largest=False)"
    return f"torch.topk of the {most} {which} ends with the two that it lies between" if 4 * most <= length else ""


def inside(picks: list[Call]) -> bool:
    """Whether a pick of one number is neither near the first nor near the last."""
    for call in picks:
        given = call.arguments[1:2] if call.name == "getitem" else ()
        places = [one for one in (given[0] if given and isinstance(given[0], tuple) else given) if type(one) is int]
        length = call.inputs[0].shape[-1] if call.inputs[0].shape else 0
        if places and min(places[-1] % max(1, length), -places[-1] % max(1, length)) > length // 4:
            return True
    return False


def gathered_first(trace: Trace, captured: Captured) -> Iterator[Finding]:
    """A product of rows or pixels that an index, a copy or an interpolation makes more of, such as a graph's edges."""
    for call in large_products(trace, of_each):
        more = more_of(trace, call)
        if more is None:
            continue
        pick, source = more.pick, more.source
        by = "an index" if "index" in pick.name else pick.name
        then = "pick" if "index" in pick.name else pick.name if more.pixels else "repeat"
        of = "pixels" if more.pixels else "rows"
        yield Finding(
            "wasted",
            f"A product of {of} that {by} {'makes more of' if more.pixels else 'repeats'}",
            in_order([call, pick], call),
            f"{pick.name} makes {size(more.data.bytes)} of {size(source.bytes)}, and {call.name} multiplies each copy"
            if not more.pixels
            else f"{pick.name} makes {size(more.data.bytes)} of {size(source.bytes)}, and {call.name} multiplies each "
            "pixel by itself: both are linear, and the order is free",
            f"multiply first, then {then} the {of} of the result",
            PAGE,
            saves=call.moved * (more.data.numel - source.numel) // more.data.numel,
            kernels=0,
            rewrites=exchanged(trace, call, more),
        )


@dataclass(frozen=True)
class More:
    """What a product reads, what it was made of, and by which call."""

    data: Value
    source: Value
    pick: Call

    @property
    def pixels(self) -> bool:
        return self.pick.name in RESIZES


RESIZES = words("interpolate upsample upsample_bilinear upsample_nearest")
EXPANDS = words("expand broadcast_to")
TURNS = words("permute transpose movedim moveaxis swapaxes mT")


def of_each(call: Call) -> Value | None:
    """The matrix by which a projection, or a convolution of one pixel, multiplies each row or pixel by itself."""
    if call.name not in CONVOLUTIONS or len(call.inputs) < 2:
        return weight_of(call)
    weight, plain = call.inputs[1], call.arguments[3:]
    alone = set(weight.shape[2:]) == {1} and {one for each in plain[:1] for one in leaves(each)} <= {1}
    padded = {one for each in plain[1:2] for one in leaves(each)} - {0, "valid"}
    return weight if alone and not padded and not call.named and weight.origin == "parameter" else None


CONVOLUTIONS = words("conv1d conv2d conv3d")


def leaves(given: object) -> tuple:
    return given if isinstance(given, tuple) else (given,)


def more_of(trace: Trace, call: Call) -> More | None:
    """The call that makes many rows or pixels of few, before a product that multiplies each by itself."""
    data, weight = data_of(call), of_each(call)
    place = 1 if call.name in CONVOLUTIONS else -1
    if weight is not None and place == -1 and len(weight.shape) > 2:
        return None  # a matrix for each copy
    turned = False
    for pick in back(trace, data):
        turned |= pick.name in TURNS
        if pick.name not in REPEATS | RESIZES | EXPANDS or weight_of(pick) is not None:
            continue
        source, made = pick.inputs[0], pick.outputs[0]
        often = 2 if "index" in pick.name or pick.name in RESIZES else 4  # a batch twice: one batch for two purposes
        channels = data.shape[place] if len(data.shape) > 1 else 0
        kept = source.shape[1:2] if pick.name in RESIZES else source.shape[place : place + 1 or None]
        if often * source.numel > data.numel or made.numel > data.numel or kept != (channels,):
            return None
        if pick.name in EXPANDS and (call.name == "einsum" or source.origin not in ("made", "input")):
            return None  # a matrix for each copy; or of weights alone, the same for each row of a batch
        if pick.name in RESIZES and not ((turned or place == 1) and alone(trace, call, pick)):
            return None  # a linear layer of an image as it is mixes pixels of a row
        return More(data, source, pick)
    return None


def alone(trace: Trace, call: Call, pick: Call) -> bool:
    """Whether an interpolation is read by products of each pixel alone, which make no more channels than twice."""
    users = trace.past(pick.outputs[0], PASSED)
    few = call.outputs[0].numel <= 2 * pick.outputs[0].numel and pick.outputs[0].id not in trace.returned
    return few and all(of_each(user) is not None for user in users)


def back(trace: Trace, value: Value) -> Iterator[Call]:
    """The views and casts that a value came through, and the call before them."""
    maker = trace.makers.get(value.id)
    while maker is not None and maker.inputs:
        yield maker
        if maker.name not in PASSED:
            return
        maker = trace.makers.get(maker.inputs[0].id)


def exchanged(trace: Trace, call: Call, more: More) -> tuple[Rewrite, ...]:
    """The product first, to be tried: of rows that one tensor picks, or of pixels."""
    pick, multiply = more.pick, getattr(F, call.name, None)
    if call.inputs[0] is not more.data or more.data.id != pick.outputs[0].id or multiply is None:
        return ()
    weights, options = call.inputs[1:], call.arguments[1 + len(call.inputs[1:]) :]
    if pick.name == "interpolate" and len(pick.inputs) == 1 and call.name in CONVOLUTIONS:
        given, named = pick.arguments[1:], pick.named
        return rewrite(
            trace,
            call,
            [more.source, *weights],
            lambda x, *w: F.interpolate(multiply(x, *w, *options), *given, **named),
        )
    rows = pick.name == "index" and len(pick.inputs) == 2 and pick.arguments[1:] == (None,)
    if rows and call.name == "linear" and len(more.source.shape) > 1:
        return rewrite(trace, call, [more.source, pick.inputs[1], *weights], lambda x, i, *w: F.linear(x, *w)[i])
    return ()


def copied_weights(trace: Trace, captured: Captured) -> Iterator[Finding]:
    """The matrices of a token's expert, copied for each token."""
    for call in trace.eager:
        picks = call.name in ("index", "index_select", "embedding") and call.inputs and call.out is not None
        weight = next((one for one in call.inputs if one.origin == "parameter" and len(one.shape) >= 3), None)
        if not picks or weight is None or call.out.numel < 2 * weight.numel:
            continue
        products = [user for user in trace.past(call.out, PASSED) if user.name in PRODUCTS]
        if products:
            yield Finding(
                "experts",
                "The weights of the chosen experts are copied for each token",
                in_order([call, *products], call),
                f"{call.name} makes {size(call.out.bytes)} of {size(weight.bytes)}",
                "sort the tokens by expert and multiply those of each expert at once: F.grouped_mm, or a loop over "
                "experts with index_add",
                PAGE,
                saves=call.moved,
                kernels=1,
            )


def cut_off(trace: Trace, captured: Captured) -> Iterator[Finding]:
    """Work that autograd records, though no gradient can reach it: all that follows is detached."""
    dead: dict[int, Call] = {}
    for call in reversed(trace.eager):
        users = [user for value in call.outputs if value.grad for user in trace.users[value.id]]
        followed = [user for user in users if user.name != "detach" and user.index not in dead]
        if users and not followed and not any(value.id in trace.returned for value in call.outputs):
            dead[call.index] = call
    whole = sum(call.flops for call in trace.eager)
    for part in connected(trace, dict(sorted(dead.items()))):
        if part and sum(call.flops for call in part) >= PART * whole > 0:
            yield Finding(
                "wasted",
                "Autograd records what no gradient reaches",
                tuple(dict.fromkeys([shared_line(part), part[-1].line])),
                f"{len(part)} calls are recorded, and what comes of them is detached",
                "with torch.no_grad() around them",
                PAGE,
                saves=sum(call.outputs[0].bytes for call in part),
                kernels=0,
            )


def dropped_in_eval(trace: Trace, captured: Captured) -> Iterator[Finding]:
    """Dropout that drops in evaluation mode, since nobody told it of the mode."""
    for call in trace.eager:
        if not trace.training and call.name == "dropout" and any(op.runs for op in call.forward):
            yield Finding(
                "wasted",
                "Dropout in evaluation mode",
                (call.line,),
                "the module is in evaluation mode, and numbers are dropped: its results are random",
                "F.dropout(x, p, self.training), or nn.Dropout",
                PAGE,
                saves=call.moved,
                kernels=1,
            )


def multiplied_out(trace: Trace, captured: Captured) -> Iterator[Finding]:
    """A low-rank update, such as LoRA's, that is made a full matrix before it meets the data."""
    for call in trace.eager:
        made = trace.made_by(call.inputs[1]) if call.name in ("linear", "matmul") and len(call.inputs) > 1 else None
        parts = [trace.root(one) for one in made.inputs] if made is not None and made.name == "add" else []
        low = [found for one in parts if (found := low_rank(trace, one)) is not None]
        if made is None or not low or call.out is None or made.out is None:
            continue
        rank, frozen = low[0].inputs[1].shape[-2], not trace.backward or not made.out.grad
        if not frozen and not thin_is_less(trace, call, made, rank):
            continue
        yield Finding(
            "wasted",
            f"A low-rank update is {'merged at each call' if frozen else 'multiplied out'}",
            in_order([call, low[0], made], low[0]),
            f"{low[0].name} makes {size(made.out.bytes)} of rank {rank}, "
            f"{'of weights that no gradient changes' if frozen else 'and backward the gradient of all of it'}",
            "merge it into the weight once, outside of forward, and keep the sum"
            if frozen
            else "multiply the data by one thin matrix, then by the other, and add the results",
            PAGE,
            saves=2 * made.moved,
            kernels=len(trace.between(low[0], made)) + 2 if frozen else 0,
        )


def thin_is_less(trace: Trace, call: Call, made: Call, rank: int) -> bool:
    """Whether two thin products, forward and backward, are at most half the work of the full update's.

    A full update needs the gradient of all of the weight, which there is anyway where the rest of it is trained.
    """
    ins, outs = call.inputs[0].shape[-1], call.out.shape[-1]
    rows = call.inputs[0].numel // ins
    trained = any(one.grad and low_rank(trace, one) is None for one in made.inputs)
    thin, full = 3 * rows * (ins + outs) * rank, 3 * outs * ins * rank + (0 if trained else rows * ins * outs)
    return 2 * thin <= full


def low_rank(trace: Trace, value: Value) -> Call | None:
    """The product of two thin weights that a value is a multiple of."""
    call = trace.made_by(value)
    if call is not None and call.name == "mul" and len(call.inputs) == 1:
        call = trace.made_by(call.inputs[0])
    thin = (
        call is not None and call.name == "matmul" and all(trace.root(one).origin == "parameter" for one in call.inputs)
    )
    return call if call is not None and thin and 4 * call.inputs[1].shape[-2] <= min(call.outputs[0].shape) else None
