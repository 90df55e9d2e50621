"""What eager runs as many kernels and one would do: patterns that a fused operation or a kernel of this site replaces.

A pattern is a way through the graph of calls, in which views and casts are passed over. Each function finds one kind.
"""

from collections.abc import Iterator

from snippets.validation.assistant_capture import Captured
from snippets.validation.assistant_findings import (
    NORMS,
    POINTWISE,
    REDUCTIONS,
    Finding,
    between,
    in_order,
    past,
    root,
    size,
)
from snippets.validation.assistant_trace import CASTS, VIEWS, Call, Line, Trace, Value, words

ATTENTION = "patterns/attention.md"
SDPA = ("scaled_dot_product_attention", "multi_head_attention_forward", "flex_attention")
PASSED = VIEWS | CASTS
CHAIN = 3  # kernels in a row are worth a note, and more a finding: two or three are in every model
WORTH = 2.5  # times the bytes of one kernel, or more, that a chain moves which is a finding


def eager(trace: Trace) -> list[Call]:
    """The calls that nobody has compiled yet."""
    return [call for call in trace.calls if "compile" not in call.inside]


def made_by(trace: Trace, value: Value) -> Call | None:
    """The call that computed a value, through views and casts."""
    return trace.makers.get(root(trace, value).id)


def of_activations(call: Call) -> bool:
    """Whether a product multiplies two results, and no weight."""
    data = [one for one in call.inputs if one.origin not in ("parameter", "buffer")]
    return (
        call.name in ("matmul", "bmm", "einsum", "baddbmm", "linear")
        and len(call.inputs) >= 2
        and len(data) >= 2
        and call.inputs[1].origin not in ("parameter", "buffer")
    )


def weight_of(call: Call) -> Value | None:
    """The matrix of a projection."""
    weights = [one for one in call.inputs if one.origin == "parameter" and len(one.shape) >= 2]
    return weights[0] if call.name in ("linear", "matmul", "addmm", "einsum") and weights else None


def data_of(call: Call) -> Value:
    """What a projection is taken of."""
    return next((one for one in call.inputs if one.origin != "parameter"), call.inputs[0])


def explicit_attention(trace: Trace, captured: Captured) -> Iterator[Finding]:
    """Product, softmax, product: the matrix of scores goes through memory several times."""
    for softmax in eager(trace):
        if softmax.name == "multi_head_attention_forward":
            yield from weights_wanted(softmax)
        if not (softmax.name == "softmax" and softmax.inputs) and not softmax_by_hand(trace, softmax):
            continue
        scores = scores_of(trace, softmax)
        weighted = [user for user in past(trace, softmax.outputs[0], POINTWISE | PASSED) if of_activations(user)]
        if scores is None or not weighted:
            continue
        path = [scores, *between(trace, scores, weighted[0]), weighted[0]]
        matrix = softmax.outputs[0]
        yield Finding(
            "attention",
            "fusion",
            "Attention written out",
            in_order(path, scores),
            f"the matrix of scores, {size(matrix.bytes)}, is written and read by "
            f"{sum(call.kernels for call in path)} kernels",
            "F.scaled_dot_product_attention(q, k, v): it never stores the matrix",
            f"{ATTENTION}#never-the-whole-square",
            saves=sum(call.moved for call in path[1:-1]) + 2 * matrix.bytes,
            kernels=sum(call.kernels for call in path) - 1,
        )


def weights_wanted(call: Call) -> Iterator[Finding]:
    """nn.MultiheadAttention gives the weights back unless it is told not to, and has to make them for that."""
    if any("softmax" in op.name for op in call.forward) and call.named.get("need_weights"):
        yield Finding(
            "attention",
            "fusion",
            "Attention that makes its weights, since need_weights is true",
            (call.line,),
            f"{sum(op.runs for op in call.forward)} kernels, {size(call.moved)} moved",
            "call it with need_weights=False",
            f"{ATTENTION}#one-kernel",
            saves=call.moved // 2,
            kernels=3,
        )


# --8<-- [start:scores]
def scores_of(trace: Trace, softmax: Call) -> Call | None:
    """The product that a softmax is taken of, past scaling, masks and casts."""
    numel, todo, seen = softmax.inputs[0].numel, [softmax.inputs[0]], set()
    while todo:
        maker = trace.makers.get(todo.pop().id)
        if maker is None or maker.index in seen:
            continue
        seen.add(maker.index)
        if of_activations(maker):
            return maker
        if maker.name in POINTWISE | PASSED:
            todo += [one for one in maker.inputs if one.numel == numel]
    return None


# --8<-- [end:scores]


def causal_masks(trace: Trace, captured: Captured) -> Iterator[Finding]:
    """A mask given as data that says no more than a flag: with the flag, attention skips half of its work."""
    flagged: dict[Line, list[Call]] = {}
    for call in eager(trace):
        if call.name in SDPA and call.facts.get("causal") and not call.facts.get("mask"):
            flagged.setdefault(call.line, []).append(call)
        if (
            call.name in SDPA[:2]
            and call.facts.get("mask") == "causal"
            and (call.name == SDPA[0] or not call.facts["causal"])
        ):
            masks = [
                maker for one in call.inputs[3:] if (maker := made_by(trace, one)) is not None and call.name == SDPA[0]
            ]
            yield mask_finding(
                "A causal mask given as data",
                in_order([call, *masks[:1]], call),
                [call],
                "each number of the mask says what is_causal=True says, and attention computes the hidden half, too",
                "leave the mask out and say is_causal=True",
            )
        elif call.name == SDPA[0] and call.facts.get("mask") == "nothing":
            yield mask_finding(
                "A mask that hides nothing",
                (call.line,),
                [call],
                "every entry allows",
                "leave it out where nothing is padded",
                "note",
            )
    for mask in dict.fromkeys(captured.masks):
        if mask.kind == "causal" and mask.line in flagged:
            yield mask_finding(
                "Under torch.compile the flag is_causal is lost",
                (mask.line,),
                flagged[mask.line],
                "eager attention gets is_causal=True and no mask; the captured graph builds the mask as a "
                "tensor and passes it",
                "say is_causal=True where attention is called, whatever the library decides while it is traced",
                page="examples/llama.md#causal",
            )


def mask_finding(
    title: str,
    lines: tuple,
    calls: list[Call],
    evidence: str,
    change: str,
    weight: str = "finding",
    page: str = f"{ATTENTION}#one-kernel",
) -> Finding:
    half = sum(call.flops for call in calls) // 2
    return Finding(
        "mask",
        "kernels",
        title,
        lines,
        evidence,
        change,
        page,
        saves=half // 200,
        kernels=1,
        weight=weight,
    )


def separate_projections(trace: Trace, captured: Captured) -> Iterator[Finding]:
    """Three projections of one input that meet in an attention."""
    by_input: dict[int, list[Call]] = {}
    for call in eager(trace):
        if weight_of(call) is not None:
            by_input.setdefault(root(trace, data_of(call)).id, []).append(call)
    for calls in by_input.values():
        weights = {root(trace, weight).id for call in calls if (weight := weight_of(call))}
        to_attention = [call for call in calls if reaches_attention(trace, call)]
        if len(weights) >= 3 and len(to_attention) >= 2:
            read = data_of(calls[0]).bytes
            yield Finding(
                "projections",
                "fusion",
                "Separate projections of one input",
                in_order(calls),
                f"{len(calls)} products read the same {size(read)}",
                "one product with the weights stacked, then split the result",
                f"{ATTENTION}#one-projection",
                saves=(len(calls) - 1) * read,
                kernels=len(calls) - 1,
            )


def reaches_attention(trace: Trace, call: Call) -> bool:
    """Whether a projection's result becomes a part of an attention before it meets another weight."""
    through = POINTWISE | PASSED | NORMS | REDUCTIONS | {"cat", "stack", "rms_norm"}
    return any(user.name in SDPA or of_activations(user) for user in past(trace, call.outputs[0], through))


def gated(trace: Trace, captured: Captured) -> Iterator[Finding]:
    """A gate and its partner: two products of one input, an activation, and a multiplication."""
    for call in eager(trace):
        if call.name != "mul" or len(call.inputs) != 2:
            continue
        for gate, up in (call.inputs, call.inputs[::-1]):
            acted, lines = activation(trace, gate)
            one, other = (made_by(trace, acted) if acted else None), made_by(trace, up)
            if acted is None or one is None or other is None or weight_of(one) is None or weight_of(other) is None:
                continue
            if root(trace, data_of(one)).id != root(trace, data_of(other)).id:
                continue
            together = one is other
            path = [*lines, call] if together else [one, other, *lines, call]
            glu, rest = together and [each.name for each in lines] == ["sigmoid"], "kernels/swiglu.py"
            yield Finding(
                "gated-mlp",
                "fusion",
                "A gated MLP in parts",
                in_order(path),
                f"{sum(each.kernels for each in path)} kernels; the activation and the gate move "
                f"{size(sum(each.moved for each in [*lines, call]))}",
                "F.glu" if glu else rest if together else f"stack the two weights, and take {rest} for the rest",
                "kernels/swiglu.md",
                saves=2 * acted.bytes + (0 if together else one.inputs[0].bytes),
                kernels=len(path) - 2,
                weight="note" if together and len(lines) == 1 and not glu else "finding",
            )
            break


def activation(trace: Trace, value: Value) -> tuple[Value | None, list[Call]]:
    """What an activation was taken of, and the calls that took it."""
    call = made_by(trace, value)
    if call is None:
        return None, []
    if call.name in ("silu", "gelu", "sigmoid", "relu", "tanh", "mish", "elu"):
        return call.inputs[0], [call]
    if call.name == "mul" and len(call.inputs) == 2:  # x * sigmoid(x)
        for x, gate in (call.inputs, call.inputs[::-1]):
            maker = made_by(trace, gate)
            if maker is not None and maker.name == "sigmoid" and root(trace, maker.inputs[0]).id == root(trace, x).id:
                return x, [maker, call]
            inner = made_by(trace, maker.inputs[0]) if maker is not None and maker.name == "tanh" else None
            if (
                maker
                and inner is not None
                and inner.name == "softplus"
                and root(trace, inner.inputs[0]).id == root(trace, x).id
            ):
                return x, [inner, maker, call]
    return None, []


_SMALL_STEPS = words("add mul div clamp clamp_min maximum sqrt rsqrt pow reciprocal sub")


def written_out_norms(trace: Trace, captured: Captured) -> Iterator[Finding]:
    """A mean, a square and a root by which something is divided: RMSNorm, LayerNorm and their kin."""
    taken: set[int] = set()
    for call in eager(trace):
        if call.name not in ("mul", "div") or len(call.inputs) != 2 or call.index in taken:
            continue
        for x, scale in (call.inputs, call.inputs[::-1]):
            statistic = statistic_of(trace, scale)
            if statistic is None or scale.numel >= x.numel or (call.name == "div" and x is not call.inputs[0]):
                continue
            reduced, steps = statistic
            sources = {root(trace, one).id for one in origins(trace, reduced.inputs[0])}
            if not sources & {root(trace, one).id for one in origins(trace, x)}:
                continue
            path = [*squared(trace, reduced), reduced, *steps, call, *affine(trace, call)]
            taken |= {each.index for each in path}
            whole = call.outputs[0].bytes
            means = any(each.name == "sub" for each in path) or reduced.name in ("var", "std", "var_mean", "std_mean")
            which, change, page = norm_named(means, reduced)
            yield Finding(
                "norm",
                "fusion",
                f"{which} written out",
                in_order(path),
                f"{sum(each.kernels for each in path)} kernels move {size(sum(each.moved for each in path))}; "
                f"one would move {size(2 * whole)}",
                change,
                page,
                saves=max(0, sum(each.moved for each in path) - 2 * whole),
                kernels=sum(each.kernels for each in path) - 1,
            )
            break


def norm_named(means: bool, reduced: Call) -> tuple[str, str, str]:
    """Which norm it is, what does it in one kernel, and the page."""
    rows = reduced.outputs[0].shape[-1:] == (1,) or reduced.outputs[0].shape == reduced.inputs[0].shape[:-1]
    if not rows:
        return "A norm", "F.group_norm or F.batch_norm where one fits; torch.compile else", "compiler/fusion.md#columns"
    if means:
        return "LayerNorm", "F.layer_norm, or kernels/layer_norm.py", "kernels/layer-norm.md"
    return "RMSNorm", "F.rms_norm, or kernels/rms_norm.py", "kernels/rms-norm.md"


def statistic_of(trace: Trace, value: Value) -> tuple[Call, list[Call]] | None:
    """The reduction that a number per row comes from, and the steps after it; at least a root or a norm among them."""
    steps, rooted = [], False
    for _ in range(8):
        call = made_by(trace, value)
        if call is None or not call.inputs:
            return None
        rooted |= call.name in ("sqrt", "rsqrt", "norm", "std", "std_mean") or (
            call.name == "pow" and any(one in (0.5, -0.5) for one in call.arguments)
        )
        if call.name in ("mean", "sum", "var", "std", "norm", "var_mean", "std_mean"):
            return (call, steps) if rooted else None
        if call.name not in _SMALL_STEPS:
            return None
        steps.append(call)
        value = max(call.inputs, key=lambda one: one.numel)
    return None


def origins(trace: Trace, value: Value) -> list[Value]:
    """A value, and what it is a square or a difference from a mean of."""
    found, todo = [], [value]
    while todo and len(found) < 12:
        one = todo.pop()
        found.append(one)
        call = made_by(trace, one)
        if call is not None and call.name in ("pow", "square", "mul", "sub", "abs", "var", "std", "add"):
            todo += [each for each in call.inputs if each.numel == one.numel]
    return found


def squared(trace: Trace, reduced: Call) -> list[Call]:
    """The square before a mean, and the difference from another mean before that."""
    call, found = made_by(trace, reduced.inputs[0]), []
    for _ in range(3):
        if call is None or call.name not in ("pow", "square", "mul", "sub", "abs"):
            break
        found.append(call)
        if call.name == "sub":
            found += [
                maker for one in call.inputs[1:] if (maker := made_by(trace, one)) is not None and maker.name == "mean"
            ]
        call = made_by(trace, call.inputs[0])
    return found


def affine(trace: Trace, call: Call) -> list[Call]:
    """The weight and the bias after a norm."""
    found = []
    for _ in range(2):
        users = [user for user in past(trace, call.outputs[0], PASSED) if user.name in ("mul", "add")]
        if len(users) != 1 or not any(one.origin == "parameter" for one in users[0].inputs):
            break
        call = users[0]
        found.append(call)
    return found


def norm_and_activation(trace: Trace, captured: Captured) -> Iterator[Finding]:
    """A norm whose result goes into an activation and nowhere else."""
    for call in eager(trace):
        if call.name not in ("layer_norm", "rms_norm", "group_norm") or call.out is None:
            continue
        users = past(trace, call.out, PASSED)
        if len(users) == 1 and users[0].name in ("gelu", "silu", "relu"):
            known = call.name == "layer_norm" and users[0].name == "gelu"
            yield Finding(
                "norm-activation",
                "fusion",
                f"{call.name} and {users[0].name} in two kernels",
                in_order([call, users[0]]),
                f"{size(call.out.bytes)} are written and read between them",
                "kernels/layer_norm_gelu.py" if known else "torch.compile makes one kernel of them",
                "kernels/layer-norm-gelu.md",
                saves=2 * call.out.bytes,
                kernels=1,
                weight="note" if call.name == "group_norm" else "finding",
            )


def dropout_after_softmax(trace: Trace, captured: Captured) -> Iterator[Finding]:
    """Softmax and dropout in two kernels, where no attention explains them."""
    for call in eager(trace):
        if call.name != "softmax" or call.out is None:
            continue
        users = past(trace, call.out, PASSED)
        active = [user for user in users if user.name == "dropout" and any(op.runs for op in user.forward)]
        if active and scores_of(trace, call) is None:
            yield Finding(
                "softmax-dropout",
                "fusion",
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
    for call in eager(trace):
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
        taken = root(trace, logits) if call.name == "logsumexp" else call.outputs[0]
        users = past(trace, taken, PASSED | {"log", "clamp", "add", "neg"}) if call.name != "cross_entropy" else []
        users = [user for user in users if user.name in ("nll_loss", "gather", "index", "take_along_dim")]
        chosen = call.name == "cross_entropy" or bool(users)
        chunks = sum(other.line == call.line and other.name == call.name for other in trace.calls)
        if classes < VOCABULARY or not chosen or chunks >= 3:
            continue
        maker = made_by(trace, logits)
        losses = past(trace, call.outputs[0], PASSED | {"neg"}) if users else []
        lines = in_order([call, *([maker] if maker else []), *users[:1], *losses[:1]], call)
        yield Finding(
            "cross-entropy",
            "fusion",
            "Cross-entropy over a large vocabulary",
            lines,
            f"logits of {size(logits.bytes)} over {classes} classes, and as much again for their softmax and gradient",
            "kernels/cross_entropy.py, or the loss in chunks of rows",
            "kernels/cross-entropy.md",
            saves=4 * logits.bytes,
            kernels=3,
        )


def rotary(trace: Trace, captured: Captured) -> Iterator[Finding]:
    """Pairs of numbers turned by an angle, in halves, in pairs or as complex numbers."""
    for call in eager(trace):
        path: list[Call] = []
        if call.name in ("cat", "stack"):
            path = turned_halves(trace, call)
        elif call.name == "sub":
            path = turned_pairs(trace, call)
        elif call.name == "view_as_complex" and call.outputs and call.inputs[0].origin != "buffer":
            turned = [user for user in past(trace, call.outputs[0], VIEWS - {"view_as_real"}) if user.name == "mul"]
            back = (
                [user for user in past(trace, turned[0].outputs[0], ()) if user.name == "view_as_real"]
                if turned
                else []
            )
            path = [call, turned[0], back[0]] if back else []
        if path:
            whole = call.outputs[0].bytes
            yield Finding(
                "rotary",
                "fusion",
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
    if len(negated) != 1 or len({root(trace, maker_input(trace, one)).id for one in cat.inputs}) != 1:
        return []
    users = past(trace, cat.outputs[0], PASSED)
    sines, sums = ([user for user in users if user.name == name] for name in ("mul", "addcmul"))
    sums += [user for sine in sines for user in past(trace, sine.outputs[0], PASSED) if user.name in ("add", "addcmul")]
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
    factors = {root(trace, one).id for product in first for one in product.inputs}
    for plus in trace.calls[minus.index + 1 : minus.index + 40]:
        second = products_in(trace, plus) if plus.name == "add" else []
        if (
            second
            and len(factors) == 3
            and factors == {root(trace, one).id for product in second for one in product.inputs}
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


def written_out(trace: Trace, captured: Captured) -> Iterator[Finding]:
    """Functions that PyTorch has as one kernel, made of several: softmax, its logarithm, SiLU."""
    for call in eager(trace):
        if steps := softmax_by_hand(trace, call):
            yield rewritten([*steps, call], "Softmax", "F.softmax", "kernels/softmax.md")
        elif call.name == "log" and (maker := made_by(trace, call.inputs[0])) is not None and maker.name == "softmax":
            yield rewritten(
                [maker, call], "Log-softmax", "F.log_softmax, or F.cross_entropy for a loss", "kernels/cross-entropy.md"
            )
        elif call.name == "mul" and len(call.inputs) == 2:
            x, lines = activation(trace, call.outputs[0])
            if x is not None and len(lines) >= 2:
                name = "SiLU" if len(lines) == 2 else "Mish"
                yield rewritten(lines, name, f"F.{name.lower()}", "kernels/swiglu.md")


def softmax_by_hand(trace: Trace, call: Call) -> list[Call]:
    """The steps before a division of exponentials by their sum; none where a call is no such division."""
    if call.name != "div" or len(call.inputs) != 2:
        return []
    above, below = (made_by(trace, one) for one in call.inputs)
    if above is None or below is None or above.name != "exp" or below.name != "sum":
        return []
    if made_by(trace, below.inputs[0]) is not above:
        return []
    before = made_by(trace, above.inputs[0])
    return [*([before] if before is not None and before.name == "sub" else []), above, below]


def rewritten(path: list[Call], name: str, call: str, page: str) -> Finding:
    moved = sum(each.moved for each in path)
    return Finding(
        "written-out",
        "fusion",
        f"{name} written out",
        in_order(path),
        f"{sum(each.kernels for each in path)} kernels move {size(moved)}",
        call,
        page,
        saves=max(0, moved - 2 * path[-1].outputs[0].bytes),
        kernels=sum(each.kernels for each in path) - 1,
    )


def chains(trace: Trace, captured: Captured) -> Iterator[Finding]:
    """Pointwise operations in a row, each a kernel that reads what the one before wrote."""
    group_of: dict[int, list[Call]] = {}
    for call in eager(trace):
        if call.name not in POINTWISE or call.out is None or call.out.numel < 256 or not call.kernels:
            continue
        makers = [made_by(trace, one) for one in call.inputs if one.numel == call.out.numel]
        group = [call]
        for other in {id(one): one for maker in makers if maker and (one := group_of.get(maker.index))}.values():
            joined = sorted((*group, *other), key=lambda one: one.index)
            group = group if leaves_and_returns(trace, joined) else joined
        group_of |= {one.index: group for one in group}
    for group in {id(one): one for one in group_of.values()}.values():
        moved = sum(call.moved for call in group)
        inside = {value.id for call in group for value in call.outputs}
        least = sum(
            {
                root(trace, one).id: root(trace, one).bytes
                for call in group
                for one in call.inputs
                if root(trace, one).id not in inside
            }.values()
        )
        least += group[-1].outputs[0].bytes
        if len(group) >= CHAIN and moved > least:
            gelu = any(call.name == "erf" for call in group) or {"tanh", "pow"} <= {call.name for call in group}
            yield Finding(
                "chain",
                "fusion",
                "A chain of pointwise operations, each a kernel",
                in_order(group),
                f"{len(group)} kernels ({', '.join(dict.fromkeys(call.name for call in group))}) move "
                f"{size(moved)}; one would move {size(least)}",
                "F.gelu" if gelu else "torch.compile makes one kernel of them",
                "compiler/fusion.md#a-kernel-ends-where-a-value-is-not-there-yet",
                saves=moved - least,
                kernels=len(group) - 1,
                weight="finding" if len(group) > CHAIN and moved >= WORTH * least else "note",
            )


def leaves_and_returns(trace: Trace, group: list[Call]) -> bool:
    """Whether something outside of a group lies between two of its members: then no kernel can hold both."""
    members, first = {call.index for call in group}, group[0].index
    todo = [
        maker for call in group for one in call.inputs if (maker := made_by(trace, one)) and maker.index not in members
    ]
    seen: set[int] = set()
    while todo:
        call = todo.pop()
        if call.index < first or call.index in seen:
            continue
        seen.add(call.index)
        if call.index in members:
            return True
        todo += [maker for one in call.inputs if (maker := made_by(trace, one)) is not None]
    return False


PATTERNS = (
    explicit_attention,
    causal_masks,
    separate_projections,
    gated,
    written_out_norms,
    norm_and_activation,
    dropout_after_softmax,
    large_vocabulary,
    rotary,
    written_out,
    chains,
)


def without_explained(findings: list[Finding]) -> list[Finding]:
    """A chain, a copy or a temporary is not told again where a larger pattern already holds its lines."""
    larger = {
        line
        for one in findings
        if one.kind not in ("chain", "copy", "temporary", "saved", "written-out", "precision")
        and one.weight == "finding"
        for line in one.lines
    }
    gated_lines = {line for one in findings if one.kind == "gated-mlp" for line in one.lines}
    attention_lines = {line for one in findings if one.kind == "attention" for line in one.lines}
    rewritten_lines = {line for one in findings if one.kind == "written-out" for line in one.lines}

    def explained(one: Finding) -> bool:
        if one.kind == "chain" and set(one.lines) <= rewritten_lines:
            return True
        if one.kind == "written-out":
            return bool(set(one.lines) & (gated_lines | attention_lines))
        own = [line for line in one.lines if line not in larger]
        return (
            one.kind in ("chain", "temporary") and 2 * len(own) < len(one.lines) + 1 and bool(set(one.lines) & larger)
        )

    return [one for one in findings if not explained(one)]
