"""A mixture of experts as a loop: each turn picks, or hides, the tokens of one expert."""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator

from ..calls import Call
from ..findings import Finding, in_order, size
from ..graphs import Captured
from ..names import PASSED, POINTWISE, REDUCTIONS, words
from ..trace import Trace
from .attention import data_of, weight_of
from .dense import GROUPED, mixtures

PICKS = words("index index_select masked_select gather take_along_dim")
CHOICES = words("eq ne where nonzero one_hot topk argmax argsort sort scatter bincount")


def experts(trace: Trace, captured: Captured) -> Iterator[Finding]:
    """Products of weights of their own, of the rows that a comparison with the expert's number chose."""
    by_place: dict[tuple, dict[int, Call]] = {}
    dense = {call.index for one in mixtures(trace) for call in one.products}
    eager = [call for call in trace.eager if call.index not in dense]
    products = [(call, weight) for call in eager if (weight := weight_of(call)) is not None]
    weights_at: dict[tuple, set[int]] = defaultdict(set)
    for call, weight in products:
        for place in zip(call.stack, call.where, strict=True):
            weights_at[place].add(trace.root(weight).id)
    for call, weight in products:
        places = [one for one in zip(call.stack, call.where, strict=True) if len(weights_at[one]) >= 3]
        if places and (chosen := chosen_by(trace, call)) is not None:
            source = trace.root(chosen.inputs[0]).id
            by_place.setdefault((*places[-1], source), {}).setdefault(trace.root(weight).id, call)
    told: set = set()
    for (line, (activation, _), _), by_weight in by_place.items():
        calls = [*by_weight.values()]
        if len(calls) < 3 or line in told:
            continue
        told.add(line)
        first, last = calls[0].index, calls[-1].index
        turns = [call for call in trace.eager if first <= call.index <= last and call.stack[-1].file == line.file]
        around = [call for call in turns if call.where[-1][0] == activation]
        kernels = sum(call.kernels for call in turns)
        yield Finding(
            "experts",
            "A mixture of experts as a loop over experts",
            tuple(dict.fromkeys([line, *in_order([*calls, *around], calls[0])])),
            f"{len(calls)} experts take the rows of one tensor of {size(calls[0].inputs[0].bytes)} in turn, in "
            f"{kernels} kernels",
            f"sort the tokens by expert and multiply all at once: {GROUPED}",
            "compiler/what-compile-does.md#what-is-slow",
            kernels=max(1, kernels - kernels // len(calls)),
        )


def chosen_by(trace: Trace, product: Call) -> Call | None:
    """What picked a product's rows by an index that a choice made; or the product, if a choice hides its rows."""
    data = data_of(product)
    maker = trace.makers.get(data.id)
    while maker is not None and maker.name in PASSED and maker.inputs:
        maker = trace.makers.get(maker.inputs[0].id)
    if maker is not None and maker.name in PICKS:
        return maker if any(is_choice(trace, one.id) for one in maker.inputs[1:]) else None
    weighted = trace.past(product.outputs[0], PASSED | POINTWISE - {"mul", "where"}, limit=40)
    weighted += [user for one in weighted if weight_of(one) for user in trace.past(one.outputs[0], PASSED)]
    hides = [user for user in weighted if user.name in ("mul", "where")]
    return product if any(compares(trace, one.id) for user in hides for one in user.inputs) else None


def is_choice(trace: Trace, number: int) -> bool:
    """Whether a value comes from a comparison, or from what sorts or counts choices."""
    through = PASSED | PICKS | REDUCTIONS | {"any", "gt", "bitwise_and", "logical_and"}
    return comes_from(trace, number, lambda maker: maker.name in CHOICES, through)


def compares(trace: Trace, number: int) -> bool:
    """Whether a value is a comparison with one whole number, as a factor or reduced over the choices of a token."""

    def with_a_number(maker: Call) -> bool:
        return maker.name == "eq" and any(type(one) is int for one in maker.arguments)

    return comes_from(trace, number, with_a_number, PASSED | REDUCTIONS | {"mul", "where"})


def comes_from(trace: Trace, number: int, wanted: Callable[[Call], bool], through: Collection[str]) -> bool:
    """Whether one of the last calls that lead to a value is wanted; only calls of these names lead on."""
    todo, seen = [number], set()
    while todo and len(seen) < 20:
        maker = trace.makers.get(todo.pop())
        if maker is None or maker.index in seen:
            continue
        seen.add(maker.index)
        if wanted(maker):
            return True
        if maker.name in through:
            todo += [one.id for one in maker.inputs]
    return False
