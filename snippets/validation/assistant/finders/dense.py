"""A mixture of experts in which every expert computes every token, and a gate throws most of that away."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from ..calls import Call, Value
from ..findings import Finding, in_order
from ..graphs import Captured
from ..lines import Line
from ..names import NORMS, PASSED, POINTWISE, PRODUCTS, REDUCTIONS, words
from ..trace import Trace
from .attention import data_of

CHOOSES = words("topk argmax argsort sort max")
MARKS = words("scatter scatter_add index_put index_fill setitem one_hot")  # a number for each expert, most of them zero
COMPARES = words("eq ge gt le lt")
PICKS = words("index gather take_along_dim index_select")
WEIGHS = words("mul matmul einsum bmm addcmul where masked_fill")
CARRIES = PASSED | POINTWISE | REDUCTIONS | {"softmax", "stack", "cat"}
INSIDE = PASSED | POINTWISE | NORMS | {"glu", "softmax"}  # of an expert, beside products
JOINS = words("stack cat")
LEAST, PART = 2, 0.05  # times the work that counts; of the forward's work
BATCHED = 4  # times, where one product runs all experts, and routing has a cost of its own

GROUPED = (
    "F.grouped_mm, with the weights stacked and the offsets from bincount and cumsum"
    if hasattr(torch.nn.functional, "grouped_mm")
    else "torch.bmm, with the weights stacked and the tokens of each expert padded to one length"
)


@dataclass(frozen=True)
class Mixture:
    """A choice, and the products of all experts that compute every row of it.

    Attributes:
        kept: of how many experts a row's results count, or for how many rows an expert's do.
        among: how many there are.
        ends: what applies the choice to the results.
    """

    choice: Call
    products: tuple[Call, ...]
    experts: int
    kept: int
    among: int
    ends: tuple[Call, ...]


def unrouted(trace: Trace, captured: Captured) -> Iterator[Finding]:
    """Experts that all compute what a choice of a few then keeps."""
    whole = sum(call.flops for call in trace.eager)
    for one in mixtures(trace):
        flops = sum(call.flops for call in one.products)
        if flops < PART * whole:
            continue
        lost = 1 - one.kept / one.among
        where = parting(one.products)
        yield Finding(
            "experts",
            "Every expert computes every token",
            tuple(dict.fromkeys([where, *in_order([*one.ends[:1], *one.products])])),
            f"{one.experts} experts compute all rows, and the choice keeps {one.kept} of {one.among}: "
            f"{one.among / one.kept:.3g} times the work that counts, {lost * flops / 1e9:.2g} GFLOP of it for nothing",
            f"route: sort the tokens by expert, and multiply each expert's own by {GROUPED}; or index_select, and "
            "index_add of the results, for each expert",
            "compiler/what-compile-does.md#what-is-slow",
            saves=int(lost * sum(call.moved for call in one.products)),
            kernels=len(one.products),
        )


def mixtures(trace: Trace) -> list[Mixture]:
    """All of a module, each once."""
    if "mixtures" not in trace.known:
        found = (mixture_of(trace, call) for call in trace.eager if call.name in CHOOSES and call.inputs)
        trace.known["mixtures"] = [one for one in found if one is not None]
    return trace.known["mixtures"]


def mixture_of(trace: Trace, choice: Call) -> Mixture | None:
    """The experts whose results a choice weighs or picks, if all of them compute all of its rows."""
    kept, among = kept_of(trace, choice)
    if not kept or among < 3:
        return None
    met = meetings(trace, choice)
    operands = [one for _, values in met for value in values for one in joined(trace, value)]
    own = own_products(trace, [*{one.id: one for one in operands}.values()])
    rows = choice.inputs[0].numel // among
    parts = [[one for one in part if rows_of(one[0]) >= rows * experts_in(one[1])] for part in own]
    alike = Counter(kind for part in parts if (kind := kind_of(part)))
    if not alike:
        return None
    kind, experts = max(alike.items(), key=lambda one: one[1])
    chosen = [call for part in parts if kind_of(part) == kind for call, _ in part]
    least = LEAST
    if experts == 1:  # one product for all
        chosen = [call for part in parts for call, weight in part if experts_in(weight) == among]
        experts, least = among if chosen else 1, BATCHED
    if experts < 3 or experts not in choice.inputs[0].shape or among < least * kept:
        return None
    firsts = [min((call for call, _ in part), key=lambda call: call.index) for part in parts if kind_of(part) == kind]
    if len({source_of(trace, call) for call in firsts}) > 1 or judges(trace, choice, chosen):
        return None
    ordered = sorted(chosen, key=lambda call: call.index)
    after = [user for user, _ in met if user.index > ordered[0].index]
    return Mixture(choice, tuple(ordered), experts, kept, among, tuple(after))


def kept_of(trace: Trace, choice: Call) -> tuple[int, int]:
    """How many a choice keeps, 0 where that is not known, and of how many."""
    given = choice.arguments[1:]
    place = 1 if choice.name == "topk" else 0
    dim = choice.named.get("dim", given[place] if len(given) > place and type(given[place]) is int else -1)
    shape = choice.inputs[0].shape
    if not shape or type(dim) is not int or not -len(shape) <= dim < len(shape):
        return 0, 0
    if choice.name == "topk":
        kept = choice.named.get("k", given[0] if given else 0)
    elif choice.name in ("argmax", "max"):
        kept = 1
    else:  # sorted: what slices leave
        users = [user for value in choice.outputs for user in trace.users[value.id] if user.name in PICKED]
        left = {user.outputs[0].shape[dim] for user in users if len(user.outputs[0].shape) == len(shape)}
        kept = left.pop() if len(left) == 1 else 0
    return (kept, shape[dim]) if type(kept) is int and 0 < kept < shape[dim] else (0, shape[dim])


PICKED = words("getitem narrow")


def meetings(trace: Trace, choice: Call) -> list[tuple[Call, list[Value]]]:
    """The calls at which a choice meets what it is applied to, as an index or as weights that are mostly zero."""
    found, seen = [], set()
    todo = [(value, False) for value in choice.outputs]
    while todo and len(seen) < 500:
        value, sparse = todo.pop()
        for user in trace.users[value.id]:
            if (user.index, sparse) in seen:
                continue
            seen.add((user.index, sparse))
            others = [one for one in user.inputs if one.id != value.id]
            if user.name in PICKS and others and user.inputs[0] is others[0]:
                found.append((user, others[:1]))
            elif user.name in MARKS:
                todo += [(one, True) for one in user.outputs]
            elif user.name in COMPARES:
                todo += [(one, True) for one in user.outputs if compares(trace, choice, user, others)]
            elif user.name in CARRIES | WEIGHS:
                if sparse and user.name in WEIGHS and others:
                    found.append((user, others))
                narrow = user.name not in WEIGHS or user.out is None or user.out.numel <= value.numel
                todo += [(one, sparse) for one in user.outputs if narrow]
    return sorted(found, key=lambda one: one[0].index)


def compares(trace: Trace, choice: Call, call: Call, others: list[Value]) -> bool:
    """Whether a comparison says which experts a choice keeps: of their numbers, or of their scores with the least."""
    if call.name == "eq":
        made = [trace.made_by(one) for one in others]
        numbers = any(type(one) is int for one in call.arguments) or any(one.origin == "buffer" for one in others)
        return numbers or any(maker is not None and not maker.inputs for maker in made)
    return any(trace.root(one).id == trace.root(choice.inputs[0]).id for one in others)


def joined(trace: Trace, value: Value) -> list[Value]:
    """What a value was stacked of, or the value."""
    maker = trace.made_by(value)
    return [*maker.inputs] if maker is not None and maker.name in JOINS and len(maker.inputs) >= 3 else [value]


def own_products(trace: Trace, operands: list[Value]) -> list[list[tuple[Call, Value]]]:
    """For each value, the products that lead to it with weights of its own, and the weights."""
    behind = [products_behind(trace, one) for one in operands]
    often = Counter(number for part in behind for number in {weight.id for _, weight in part})
    return [[(call, weight) for call, weight in part if often[weight.id] == 1] for part in behind]


def kind_of(part: list[tuple[Call, Value]]) -> tuple:
    """What is alike for experts: the shapes of their weights."""
    return tuple(sorted(weight.shape for _, weight in part))


def products_behind(trace: Trace, value: Value) -> list[tuple[Call, Value]]:
    """The products with weights that lead to a value, past what an expert may hold."""
    found, todo, seen = [], [value], set()
    while todo and len(seen) < 40:
        maker = trace.makers.get(todo.pop(0).id)
        if maker is None or maker.index in seen:
            continue
        seen.add(maker.index)
        weight = matrix_of(trace, maker)
        if weight is not None:
            found.append((maker, weight))
        if weight is not None or maker.name in INSIDE:
            todo += [one for one in maker.inputs if one.origin != "parameter"]
    return found


def matrix_of(trace: Trace, call: Call) -> Value | None:
    """The parameter that a product multiplies by, whole."""
    if call.name not in PRODUCTS or call.out is None:
        return None
    return next(
        (root for one in call.inputs if (root := trace.root(one)).origin == "parameter" and root.shape[1:]), None
    )


def source_of(trace: Trace, product: Call) -> int:
    """What an expert reads, past a norm of its own."""
    value = trace.root(data_of(product))
    while (maker := trace.makers.get(value.id)) is not None and maker.name in NORMS:
        value = trace.root(maker.inputs[0])
    return value.id


def judges(trace: Trace, choice: Call, products: list[Call]) -> bool:
    """Whether a choice is made by what the experts give, so that it needs all of them."""
    first, wanted = min(call.index for call in products), {call.index for call in products}
    todo, seen = [choice], set()
    while todo:
        for value in todo.pop().inputs:
            maker = trace.makers.get(value.id)
            if maker is None or maker.index < first or maker.index in seen:
                continue
            if maker.index in wanted:
                return True
            seen.add(maker.index)
            todo.append(maker)
    return False


def rows_of(product: Call) -> int:
    return product.outputs[0].numel // max(1, product.outputs[0].shape[-1]) if product.outputs[0].shape else 0


def experts_in(weight: Value) -> int:
    """How many matrices a parameter holds."""
    return weight.shape[0] if len(weight.shape) == 3 else 1


def parting(calls: tuple[Call, ...]) -> Line:
    """The line that calls one expert after the other, or that multiplies by all of them."""
    stacks, places = [call.stack for call in calls], [call.where for call in calls]
    for depth in range(min(map(len, stacks))):
        if len({where[depth][0] for where in places}) > 1:
            return stacks[0][max(0, depth - 1)]
        if len({stack[depth] for stack in stacks}) > 1:
            return stacks[0][depth]
    return stacks[0][-1]
