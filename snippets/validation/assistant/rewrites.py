"""Changes that are made to a copy by giving other results for some of its calls, so that they can be tried."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from .calls import Call, Value, bounds_of, tensors_of
from .names import ASKED, name_of
from .trace import Trace


class Unfit(Exception):
    """A rewrite does not fit what it meets: nothing is said about the change that it stands for."""


@dataclass(frozen=True)
class Rewrite:
    """What some calls of a module are replaced with.

    Attributes:
        last: the call that gives what `compute` makes of the operands; where that is None, what it gave at first.
        left_out: the calls that nothing needs any more, which give a tensor of no content.
        operands: each by the call that reads it and its place among the tensors there.
    """

    last: Call
    left_out: tuple[Call, ...]
    operands: tuple[tuple[int, int], ...]
    compute: Callable[..., Tensor] | None


def rewrite(  # "Trace" in quotes: a file that is pasted may have the class further down
    trace: "Trace", last: Call, operands: Sequence[Value], compute: Callable[..., Tensor] | None
) -> tuple[Rewrite, ...]:
    """One, or none where it cannot be made: an operand is read by none of the calls, or they do more than that."""
    if any(call.inside - {"library"} for call in trace.calls) or len(last.outputs) != 1:
        return ()
    left_out = unneeded(trace, last, {one.id for one in operands})
    read = {value.id: (call.index, place) for call in (last, *left_out) for place, value in enumerate(call.inputs)}
    writes = any(call.writes and trace.makers.get(call.inputs[0].id) not in left_out for call in (last, *left_out))
    if last.writes or (compute and writes) or any(one.id not in read for one in operands):
        return ()
    return (Rewrite(last, tuple(left_out), tuple(read[one.id] for one in operands), compute),)


def unneeded(trace: "Trace", last: Call, operands: set[int]) -> list[Call]:
    """The calls before the last whose results only it and each other use."""
    found: dict[int, Call] = {}
    todo = [last]
    while todo:
        for value in todo.pop().inputs:
            maker = trace.makers.get(value.id)
            if maker is not None and value.id not in operands and maker.index not in found:
                found[maker.index] = maker
                todo.append(maker)
    kept = {last.index}
    for index in sorted(found, reverse=True):
        call = found[index]
        users = {user.index for value in call.outputs for user in trace.users.get(value.id, ())}
        if len(call.outputs) == 1 and users <= kept:
            kept.add(index)
    return [found[index] for index in sorted(kept - {last.index})]


class Rewritten(nn.Module):
    """A module some calls of which are replaced; without rewrites, one that runs as slowly as the others do."""

    def __init__(self, module: nn.Module, rewrites: Iterable[Rewrite] = ()):
        super().__init__()
        self._orig_mod, self.rewrites = module, tuple(rewrites)
        self.known: dict[int, Tensor] = {}  # what was made once
        self.stand_ins = {call.index: (call, stand_in(call)) for one in self.rewrites for call in one.left_out}

    def forward(self, *inputs: Any, **named: Any) -> Any:
        with Replacing(self):
            return self._orig_mod(*inputs, **named)


class Replacing(TorchFunctionMode):
    """One call of a module: counts the calls of torch as the record does."""

    def __init__(self, module: Rewritten):
        super().__init__()
        self.count, self.known, self.read = 0, module.known, {}
        ready = [one for one in module.rewrites if one.compute or one.last.index in self.known]
        self.last = {one.last.index: one for one in module.rewrites}
        self.left_out = {call.index: module.stand_ins[call.index] for one in ready for call in one.left_out}
        self.wanted = {place for one in module.rewrites for place in one.operands}
        self.readers = {index for index, _ in self.wanted}

    def __torch_function__(self, function: Callable, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        name = name_of(function)
        if name in ASKED or name.startswith(("len", "lift_fresh")):
            return function(*args, **kwargs)
        index, self.count = self.count, self.count + 1
        if index in self.readers:
            tensors = [*tensors_of((args, kwargs)), *bounds_of(args)]
            self.read |= {(index, place): one for place, one in enumerate(tensors) if (index, place) in self.wanted}
        if index in self.left_out:
            call, made = self.left_out[index]
            check_name(call, name)
            return made
        if index not in self.last:
            return function(*args, **kwargs)
        return self.replaced(self.last[index], name, lambda: function(*args, **kwargs))

    def replaced(self, one: Rewrite, name: str, run: Callable[[], Tensor]) -> Tensor:
        check_name(one.last, name)
        if one.compute is None:
            index = one.last.index
            if index not in self.known:
                self.known[index] = run().detach()
            return self.known[index]
        expected = one.last.outputs[0]
        try:
            made = one.compute(*(self.read[place] for place in one.operands)).to(expected.dtype)
        except Exception as error:
            raise Unfit(str(error)) from error
        if made.shape != expected.shape:
            raise Unfit(f"expected shape {expected.shape}, got {tuple(made.shape)}")
        return made


def check_name(call: Call, name: str) -> None:
    """Raise an Unfit where the copy takes another way than the recorded module."""
    if name != call.name and not (name == "getitem" and call.name == "index"):
        raise Unfit(f"expected {call.name}, got {name}")


def stand_in(call: Call) -> Tensor:
    """What takes the place of a result that nobody reads."""
    made = call.outputs[0]
    return torch.empty((), dtype=made.dtype, device=made.device).expand(made.shape)


# ---- what some patterns are replaced with -------------------------------------------------------------------------


def as_it_is(x: Tensor) -> Tensor:
    return x


def broadcast(shape: tuple[int, ...]) -> Callable[[Tensor], Tensor]:
    return lambda x: x.expand(shape)


def attention(scale: float, masks: Sequence[str]) -> Callable[..., Tensor]:
    """Of queries, transposed keys, values and masks, which are added ("add") or hide where they are true ("hide")."""

    def compute(q: Tensor, k: Tensor, v: Tensor, *given: Tensor) -> Tensor:
        mask = None
        for kind, one in zip(masks, given, strict=True):
            if kind == "add":
                one = one.to(q.dtype)
                mask = one if mask is None else mask + one
            elif mask is None:
                mask = ~one
            else:
                mask = mask & ~one if mask.dtype == torch.bool else mask.masked_fill(one, float("-inf"))
        if mask is not None and mask.dtype == torch.bool and "add" in masks:
            raise Unfit("a mask that hides before one that is added")
        return F.scaled_dot_product_attention(q, k.transpose(-2, -1), v, attn_mask=mask, scale=scale)

    return compute


def norm(means: bool, eps: float, weight: bool, bias: bool) -> Callable[..., Tensor]:
    """RMSNorm or LayerNorm of x, and the weight and bias that follow."""

    def compute(x: Tensor, *affine: Tensor) -> Tensor:
        given = list(affine)
        w = given.pop(0) if weight else None
        b = given.pop(0) if bias else None
        if means:
            return F.layer_norm(x, x.shape[-1:], w, b, eps)
        made = F.rms_norm(x, x.shape[-1:], w, eps)
        return made if b is None else made + b

    return compute


def distances(power: str) -> Callable[..., Tensor]:
    """Of two tensors with a dimension of one each, such as x[:, None] and y[None]."""

    def compute(one: Tensor, other: Tensor) -> Tensor:
        if one.shape[-2] != 1:
            one, other = other, one
            return compute(one, other).transpose(-2, -1) if one.shape[-2] == 1 else refuse()
        if other.shape[-3] != 1:
            return refuse()
        one, other = one.squeeze(-2), other.squeeze(-3)
        if power == "product":
            return one @ other.transpose(-2, -1)
        p = 1.0 if power == "abs" else 2.0
        made = torch.cdist(one, other, p, compute_mode="donot_use_mm_for_euclid_dist")
        return made.square() if power == "square" else made

    return compute


def refuse() -> Tensor:
    raise Unfit("no two tensors with a dimension of one each")
