"""What eager runs as many kernels and one would do: gates, activations, losses, chains."""

from collections.abc import Iterator

import torch.nn.functional as F

from ..calls import Call, Value
from ..findings import Finding, in_order, size
from ..graphs import Captured
from ..names import PASSED, POINTWISE, VIEWS, words
from ..rewrites import Rewrite, as_it_is, rewrite
from ..trace import Trace
from .attention import data_of, scores_of, softmax_by_hand, weight_of

CHAIN = 3  # kernels in a row are worth a note, and more a finding: two or three are in every model
WORTH = 2.5  # times the bytes of one kernel, or more, that a chain moves which is a finding
SHARE = 5  # a finding saves one part in so many of what the forward moves
GELU = words("mul add div tanh pow")


def gated(trace: Trace, captured: Captured) -> Iterator[Finding]:
    """A gate and its partner: two products of one input, an activation, and a multiplication."""
    for call in trace.eager:
        if call.name != "mul" or len(call.inputs) != 2:
            continue
        for gate, up in (call.inputs, call.inputs[::-1]):
            acted, lines = activation(trace, gate)
            one, other = (trace.made_by(acted) if acted else None), trace.made_by(up)
            if acted is None or one is None or other is None or weight_of(one) is None or weight_of(other) is None:
                continue
            if trace.root(data_of(one)).id != trace.root(data_of(other)).id or acted.id == up.id:
                continue
            together = one is other
            path = [*lines, call] if together else [one, other, *lines, call]
            known = lines[-1].name in ("silu", "gelu") or [each.name for each in lines] == ["sigmoid", "mul"]
            glu = [each.name for each in lines] == ["sigmoid"] and acted.shape == up.shape
            kernel = "kernels/swiglu.py" if known else "F.glu" if glu else ""
            rest = kernel or COMPILED
            if not together:
                rest = f"{STACK}, and take {kernel} for the rest" if kernel else f"{STACK}; {COMPILED}"
            yield Finding(
                "gated-mlp",
                "A gated MLP in parts",
                in_order(path),
                f"{sum(each.kernels for each in path)} kernels; the activation and the gate move "
                f"{size(sum(each.moved for each in [*lines, call]))}",
                rest,
                "kernels/swiglu.md"
                if known or glu
                else "compiler/fusion.md#a-kernel-ends-where-a-value-is-not-there-yet",
                saves=2 * acted.bytes + (0 if together else one.inputs[0].bytes),
                kernels=len(path) - 2,
                weight="note" if together and len(lines) == 1 and not glu else "finding",
            )
            break


STACK = "stack the two weights"
COMPILED = "torch.compile makes one kernel of the rest"


def activation(trace: Trace, value: Value) -> tuple[Value | None, list[Call]]:
    """What an activation was taken of, and the calls that took it."""
    call = trace.made_by(value)
    if call is None:
        return None, []
    if call.name in ("silu", "gelu", "sigmoid", "relu", "tanh", "mish", "elu"):
        return call.inputs[0], [call]
    if call.name == "mul" and len(call.inputs) == 2:  # x * sigmoid(x)
        for x, gate in (call.inputs, call.inputs[::-1]):
            maker = trace.made_by(gate)
            if maker is not None and maker.name == "sigmoid" and trace.root(maker.inputs[0]).id == trace.root(x).id:
                return x, [maker, call]
            inner = trace.made_by(maker.inputs[0]) if maker is not None and maker.name == "tanh" else None
            if (
                maker
                and inner is not None
                and inner.name == "softplus"
                and trace.root(inner.inputs[0]).id == trace.root(x).id
            ):
                return x, [inner, maker, call]
    return None, []


def dropout_after_softmax(trace: Trace, captured: Captured) -> Iterator[Finding]:
    """Softmax and dropout in two kernels, where no attention explains them."""
    for call in trace.eager:
        if call.name != "softmax" or call.out is None:
            continue
        users = trace.past(call.out, PASSED)
        active = [user for user in users if user.name == "dropout" and any(op.runs for op in user.forward)]
        if active and scores_of(trace, call) is None:
            yield Finding(
                "softmax-dropout",
                "Softmax and dropout in two kernels",
                in_order([call, active[0]]),
                f"{size(call.out.bytes)} are written and read between them",
                "kernels/softmax_dropout.py",
                "kernels/softmax-dropout.md",
                saves=2 * call.out.bytes,
                kernels=1,
            )


VOCABULARY = 4096


def large_vocabulary(trace: Trace, captured: Captured) -> Iterator[Finding]:
    """A cross-entropy whose logits, and their gradient, are the largest tensors of the step."""
    for call in trace.eager:
        if (
            call.name not in ("cross_entropy", "log_softmax", "softmax", "logsumexp")
            or not call.inputs
            or "checkpoint" in call.inside
        ):
            continue
        logits = call.inputs[0]
        classes = (
            logits.shape[1] if call.name == "cross_entropy" and len(logits.shape) > 1 else (logits.shape or (0,))[-1]
        )
        taken = trace.root(logits) if call.name == "logsumexp" else call.outputs[0]
        users = trace.past(taken, PASSED | {"log", "clamp", "add", "neg"}) if call.name != "cross_entropy" else []
        users = [user for user in users if user.name in ("nll_loss", "gather", "index", "take_along_dim")]
        chosen = call.name == "cross_entropy" or bool(users)
        chunks = sum(other.line == call.line and other.name == call.name for other in trace.calls)
        if classes < VOCABULARY or not chosen or chunks >= 3:
            continue
        maker = trace.made_by(logits)
        losses = trace.past(call.outputs[0], PASSED | {"neg"}) if users else []
        lines = in_order([call, *([maker] if maker else []), *users[:1], *losses[:1]], call)
        yield Finding(
            "cross-entropy",
            "Cross-entropy over a large vocabulary",
            lines,
            f"logits of {size(logits.bytes)} over {classes} classes, and as much again for their softmax and gradient",
            "kernels/cross_entropy.py, or the loss in chunks of rows",
            "kernels/cross-entropy.md",
            saves=4 * logits.bytes,
            kernels=3,
        )


def written_out(trace: Trace, captured: Captured) -> Iterator[Finding]:
    """Functions that PyTorch has as one kernel, made of several: softmax, its logarithm, SiLU."""
    for call in trace.eager:
        if steps := softmax_by_hand(trace, call):
            (dim,) = {*steps[-1].arguments[1:2], steps[-1].named.get("dim")} - {None} or {None}
            source = steps[0].inputs[0]
            made = rewrite(trace, call, [source], lambda x, dim=dim: x.softmax(dim)) if type(dim) is int else ()
            yield rewritten([*steps, call], "Softmax", "F.softmax", "kernels/softmax.md", made)
        elif call.name == "log" and (maker := squashed(trace, call)) is not None:
            yield logarithm(trace, maker, call)
        elif call.name == "log" and (steps := sum_of_exponentials(trace, call)):
            change = "torch.logsumexp, the logarithm of a factor added to the exponent: it stays finite"
            yield rewritten([*steps, call], "Log-sum-exp", change, "kernels/cross-entropy.md", ())
        elif call.name == "cross_entropy" and (maker := normalized(trace, call)) is not None:
            made = rewrite(trace, maker, maker.inputs[:1], as_it_is)
            name, change = (
                "Log-softmax of a cross-entropy",
                "give F.cross_entropy the logits: it takes their log-softmax",
            )
            yield rewritten([maker, call], name, change, "kernels/cross-entropy.md", made)
        elif call.name == "mul" and len(call.inputs) == 2:
            x, lines = activation(trace, call.outputs[0])
            if x is not None and len(lines) >= 2:
                name = "SiLU" if len(lines) == 2 else "Mish"
                made = rewrite(trace, lines[-1], [x], getattr(F, name.lower()))
                yield rewritten(lines, name, f"F.{name.lower()}", "kernels/swiglu.md", made)


def before_log(trace: Trace, log: Call) -> Call | None:
    """What made a logarithm's argument, past a small number that keeps it from minus infinity."""
    maker = trace.made_by(log.inputs[0])
    small = maker is not None and maker.name in ("add", "clamp", "clamp_min") and len(maker.inputs) == 1
    return trace.made_by(maker.inputs[0]) if maker is not None and small else maker


def sum_of_exponentials(trace: Trace, log: Call) -> list[Call]:
    """The exponential, its factor and the sum over one dimension, of which a logarithm is taken."""
    total = before_log(trace, log)
    if total is None or total.name != "sum" or total.inputs[0].shape == total.outputs[0].shape:
        return []
    maker = trace.made_by(total.inputs[0])
    steps = [maker] if maker is not None and maker.name == "mul" else []
    makers = [trace.made_by(one) for one in maker.inputs] if maker is not None and steps else [maker]
    exponential = next((one for one in makers if one is not None and one.name == "exp"), None)
    return [exponential, *steps, total] if exponential is not None else []


def normalized(trace: Trace, loss: Call) -> Call | None:
    """The log-softmax over the classes of a cross-entropy, which takes it once more."""
    maker = trace.makers.get(loss.inputs[0].id)
    if maker is None or maker.name != "log_softmax":
        return None
    dim = maker.named.get("dim", next((one for one in maker.arguments[1:2] if type(one) is int), None))
    return maker if dim is not None and dim % len(maker.inputs[0].shape) == 1 else None


def squashed(trace: Trace, log: Call) -> Call | None:
    """The softmax or sigmoid that a logarithm is taken of, past a small number that keeps it from minus infinity."""
    maker = before_log(trace, log)
    return maker if maker is not None and maker.name in ("softmax", "sigmoid") else None


def logarithm(trace: Trace, maker: Call, log: Call) -> Finding:
    """Of a softmax or a sigmoid: one function computes both, and stays finite."""
    if maker.name == "sigmoid":
        name, change = "Log-sigmoid", "F.logsigmoid, or F.binary_cross_entropy_with_logits for a loss"
        made = rewrite(trace, log, maker.inputs[:1], F.logsigmoid)
    else:
        name, change = "Log-softmax", "F.log_softmax, or F.cross_entropy for a loss"
        (dim,) = {*maker.arguments[1:2], maker.named.get("dim")} - {None} or {None}
        made = rewrite(trace, log, maker.inputs[:1], lambda x, dim=dim: x.log_softmax(dim))
    return rewritten([maker, log], name, change, "kernels/cross-entropy.md", made)


def rewritten(path: list[Call], name: str, call: str, page: str, rewrites: tuple[Rewrite, ...]) -> Finding:
    moved = sum(each.moved for each in path)
    return Finding(
        "written-out",
        f"{name} written out",
        in_order(path),
        f"{sum(each.kernels for each in path)} kernels move {size(moved)}",
        call,
        page,
        saves=max(0, moved - 2 * path[-1].outputs[0].bytes),
        kernels=sum(each.kernels for each in path) - 1,
        rewrites=rewrites,
    )


def chains(trace: Trace, captured: Captured) -> Iterator[Finding]:
    """Pointwise operations in a row, each a kernel that reads what the one before wrote."""
    group_of: dict[int, list[Call]] = {}
    for call in trace.eager:
        if call.name not in POINTWISE or call.out is None or call.out.numel < 256 or not call.kernels:
            continue
        makers = [trace.made_by(one) for one in call.inputs if one.numel == call.out.numel]
        group = [call]
        for other in {id(one): one for maker in makers if maker and (one := group_of.get(maker.index))}.values():
            joined = sorted((*group, *other), key=lambda one: one.index)
            group = group if leaves_and_returns(trace, joined) else joined
        group_of |= {one.index: group for one in group}
    whole = sum(call.moved for call in trace.calls)
    for group in {id(one): one for one in group_of.values()}.values():
        moved = sum(call.moved for call in group)
        inside = {value.id for call in group for value in call.outputs}
        least = sum(
            {
                trace.root(one).id: trace.root(one).bytes
                for call in group
                for one in call.inputs
                if trace.root(one).id not in inside
            }.values()
        )
        least += group[-1].outputs[0].bytes
        if len(group) >= CHAIN and moved > least:
            gelu, large = is_gelu(group), SHARE * (moved - least) >= whole
            yield Finding(
                "chain",
                "A chain of pointwise operations, each a kernel",
                in_order(group),
                f"{len(group)} kernels ({', '.join(dict.fromkeys(call.name for call in group))}) move "
                f"{size(moved)}; one would move {size(least)}",
                "F.gelu" if gelu else "torch.compile makes one kernel of them",
                "compiler/fusion.md#a-kernel-ends-where-a-value-is-not-there-yet",
                saves=moved - least,
                kernels=len(group) - 1,
                weight="finding" if gelu or (len(group) > CHAIN and moved >= WORTH * least and large) else "note",
                rewrites=as_gelu(trace, group) if gelu else (),
            )


def is_gelu(group: list[Call]) -> bool:
    """Whether a chain has the steps of GELU, exact or by tanh; a log-density may have a tanh and a power, too."""
    names = {call.name for call in group}
    return "erf" in names or {"tanh", "pow"} <= names <= GELU


def as_gelu(trace: Trace, group: list[Call]) -> tuple[Rewrite, ...]:
    """F.gelu in one of its two forms, to be tried: of the one tensor that the chain reads."""
    made = {value.id for call in group for value in call.outputs}
    read = {one.id: one for call in group for one in call.inputs if one.id not in made}
    form = "none" if any(call.name == "erf" for call in group) else "tanh"
    return rewrite(trace, group[-1], [*read.values()], lambda x: F.gelu(x, approximate=form)) if len(read) == 1 else ()


def leaves_and_returns(trace: Trace, group: list[Call]) -> bool:
    """Whether something outside of a group lies between two of its members: then no kernel can hold both."""
    members, first = {call.index for call in group}, group[0].index
    todo = [
        maker for call in group for one in call.inputs if (maker := trace.made_by(one)) and maker.index not in members
    ]
    seen: set[int] = set()
    while todo:
        call = todo.pop()
        if call.index < first or call.index in seen:
            continue
        seen.add(call.index)
        if call.index in members:
            return True
        todo += [maker for one in call.inputs if (maker := trace.made_by(one)) is not None]
    return False


def rotary(trace: Trace, captured: Captured) -> Iterator[Finding]:
    """Pairs of numbers turned by an angle, in halves, in pairs or as complex numbers."""
    for call in trace.eager:
        path: list[Call] = []
        if call.name in ("cat", "stack"):
            path = turned_halves(trace, call)
        elif call.name == "sub":
            path = turned_pairs(trace, call)
        elif call.name == "view_as_complex" and call.outputs and call.inputs[0].origin != "buffer":
            turned = [user for user in trace.past(call.outputs[0], VIEWS - {"view_as_real"}) if user.name == "mul"]
            back = (
                [user for user in trace.past(turned[0].outputs[0], ()) if user.name == "view_as_real"] if turned else []
            )
            path = [call, turned[0], back[0]] if back else []
        if path:
            whole = call.outputs[0].bytes * (2 if call.name == "sub" else 1)  # a difference is of one half
            yield Finding(
                "rotary",
                "Rotary embedding written out",
                in_order(path),
                f"{sum(each.kernels for each in path)} kernels move {size(sum(each.moved for each in path))}; "
                f"one would move {size(2 * whole)}",
                "kernels/rope.py",
                "kernels/rope.md",
                saves=max(0, sum(each.moved for each in path) - 2 * whole),
                kernels=max(1, sum(each.kernels for each in path) - 1),
            )


def turned_halves(trace: Trace, cat: Call) -> list[Call]:
    """`cat((-x2, x1))`, or the same stacked, times a sine, plus x times a cosine."""
    if len(cat.inputs) != 2:
        return []
    negated = [maker for one in cat.inputs if (maker := trace.makers.get(one.id)) is not None and maker.name == "neg"]
    if len(negated) != 1 or len({trace.root(maker_input(trace, one)).id for one in cat.inputs}) != 1:
        return []
    users = trace.past(cat.outputs[0], PASSED)
    sines, sums = ([user for user in users if user.name == name] for name in ("mul", "addcmul"))
    sums += [user for sine in sines for user in trace.past(sine.outputs[0], PASSED) if user.name in ("add", "addcmul")]
    return [negated[0], cat, *sines, *sums] if sums else []


def maker_input(trace: Trace, value: Value) -> Value:
    """A value without the sign before it."""
    maker = trace.makers.get(value.id)
    return maker.inputs[0] if maker is not None and maker.name == "neg" else value


def turned_pairs(trace: Trace, minus: Call) -> list[Call]:
    """`a cos - b sin` and `a sin + b cos`, of two parts of one tensor."""
    first = products_in(trace, minus)
    if not first:
        return []
    factors = {trace.root(one).id for product in first for one in product.inputs}
    for plus in (one for one in trace.calls if minus.index < one.index < minus.index + 40):
        second = products_in(trace, plus) if plus.name == "add" else []
        if (
            second
            and len(factors) == 3
            and factors == {trace.root(one).id for product in second for one in product.inputs}
        ):
            kept = [
                user
                for call in (minus, plus)
                for user in trace.users[call.outputs[0].id]
                if user.name in ("stack", "cat", "setitem")
            ]
            return [*first, minus, *second, plus, *kept]
    return []


def products_in(trace: Trace, call: Call) -> list[Call]:
    """The two products that a sum or a difference is of."""
    makers = [trace.makers.get(one.id) for one in call.inputs]
    return (
        [maker for maker in makers if maker]
        if len(makers) == 2 and all(maker and maker.name == "mul" and len(maker.inputs) == 2 for maker in makers)
        else []
    )
