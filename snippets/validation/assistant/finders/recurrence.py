"""Loops whose turns carry a weighted sum on: a cumulative sum, a product or a scan gives all turns at once."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from ..calls import Call, Value
from ..names import PASSED, words
from ..rewrites import Rewrite, Unfit, rewrite
from ..trace import Trace

SUMS = words("add sub rsub neg index_add scatter_add index_put setitem") | PASSED  # linear in all that they read
PLACED = words("index_add scatter_add index_put setitem")
FIRST = {  # by a call that is linear in some of what it reads: the first place of the rest
    "masked_fill": 1,
    "lerp": 2,
    "where": 3,  # no condition is linear
}


@dataclass(frozen=True)
class Recurrence:
    """How a turn's results follow from those of the turn before.

    Attributes:
        ways: the calls between the same call of two turns, for each that carries something on.
        carriers: the first of these calls, of all turns.
    """

    ways: tuple[tuple[Call, ...], ...]
    carriers: tuple[tuple[Call, ...], ...]

    @property
    def weighted(self) -> bool:
        return any(adds(way) and weights(way) for way in self.ways)

    @property
    def multiplied(self) -> bool:
        return any(weights(way) for way in self.ways)

    @property
    def placed(self) -> bool:
        return any(call.name in PLACED for way in self.ways for call in way)


def weights(way: tuple[Call, ...]) -> list[Call]:
    return [call for call in way if call.name not in SUMS]


def adds(way: tuple[Call, ...]) -> bool:
    return any(call.name not in PASSED | {"mul", "div"} for call in way)


def recurrence(trace: Trace, dependent: list[list[Call]]) -> Recurrence | None:
    """What the groups of calls carry on that read what they gave a turn before; None where it is no weighted sum."""
    ways, carriers = [], []
    for group in dependent:
        found = [way for pair in pairwise(group) if (way := carried(trace, *pair)) is not None]
        if 2 * len(found) < len(group):  # between the layers around a loop there are other ways
            return None
        ways.append(found[0])
        carriers.append(tuple(group))
    return Recurrence(tuple(ways), tuple(carriers)) if ways else None


def carried(trace: Trace, earlier: Call, later: Call) -> tuple[Call, ...] | None:
    """The calls that make of a turn's result a weighted sum in the next turn; None if they make anything else."""
    way = (*trace.between(earlier, later), later)
    state = {one.id for call in (earlier, *way[:-1]) for one in call.outputs}
    same_size = earlier.out is not None and later.out is not None and earlier.out.shape == later.out.shape
    shifted = sum(call.name in ("getitem", "narrow", "select") for call in way) > 1  # several places of one state
    fits = all(is_linear(call, [one.id in state for one in call.inputs]) for call in way)
    return way if fits and same_size and not shifted else None


def is_linear(call: Call, state: list[bool]) -> bool:
    """Whether a call is linear, element by element, in those of its inputs that are the state."""
    if call.name == "mul" or call.name == "addcmul":
        return sum(state) == 1
    if call.name == "div":
        return [op.name for op in call.forward][:1] == ["div"] and not any(state[1:])
    return call.name in SUMS or (call.name in FIRST and not any(state[FIRST[call.name] :]))


def change_of(trace: Trace, found: Recurrence, turns: int) -> str:
    """What gives all turns at once; empty for a sum of which only the end is read: its turns are independent."""
    if found.weighted:
        kind, how = kind_of(found, turns), "each turn is a weighted sum of the one before and of what does not read it"
        return f"{how}: {SCANS[kind]}; or compile the step"
    if found.placed:
        return f"each turn adds into one tensor: stack what they add, then one index_add, with {ONE_INDEX}"
    if found.multiplied:
        return "each turn multiplies the one before: torch.cumprod of all factors"
    read = any(is_read(trace, call) for group in found.carriers for call in group[:-1])
    return "each turn adds to the sum before: stack what they add, then torch.cumsum" if read else ""


ONE_INDEX = "all places in one index tensor, a buffer"
SCANS = {
    "powers": "one matmul with the lower-triangular matrix of powers of the weight, a buffer, gives all turns",
    "few": "one matmul with the lower-triangular matrix of the weights' products between two turns gives all turns",
    "many": "torch._higher_order_ops.associative_scan gives all turns, inside torch.compile on a GPU, elsewhere with "
    'combine_mode="generic"; for positive weights and terms, exp(a + torch.logcumsumexp(terms.log() - a, 0)) does so, '
    "with a = weights.log().cumsum(0)",
}


def kind_of(found: Recurrence, turns: int) -> str:
    """Whether the weights are a number, few for the state's size, so that a matrix for each costs little, or many."""
    calls = [call for way in found.ways if adds(way) for call in weights(way)]
    numbers = all(call.name == "mul" and len(call.inputs) == 1 for call in calls)
    size = max(call.out.numel for call in calls if call.out is not None)
    most = max(min(one.numel for one in call.inputs) for call in calls)
    return "powers" if numbers else "few" if most * turns <= size else "many"


def is_read(trace: Trace, call: Call) -> bool:
    """Whether more than the next turn reads what a call gave."""
    return len({user.index for value in call.outputs for user in trace.users[value.id]}) > 1


# ---- the change, where the states are stacked as they are ------------------------------------------------------------


def scanned(trace: Trace, found: Recurrence) -> tuple[Rewrite, ...]:
    """All turns by one scan, for each stack of states; none where one of the stacks reads more."""
    states = {value.id for group in found.carriers for call in group for value in call.outputs}
    users = {user.index: user for number in states for user in trace.users[number] if user.name == "stack"}
    made = [rewritten(trace, user) for user in users.values()]
    return tuple(one for each in made for one in each) if all(made) else ()


def rewritten(trace: Trace, stack: Call) -> tuple[Rewrite, ...]:
    """One scan in place of a stack of states, each of which is a sum of the one before, weighted or not, and a term."""
    states = list(stack.inputs)
    turns = [turn_of(trace, state, before) for before, state in pairwise(states)]
    if not turns or None in turns or stack.named.keys() - {"dim"}:
        return ()
    first = first_turn(trace, states[0], turns[0])
    turns = [first, *turns] if first is not None else turns
    start = first.state if first is not None else states[0]
    given = [one.weight for one in turns if isinstance(one.weight, Value)]
    numbers = [one.weight for one in turns if not isinstance(one.weight, Value)]
    if given and numbers:
        return ()
    dim = stack.named.get("dim", stack.arguments[1] if len(stack.arguments) > 1 else 0)
    compute = scan(numbers, len(turns), dim, keep_first=first is None)
    return rewrite(trace, stack, [start, *given, *(one.term for one in turns)], compute)


@dataclass(frozen=True)
class Turn:
    """One turn, weight × state + term."""

    state: Value
    weight: Value | float
    term: Value
    places: tuple[int, int]  # of the weighted state in the sum, and of the state in the product


def turn_of(trace: Trace, made: Value, before: Value | None, places: tuple[int, int] | None = None) -> Turn | None:
    """The turn that made a state of the one before, or, where that is not known, by its places."""
    total = trace.makers.get(made.id)
    if total is None or total.name != "add" or len(total.inputs) != 2 or "alpha" in total.named:
        return None
    for place, one in enumerate(total.inputs):
        term, product = total.inputs[1 - place], trace.makers.get(one.id)
        if before is not None and one.id == before.id:
            return Turn(one, 1.0, term, (place, -1))
        if places == (place, -1):
            return Turn(one, 1.0, term, places)
        if product is None or product.name != "mul":
            continue
        for at, value in enumerate(product.inputs):
            if (before is not None and value.id == before.id) or places == (place, at):
                return Turn(value, weight_of(product, at), term, (place, at))
    return None


def weight_of(product: Call, at: int) -> Value | float:
    """The other factor."""
    if len(product.inputs) == 2:
        return product.inputs[1 - at]
    return next(float(one) for one in product.arguments if isinstance(one, (int, float)))


def first_turn(trace: Trace, made: Value, second: Turn) -> Turn | None:
    """The first turn, if it is written as the second; else its result is where the recurrence starts."""
    return turn_of(trace, made, None, second.places)


def scan(numbers: list[float], turns: int, dim: int, keep_first: bool) -> Callable[..., Tensor]:
    """Of the first state, the weights that are tensors, and the terms: all states, stacked."""

    def compute(state: Tensor, *given: Tensor) -> Tensor:
        terms = torch.stack(torch.broadcast_tensors(*given[-turns:], state)[:-1])
        if not numbers:
            factors = torch.stack(given[:turns])
            factors = factors.reshape(turns, *[1] * (terms.dim() - factors.dim()), *factors.shape[1:]).expand_as(terms)
        else:
            factors = torch.tensor(numbers, dtype=terms.dtype, device=terms.device)
        start = factors[0] * state + terms[0]
        terms = torch.cat([start[None], terms[1:]])
        if not numbers:
            made = by_scan(factors, terms)
        elif set(numbers) == {1.0}:
            made = terms.cumsum(0)
        else:
            made = (products(factors) @ terms.flatten(1)).view_as(terms)
        return (torch.cat([state.expand_as(start)[None], made]) if keep_first else made).movedim(0, dim)

    return compute


def products(factors: Tensor) -> Tensor:
    """Lower-triangular: how much of each turn's term is left in each later turn."""
    below = torch.ones(len(factors), len(factors), device=factors.device).tril(-1).bool()
    return torch.where(below, factors[:, None], 1.0).cumprod(0).tril()


def by_scan(factors: Tensor, terms: Tensor) -> Tensor:
    """The states, by doubling."""
    try:
        from torch._higher_order_ops.associative_scan import associative_scan
    except ImportError as error:
        raise Unfit(str(error)) from error

    def joined(one: tuple[Tensor, Tensor], other: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        return one[0] * other[0], other[0] * one[1] + other[1]

    return associative_scan(joined, (factors, terms), 0, combine_mode="generic")[1]
