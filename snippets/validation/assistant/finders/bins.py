"""Numbers that are compared with many others to find their place among them, or whether they are there."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from ..calls import Call, Value
from ..findings import Finding, in_order, size
from ..graphs import Captured
from ..names import CASTS, words
from ..rewrites import Rewrite, Unfit, rewrite
from ..trace import Trace
from .pieces import PART, dimension

TIMES, LARGE = 8, 2**20  # how many more comparisons there are than numbers on either side; bytes of them
ORDERS = words("gt ge lt le")
TURNED = {"gt": "lt", "ge": "le", "lt": "gt", "le": "ge", "eq": "eq"}
COUNTS, WHOLE = words("sum count_nonzero"), words("int long short")


def compared(trace: Trace, captured: Captured) -> Iterator[Finding]:
    """Comparisons of all pairs that are then counted, or of which the first that is true is taken."""
    whole = sum(call.moved for call in trace.eager)
    for call in trace.eager:
        if call.name not in TURNED or len(call.inputs) != 2 or call.out is None or call.out.bytes < LARGE:
            continue
        if not call.named.keys() <= {"other"}:  # where `input=` is named, the order is another
            continue
        users = trace.past(call.out, CASTS | WHOLE)
        reduced = users[0] if len(users) == 1 else None
        few = call.out.numel < TIMES * max(trace.root(one).numel for one in call.inputs)
        few |= trace.gives_back(call.out, CASTS | WHOLE)
        if reduced is None or few or call.moved + reduced.moved < PART * whole or reduced.out is None:
            continue
        dim = dimension(reduced, call.out)
        sides = None if dim is None else sides_of(call, dim)
        if sides is None or dim is None:
            continue
        how, change = change_of(trace, call, reduced, sides, dim - len(call.out.shape))
        if change:
            yield Finding(
                "temporary",
                "Numbers are compared with all of a table",
                in_order([call, reduced], call),
                f"{call.name} makes {size(call.out.bytes)} of "
                f"{size(sum(trace.root(one).bytes for one in call.inputs))}, and {reduced.name} {how}",
                change,
                "compiler/fusion.md#rows",
                saves=2 * call.out.bytes + reduced.moved,
                kernels=0,
                rewrites=placed(trace, call, reduced, sides, dim),
            )


def sides_of(call: Call, dim: int) -> tuple[int, int] | None:
    """Which input is compared, and which is the table that lies along the dimension."""
    back = dim - len(call.outputs[0].shape)
    along = [one.shape[back] if len(one.shape) >= -back else 1 for one in call.inputs]
    return (along.index(1), 1 - along.index(1)) if along.count(1) == 1 else None


def change_of(trace: Trace, call: Call, reduced: Call, sides: tuple[int, int], dim: int) -> tuple[str, str]:
    """What a reduction over a dimension, from the last, does with the comparisons, and what does it by a search."""
    x, edges = (call.inputs[side] for side in sides)
    kind = call.name if sides[0] == 0 else TURNED[call.name]  # as x compares with the table
    lone = len([one for one in edges.shape if one > 1]) == 1
    maker = trace.made_by(edges)
    fixed = edges.origin == "buffer" if maker is None else not maker.inputs  # as arange: no step changes it
    ordered = lone and fixed and call.facts["ordered"][sides[1]]
    if kind == "eq":
        return ("asks whether any is true", "torch.isin(x, table)") if reduced.name == "any" and lone else ("", "")
    right = kind in ("ge", "lt")
    search = f"torch.bucketize(x, edges, right={right})" if lone else f"torch.searchsorted(edges, x, right={right})"
    rows = "" if lone else ", x with the rows of the edges first, contiguous"
    first = "" if ordered else "sort the edges, once if they are a buffer, and "
    if reduced.name in COUNTS:
        less = "" if kind in ("gt", "ge") else "their number less "
        above = "" if less or not x.dtype.is_floating_point else "; NaN in x would count as above all"
        return "counts them", f"{first}{less}{search}{rows}: a search of log2 as many steps{above}"
    read = bool(trace.users[reduced.outputs[0].id]) or reduced.outputs[0].id in trace.returned
    if (reduced.name == "argmax" or (reduced.name == "max" and not read)) and ordered and kind in ("lt", "le"):
        return "takes the first that is true", f"{search}{rows}; where none is true, it gives their number"
    if reduced.name in ("any", "all") and kind in ORDERS:
        end = "amin" if (kind in ("gt", "ge")) == (reduced.name == "any") else "amax"
        return "joins them", f"compare with one end of the table alone, table.{end}({'' if lone else dim})"
    return "", ""


def placed(trace: Trace, call: Call, reduced: Call, sides: tuple[int, int], dim: int) -> tuple[Rewrite, ...]:
    """The search, to be tried: of how many edges are passed, where these are one row or one for each column."""
    x, table = (call.inputs[side] for side in sides)
    kind = call.name if sides[0] == 0 else TURNED[call.name]
    last = dim == len(call.outputs[0].shape) - 1
    if (
        reduced.name != "sum"
        or kind not in ORDERS
        or not last
        or reduced.outputs[0].shape != call.outputs[0].shape[:-1]
    ):
        return ()
    return rewrite(trace, reduced, [x, table], searching(x, table, kind))


def searching(x: Value, table: Value, kind: str) -> Callable[[Tensor, Tensor], Tensor]:
    right = kind in ("ge", "lt")

    def compute(x: Tensor, table: Tensor) -> Tensor:
        edges, values = table.sort(-1).values, x.squeeze(-1).contiguous()
        rows = edges.shape[:-1]
        if edges.numel() == edges.shape[-1]:
            found = torch.bucketize(values, edges.flatten(), right=right)
        elif values.shape[-len(rows) :] != rows:
            raise Unfit(f"edges of shape {tuple(edges.shape)} for x of shape {tuple(x.shape)}")
        else:  # a row of edges for each of the last dimensions of x
            flat = values.reshape(-1, *rows).movedim(0, -1).contiguous()
            found = torch.searchsorted(edges.contiguous(), flat, right=right).movedim(-1, 0).reshape(values.shape)
        return found if kind in ("gt", "ge") else edges.shape[-1] - found

    return compute
