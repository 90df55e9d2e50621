"""Loops over pairs of features, which one product of all with all does."""

import torch
from torch import Tensor

from ..calls import Call, Value
from ..names import PASSED, words
from ..rewrites import Rewrite, rewrite
from ..trace import Trace
from .pieces import dimension

MANY = 8  # pairs that are worth one product
SCORES = words("einsum dot inner vdot bmm matmul")
COLLECTS = words("stack cat append")


def of_pairs(trace: Trace, calls: list[Call]) -> tuple[str, tuple[Rewrite, ...]]:
    """What does all turns of a loop at once, where each multiplies two of the same few features; empty otherwise."""
    run = [call for call in calls if call.kernels and call.name not in COLLECTS]
    products = [call for call in run if call.name in SCORES | {"mul"} and len(call.inputs) == 2]
    known = {call.index for call in products}
    sums = [call for call in run if call.name == "sum" and getattr(trace.made_by(call.inputs[0]), "index", -1) in known]
    if len(products) < MANY or len(products) + len(sums) != len(run):
        return "", ()
    pairs = [tuple(piece_of(trace, one) for one in call.inputs) for call in products]
    features = {piece for pair in pairs for piece in pair}
    own = {call.index for call in calls if call.kernels}
    apart = all(trace.makers[one.id].index not in own for call in products for one in made(trace, call))
    shapes = {one.shape for call in products for one in call.inputs}
    if not apart or len(shapes) > 1 or not len(features) < len(set(pairs)) <= len(features) ** 2:
        return "", ()
    if not all(call.name == "mul" or is_dot(call) for call in products):
        return "", ()
    if any(one.origin == "parameter" for call in products for one in call.inputs):
        return "", ()
    summed = len(sums) == len(products) and all(
        dimension(one, one.inputs[0]) == len(one.inputs[0].shape) - 1 for one in sums
    )
    picks = "the pairs by two index tensors, such as of torch.tril_indices, buffers"
    if products[0].name == "mul" and not summed:
        return ("", ()) if sums else (f"all pairs at once: f[:, i] * f[:, j] of the stacked features f, {picks}", ())
    flat = len(products[0].inputs[0].shape) == 2
    product = "torch.bmm(f, f.transpose(1, 2)) of the stacked features f"
    product = product if flat else "f @ f.mT of the features f, stacked at dim=-2"
    change = f"all pairs are one product: {product}, then {picks}"
    return change, in_one(trace, products, sums) if summed else ()


def is_dot(call: Call) -> bool:
    """Whether a product multiplies numbers one by one, and sums along the last dimension alone."""
    if call.name == "einsum":
        sides, _, kept = str(call.arguments[0]).replace(" ", "").partition("->")
        one, _, other = sides.partition(",")
        return one == other and kept == one[:-1] and one[-1:] not in kept
    return call.outputs[0].shape == call.inputs[0].shape[:-1]


def made(trace: Trace, call: Call) -> list[Value]:
    """What a call reads of what another gave."""
    return [root for one in call.inputs if (root := trace.root(one)).id in trace.makers]


def piece_of(trace: Trace, value: Value) -> tuple:
    """Which part of which tensor a value is."""
    steps: list[str] = []
    maker = trace.makers.get(value.id)
    while maker is not None and maker.inputs and maker.name in PASSED:
        at = [one.id for one in maker.outputs].index(value.id)
        steps += [f"{maker.arguments} {at}"] if maker.name not in ("detach", "contiguous", "unsqueeze") else []
        value = maker.inputs[0]
        maker = trace.makers.get(value.id)
    return value.id, *steps


def in_one(trace: Trace, products: list[Call], sums: list[Call]) -> tuple[Rewrite, ...]:
    """The product, to be tried: of features that a number picks along the second of three dimensions."""
    found = [place_of(trace, one) for call in products for one in call.inputs]
    places = [one for one in found if one is not None]
    sources = {source.id: source for source, _ in places}
    users = {user.index: user for call in sums for user in trace.users[call.outputs[0].id]}
    if len(places) < len(found) or len(sources) != 1 or len(users) != 1:
        return ()
    (source,), (last,) = sources.values(), users.values()
    whole = [one.id for one in last.inputs] == [call.outputs[0].id for call in sums]
    if last.name != "stack" or not whole or last.outputs[0].shape != (source.shape[0], len(sums)):
        return ()
    i, j = ([place for _, place in places[side::2]] for side in (0, 1))

    def compute(f: Tensor) -> Tensor:
        return torch.bmm(f, f.transpose(1, 2))[:, i, j]

    return rewrite(trace, last, [source], compute)


def place_of(trace: Trace, value: Value) -> tuple[Value, int] | None:
    """The tensor of three dimensions and the place along its second that a value is."""
    maker = trace.makers.get(value.id)
    if maker is None or maker.name != "getitem" or len(maker.inputs[0].shape) != 3:
        return None
    index = maker.arguments[1]
    plain = isinstance(index, tuple) and len(index) == 2 and index[0] == slice(None) and type(index[1]) is int
    return (maker.inputs[0], index[1]) if plain else None
