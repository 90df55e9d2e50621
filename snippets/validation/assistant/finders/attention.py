"""Attention in whichever spelling: product, softmax, product; its masks and its projections."""

from collections import Counter
from collections.abc import Iterator

from ..calls import Call, Value
from ..findings import Finding, in_order, size
from ..graphs import Captured
from ..lines import Line
from ..names import NORMS, PASSED, POINTWISE, REDUCTIONS
from ..rewrites import Rewrite, attention, rewrite
from ..trace import Trace

ATTENTION = "patterns/attention.md"
SDPA = ("scaled_dot_product_attention", "multi_head_attention_forward", "flex_attention")


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
    for softmax in trace.eager:
        if softmax.name == "multi_head_attention_forward":
            yield from weights_wanted(softmax)
        if not (softmax.name == "softmax" and softmax.inputs) and not softmax_by_hand(trace, softmax):
            continue
        scores = scores_of(trace, softmax)
        weighted = [user for user in trace.past(softmax.outputs[0], POINTWISE | PASSED) if of_activations(user)]
        if scores is None or not weighted or weights_read(trace, softmax, weighted):
            continue
        path = [scores, *trace.between(scores, weighted[0]), weighted[0]]
        matrix = softmax.outputs[0]
        yield Finding(
            "attention",
            "Attention written out",
            in_order(path, scores),
            f"the matrix of scores, {size(matrix.bytes)}, is written and read by "
            f"{sum(call.kernels for call in path)} kernels",
            f"{as_one_call(trace, scores, softmax, weighted[0])}: it never stores the matrix",
            f"{ATTENTION}#never-the-whole-square",
            saves=sum(call.moved for call in path[1:-1]) + 2 * matrix.bytes,
            kernels=sum(call.kernels for call in path) - 1,
            rewrites=as_rewrite(trace, scores, softmax, weighted[0]),
        )


def weights_read(trace: Trace, softmax: Call, weighted: list[Call]) -> bool:
    """Whether anything but the second product reads the weights: then they have to be made."""
    users = trace.past(softmax.outputs[0], POINTWISE | PASSED)
    steps = [softmax, *trace.between(softmax, weighted[0])]
    returned = any(value.id in trace.returned for step in steps for value in step.outputs)
    return returned or any(user not in weighted and not user.writes for user in users)


def as_rewrite(trace: Trace, scores: Call, softmax: Call, weighted: Call) -> tuple[Rewrite, ...]:
    """The same, to be tried: of plain products, a scale before the masks, and no dropout."""
    if not {scores.name, weighted.name} <= {"matmul", "bmm"} or len(weighted.inputs) != 2:
        return ()
    scale, masks, given = 1.0, [], []
    for call in trace.between(scores, softmax):
        number = next((one for one in call.arguments if type(one) in (int, float)), None)
        if call.name in ("mul", "div") and number and len(call.inputs) == 1 and not masks:
            scale *= number if call.name == "mul" else 1 / number
        elif call.name == "add" and len(call.inputs) == 2:
            masks.append("add")
            made = {value.id for one in (scores, *trace.between(scores, call)) for value in one.outputs}
            given += [one for one in call.inputs if one.id not in made]
        elif call.name == "masked_fill" and len(call.inputs) == 2 and number is not None and number < -1e3:
            masks.append("hide")
            given.append(call.inputs[1])
        elif call.name not in PASSED and call not in softmax_by_hand(trace, softmax):
            return ()
    if any(call.name not in PASSED for call in trace.between(softmax, weighted)):
        return ()
    operands = [*scores.inputs[:2], weighted.inputs[1], *given]
    return rewrite(trace, weighted, operands, attention(scale, masks))


def as_one_call(trace: Trace, scores: Call, softmax: Call, weighted: Call) -> str:
    """The call that keeps the scale, the mask or bias, and the dropout of an attention that is written out."""
    if scores.name == "baddbmm":
        return "F.scaled_dot_product_attention(q, k, v, attn_mask=the bias, scale=alpha)"
    given, scale = [], 1.0
    for call in trace.between(scores, softmax):
        number = next((one for one in call.arguments if type(one) in (int, float)), None)
        if call.name in ("mul", "div") and number and len(call.inputs) == 1:
            scale *= number if call.name == "mul" else 1 / number
        elif call.name in ("mul", "div"):
            given.append(f"q scaled by the tensor of line {call.line.number}")
        elif call.name in ("add", "sub") and len(call.inputs) == 2:
            given.append("attn_mask=what is added")
        elif call.name in ("masked_fill", "where"):
            given.append("attn_mask=the mask, True where a score counts")
    if abs(scale * scores.inputs[0].shape[-1] ** 0.5 - 1) > 1e-3:
        given.append(f"scale={scale:.6g}")
    given += ["dropout_p=…" for call in trace.between(softmax, weighted) if call.name == "dropout"]
    return f"F.scaled_dot_product_attention({', '.join(['q, k, v', *dict.fromkeys(given)])})"


def weights_wanted(call: Call) -> Iterator[Finding]:
    """nn.MultiheadAttention gives the weights back unless it is told not to, and has to make them for that."""
    if any("softmax" in op.name for op in call.forward) and call.named.get("need_weights"):
        yield Finding(
            "attention",
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


def softmax_by_hand(trace: Trace, call: Call) -> list[Call]:
    """The steps before a division of exponentials by their sum; none where a call is no such division."""
    if call.name != "div" or len(call.inputs) != 2:
        return []
    above, below = (trace.made_by(one) for one in call.inputs)
    if above is None or below is None or above.name != "exp" or below.name != "sum":
        return []
    if trace.made_by(below.inputs[0]) is not above:
        return []
    before = trace.made_by(above.inputs[0])
    return [*([before] if before is not None and before.name == "sub" else []), above, below]


def causal_masks(trace: Trace, captured: Captured) -> Iterator[Finding]:
    """A mask given as data that says no more than a flag: with the flag, attention skips half of its work."""
    flagged: dict[Line, list[Call]] = {}
    for call in trace.eager:
        if call.name in SDPA and call.facts.get("causal") and not call.facts.get("mask"):
            flagged.setdefault(call.line, []).append(call)
        if (
            call.name in SDPA[:2]
            and call.facts.get("mask") == "causal"
            and (call.name == SDPA[0] or not call.facts["causal"])
        ):
            masks = [
                maker for one in call.inputs[3:] if (maker := trace.made_by(one)) is not None and call.name == SDPA[0]
            ]
            yield mask_finding(
                "A causal mask given as data",
                in_order([call, *masks[:1]], call),
                [call],
                "each number of the mask says what is_causal=True says, and attention computes the hidden half, too",
                "leave the mask out and say is_causal=True",
            )
        elif call.name == SDPA[0] and call.facts.get("mask") == "band":
            yield mask_finding(
                "A mask of which each row sees a short run",
                (call.line,),
                [call, call],
                "attention computes the whole square, and the mask hides most of it",
                "flex_attention, compiled, with a block mask; or attend in blocks",
                page="patterns/attention-choose.md#window",
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
    return Finding("mask", title, lines, evidence, change, page, saves=half // 200, kernels=1, weight=weight)


def separate_projections(trace: Trace, captured: Captured) -> Iterator[Finding]:
    """Three projections of one input, all of one attention: several layers may read the same states."""
    by_input: dict[int, list[Call]] = {}
    for call in trace.eager:
        if weight_of(call) is not None:
            by_input.setdefault(trace.root(data_of(call)).id, []).append(call)
    for calls in by_input.values():
        weights = {trace.root(weight).id for call in calls if (weight := weight_of(call))}
        met = Counter(user for call in calls if len(weights) >= 3 for user in attentions_of(trace, call))
        if any(many >= (3 if name in SDPA else 2) for (_, name), many in met.items()):
            read = data_of(calls[0]).bytes
            yield Finding(
                "projections",
                "Separate projections of one input",
                in_order(calls),
                f"{len(calls)} products read the same {size(read)}",
                "one product with the weights stacked, then split the result",
                f"{ATTENTION}#one-projection",
                saves=(len(calls) - 1) * read,
                kernels=len(calls) - 1,
            )


def attentions_of(trace: Trace, call: Call) -> set[tuple[int, str]]:
    """The attentions that a projection's result becomes a part of before it meets another weight."""
    through = POINTWISE | PASSED | NORMS | REDUCTIONS | {"cat", "stack", "rms_norm"}
    users = trace.past(call.outputs[0], through)
    return {(user.index, user.name) for user in users if user.name in SDPA or of_activations(user)}
