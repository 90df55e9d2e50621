"""Logits of which a slice is copied before the loss, since labels are shifted by one."""

from collections.abc import Iterator

import torch.nn.functional as F
from torch import Tensor

from ..calls import Call, Value
from ..findings import Finding, in_order, size
from ..graphs import Captured
from ..names import CASTS, VIEWS, words
from ..rewrites import Rewrite, rewrite
from ..trace import Trace
from .attention import data_of, weight_of
from .pieces import LARGE

COPIES = words("contiguous clone reshape flatten cat")
PICKS = words("getitem narrow")
LOSSES = words("cross_entropy log_softmax nll_loss logsumexp kl_div")
LABELLED = words("cross_entropy nll_loss")  # which leave rows out by their label
PART = 0.05  # of the bytes that the forward moves


def shifted(trace: Trace, captured: Captured) -> Iterator[Finding]:
    """A copy of most rows of a product, which a loss reads."""
    whole = sum(call.moved for call in trace.eager)
    for call in trace.eager:
        few = call.out is None or call.out.bytes < LARGE or call.moved < PART * whole
        if call.name not in COPIES or not call.kernels or few:
            continue
        path = [found for one in call.inputs if (found := sliced(trace, one)) is not None]
        users = trace.past(call.outputs[0], VIEWS | CASTS)
        if not path or not any(user.name in LOSSES for user in users):
            continue
        pick, product = path[0]
        kept, changes = read_whole(trace, pick, product), []
        if not kept:
            changes.append(f"slice what {product.name} reads, before it")
        if any(user.name in LABELLED for user in users):
            changes.append("shift the labels: all logits, and ignore_index (-100) for the rows without a label")
        if not changes:
            continue
        yield Finding(
            "copy",
            "A slice of the logits is copied before the loss",
            in_order([call, pick, product], call),
            f"{call.name} copies {size(call.outputs[0].bytes)}, and backward copies as much",
            "; or ".join(changes),
            "compiler/fusion.md#layout",
            saves=2 * call.moved,
            kernels=1,
            rewrites=() if kept else sliced_before(trace, call, pick, product),
        )


def read_whole(trace: Trace, pick: Call, product: Call) -> bool:
    """Whether all rows of a product, or what they were cast to, are returned or read by more than the slice."""
    made = product.outputs[0]
    returned = trace.gives_back(made, CASTS) or pick.inputs[0].id in trace.returned
    return returned or len(trace.past(made, CASTS)) > 1


def sliced(trace: Trace, value: Value) -> tuple[Call, Call] | None:
    """The slice that a copy reads, and the product that it is a slice of; most of that, or it is another finding."""
    pick, maker = None, trace.makers.get(value.id)
    while maker is not None and maker.inputs and maker.name in VIEWS | CASTS:
        pick = maker if maker.name in PICKS and maker.outputs[0].numel < maker.inputs[0].numel else pick
        maker = trace.makers.get(maker.inputs[0].id)
    if pick is None or maker is None or weight_of(maker) is None:
        return None
    made, left = maker.outputs[0], pick.outputs[0]
    return (pick, maker) if made.shape[-1:] == left.shape[-1:] and 2 * left.numel > made.numel else None


def sliced_before(trace: Trace, call: Call, pick: Call, product: Call) -> tuple[Rewrite, ...]:
    """The product of the rows that are kept, to be tried."""
    index = pick.arguments[1] if pick.name == "getitem" and len(pick.arguments) > 1 else None
    index = index if isinstance(index, tuple) else (index,)
    data, rank = data_of(product), len(product.outputs[0].shape)
    plain = all(isinstance(one, (slice, int)) for one in index) and index[rank - 1 :] in ((), (slice(None),))
    if not plain or product.name != "linear" or product.inputs[0] is not data or pick.inputs[0] != product.outputs[0]:
        return ()
    rows, shape = index[: rank - 1], call.outputs[0].shape

    def compute(x: Tensor, *weights: Tensor) -> Tensor:
        return F.linear(x[rows], *weights).reshape(shape)

    return rewrite(trace, call, [data, *product.inputs[1:]], compute)
