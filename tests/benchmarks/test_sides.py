"""The sides of a kernel case, with stand-ins for libraries: what works in place has fresh inputs at each call."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from kernels import swiglu as kernel
from snippets.validation import equivalence
from tests.benchmarks import sides
from tests.benchmarks.case import Point, Results, Variant, Workload

CPU = torch.device("cpu")


class WritesOverSaved(torch.autograd.Function):
    """SwiGLU whose backward writes the gradients over gate and up, unseen by autograd, as a kernel does."""

    @staticmethod
    def forward(ctx, gate, up):
        ctx.save_for_backward(gate, up)
        return F.silu(gate) * up

    @staticmethod
    def backward(ctx, dy):
        gate, up = ctx.saved_tensors
        with torch.enable_grad():
            inputs = gate.detach().requires_grad_(), up.detach().requires_grad_()
            gradients = torch.autograd.grad(F.silu(inputs[0]) * inputs[1], inputs, dy)
        for t, gradient in zip((gate, up), gradients, strict=True):
            t.data.copy_(gradient)
        return gate, up


class TurnsInPlace(torch.autograd.Function):
    """A quarter turn of the last dimension's halves, over its input and over the incoming gradient."""

    @staticmethod
    def forward(ctx, x):
        x.data.copy_(turned(x))
        return x.transpose(0, 1).transpose(0, 1)  # a view, as of a tensor that was laid out anew

    @staticmethod
    def backward(ctx, dy):
        dy.data.copy_(-turned(dy))
        return dy


class GradientOverLogits(torch.autograd.Function):
    """A loss whose forward leaves the gradient where the logits were."""

    @staticmethod
    def forward(ctx, logits, target):
        loss = F.cross_entropy(logits, target)
        gradient = F.softmax(logits, -1)
        gradient[torch.arange(len(target)), target] -= 1
        logits.data.copy_(gradient / len(target))
        ctx.save_for_backward(logits.detach())
        return loss

    @staticmethod
    def backward(ctx, dloss):
        (gradient,) = ctx.saved_tensors
        gradient.data.mul_(dloss)
        return gradient, None


def turned(x: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return torch.cat((-second, first), -1)


def swiglu(direction: str, **functions: sides.Find | sides.Side) -> Workload:
    inputs = {"gate": torch.randn(4, 8), "up": torch.randn(4, 8)}
    return workload(direction, inputs, lambda gate, up: F.silu(gate) * up, functions)


def turn(direction: str, **functions: sides.Find | sides.Side) -> Workload:
    return workload(direction, {"x": torch.randn(4, 8)}, turned, functions)


def loss(direction: str, dtype: torch.dtype = torch.float32, **functions: sides.Find | sides.Side) -> Workload:
    grads = (torch.tensor(0.5, dtype=dtype),)
    inputs, target = {"logits": torch.randn(4, 8).to(dtype)}, torch.arange(4)
    return workload(direction, inputs, F.cross_entropy, functions, rest=(target,), grads=grads)


def workload(direction: str, inputs: dict[str, Tensor], eager: sides.Function, functions: dict, **more) -> Workload:
    point = Point({"rows": 4, "columns": 8}, "float32", direction)
    functions = {"eager": lambda: eager} | functions
    return sides.workload(point, kernel, inputs, functions, bytes_read=0, bytes_written=0, flops=0, mix="copy", **more)


def each_of_four_calls(variant: Variant, refreshed: bool = True) -> list[Results]:
    """The results of each call, as the runner takes them: on fresh inputs where the variant works in place."""
    call, found = variant.build(), []
    for _ in range(4):
        if refreshed and variant.refresh:
            variant.refresh()
        found.append({name: t.detach().clone() for name, t in variant.results(call()).items()})
    return found


def check(workload: Workload, name: str, refreshed: bool = True) -> None:
    reference = workload.reference()
    baseline = each_of_four_calls(workload.variants["eager"])[0]
    for results in each_of_four_calls(workload.variants[name], refreshed):
        equivalence.check(results, baseline, reference)


IN_PLACE = {
    "over what the forward saved": (swiglu, WritesOverSaved, ("backward", "both")),
    "over the input and the incoming gradient": (turn, TurnsInPlace, ("forward", "backward", "both")),
    "the gradient over the input": (loss, GradientOverLogits, ("both",)),
}
PLACES = [(*what, direction) for *what, directions in IN_PLACE.values() for direction in directions]


@pytest.mark.parametrize(("case", "function", "direction"), PLACES)
def test_a_call_that_works_in_place_is_right_each_time_on_inputs_that_are_put_back(case, function, direction):
    side = sides.Side(lambda: function.apply, overwrites=("forward", "backward", "both"))
    check(case(direction, peer=side), "peer")


@pytest.mark.parametrize(("case", "function", "direction"), PLACES)
def test_without_a_refresh_the_check_finds_it_out(case, function, direction):
    side = sides.Side(lambda: function.apply, overwrites=("forward", "backward", "both"))
    with pytest.raises(AssertionError, match="error"):
        check(case(direction, peer=side), "peer", refreshed=False)


@pytest.mark.parametrize(("case", "function", "direction"), PLACES)
def test_what_works_in_place_has_copies_of_its_own(case, function, direction):
    side = sides.Side(lambda: function.apply, overwrites=("forward", "backward", "both"))
    both = case(direction, peer=side)
    before = each_of_four_calls(both.variants["eager"])[0]
    each_of_four_calls(both.variants["peer"])
    after = each_of_four_calls(both.variants["eager"])[0]
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_only_the_directions_that_overwrite_are_refreshed():
    side = sides.Side(lambda: WritesOverSaved.apply, overwrites=("backward", "both"))
    assert swiglu("forward", peer=side).variants["peer"].refresh is None
    assert swiglu("backward", peer=side).variants["peer"].refresh is not None
    assert swiglu("backward", peer=side).variants["eager"].refresh is None


def test_a_peer_s_result_of_another_dtype_is_rounded_after_the_call_and_then_spoilt(monkeypatch):
    """The call returns what the library returns; a replay that computes nothing would leave NaN."""
    both = loss(
        "both",
        torch.bfloat16,
        peer=sides.Side(lambda: lambda logits, target: F.cross_entropy(logits.float(), target), incoming=torch.float32),
    )
    check(both, "peer")
    peer, grad, handed = both.variants["peer"], torch.autograd.grad, []
    monkeypatch.setattr(torch.autograd, "grad", lambda y, x, dy: handed.extend(dy) or grad(y, x, dy))
    returned = peer.build()()
    assert [t.dtype for t in handed] == [torch.float32], "autograd would have to convert it, and that is timed"
    assert returned[0].dtype == torch.float32
    assert peer.results(returned)["output"].dtype == torch.bfloat16
    assert returned[0].isnan()


def test_a_peer_gets_its_own_layout_and_its_results_come_back_in_the_others():
    seen = []

    def library(x: Tensor, table: Tensor) -> Tensor:
        seen.append((tuple(x.shape), tuple(table.shape), x.is_leaf))
        return torch.cat((-x[4:], x[:4])) * table

    def eager(x: Tensor, table: Tensor) -> Tensor:
        return turned(x) * table[0]

    side = sides.Side(lambda: library, layout=lambda t: t.T, rest=lambda table: (table[0].clone(),))
    for direction in ("forward", "backward", "both"):
        inputs, table = {"x": torch.randn(4, 8)}, torch.full((2,), 3.0)
        check(workload(direction, inputs, eager, {"peer": side}, rest=(table,)), "peer")
    assert set(seen) == {((8, 4), (), True)}, "the call got anything but prepared inputs"


def test_every_variant_is_built_at_every_large_shape_and_every_knob_says_why_not_at_the_small_ones():
    large = sides.shapes({"typical": (64, 8), "odd": (64, 9)})
    points = list(sides.grid(torch.device("cuda"), large, on_a_cpu={}, few={"rows": 2}))
    names = ["typical", "typical backward", "odd", "odd backward", "small", "small step"]
    assert [point.name for point in points] == names
    assert [point.variants for point in points if point.shape["rows"] == 64] == 4 * [None]
    for point in points:
        if point.shape["rows"] == 2:
            assert "compile-max" in point.variants
            with pytest.raises(sides.LeftOut, match="slow to build"):
                sides.every_knob_at(point, turned)
        else:
            assert sides.every_knob_at(point, turned)
