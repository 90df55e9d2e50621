"""Memory that is copied, made or kept without need."""

from collections.abc import Iterator

import torch
import torch.nn.functional as F

from ..calls import Call, Value
from ..findings import Finding, in_order, size
from ..graphs import Captured
from ..lines import Line
from ..names import CASTS, PASSED, POINTWISE, PRODUCTS, REDUCTIONS, VIEWS, words
from ..rewrites import Rewrite, as_it_is, broadcast, distances, rewrite
from ..trace import Trace
from .attention import of_activations
from .constants import from_sizes
from .decoding import decodings


def layout_copies(trace: Trace, captured: Captured) -> Iterator[Finding]:
    """Copies that only change how a tensor lies in memory, though what follows takes any layout."""
    takes_any = PRODUCTS | POINTWISE | REDUCTIONS | {"scaled_dot_product_attention", "softmax"}
    for call in trace.calls:
        if call.name not in ("contiguous", "clone") or not call.kernels or call.out is None or call.inside:
            continue
        users = trace.past(call.out, {"to", "transpose", "T", "mT", "t", "permute"})
        if users and all(user.name in takes_any and not user.writes for user in users):
            names = ", ".join(dict.fromkeys(user.name for user in users))
            yield Finding(
                "copy",
                "A copy that only changes the layout",
                (call.line,),
                f"{call.name} copies {size(call.out.bytes)}; what follows ({names}) takes any strides",
                f"leave out {call.name}()",
                "compiler/fusion.md#layout",
                saves=call.moved,
                kernels=1,
                rewrites=rewrite(trace, call, call.inputs[:1], as_it_is),
            )


def repeats(trace: Trace, captured: Captured) -> Iterator[Finding]:
    """Copies of the same numbers, where broadcasting or a flag would do."""
    for call in trace.calls:
        if call.out is None or not call.kernels or not call.inputs or "compile" in call.inside:
            continue
        source = call.inputs[0] if call.name in ("repeat", "tile", "repeat_interleave") else narrow(trace, call)
        if source is None or call.out.numel < 2 * source.numel or source.origin == "parameter":
            continue
        users = trace.past(call.out, VIEWS - {"clone", "contiguous"})
        attention = [user for user in users if user.name == "scaled_dot_product_attention"]
        copies = {one.id for one in call.outputs} | {
            one.id for user in attention for one in user.inputs[1:3] if trace.root(one).id == trace.root(call.out).id
        }
        heads = bool(attention) and all({one.id for one in user.inputs[1:3]} & copies for user in attention)
        if attention and heads and call.name in ("repeat", "tile"):
            continue  # they order the heads in another way than enable_gqa does
        if not heads and call.name in ("repeat", "tile", "repeat_interleave") and not expands(source, call.out):
            yield from of_masks(trace, call, source, users)
            continue  # one dimension holds the numbers several times
        if users and all(user.name in PRODUCTS | POINTWISE | {"scaled_dot_product_attention"} for user in users):
            yield Finding(
                "copy",
                "The same numbers are copied several times",
                (call.line,),
                f"{call.name} makes {size(call.out.bytes)} of {size(source.bytes)}",
                grouped(call.out) if heads else "let broadcasting do it: expand copies nothing",
                "patterns/attention-choose.md#grouped" if heads else "compiler/fusion.md#layout",
                saves=call.moved,
                kernels=1,
                rewrites=() if heads else rewrite(trace, call, [source], broadcast(call.out.shape)),
            )


LARGE = 2**20  # bytes of a repeated mask that are worth a finding


def of_masks(trace: Trace, call: Call, source: Value, users: list[Call]) -> Iterator[Finding]:
    """A mask, or a bias, that does not depend on data, and is copied for each example along one dimension."""
    maker, copied = trace.made_by(source), trace.root(call.outputs[0]).id
    root = trace.root(source).id
    fixed = source.origin == "buffer" or (maker is not None and from_sizes(trace, [maker]))
    fixed &= not (maker is not None and maker.writes)
    fixed &= not any(other.writes and other.inputs and trace.root(other.inputs[0]).id == root for other in trace.calls)
    attends = [user for user in users if user.name == "scaled_dot_product_attention"]
    masks = [user for user in attends if copied in {trace.root(one).id for one in user.inputs[3:]}]
    hides = [user for user in users if user.name in HIDES and user.out is not None and user.out.numel > source.numel]
    behind = "behind that of the rows" if call.name == "repeat_interleave" else "before that of the rows"
    if fixed and call.outputs[0].bytes >= LARGE and users and len(masks) + len(hides) == len(users):
        yield Finding(
            "copy",
            "A mask is copied for each example",
            (call.line,),
            f"{call.name} makes {size(call.outputs[0].bytes)} of {size(source.bytes)}, the same at each call",
            "keep the copies in a buffer, for each size of the batch"
            if masks
            else f"view the other side with a dimension of its own for the copies, {behind}, and let the mask "
            "broadcast over it",
            "compiler/fusion.md#layout",
            saves=call.moved,
            kernels=1,
        )


HIDES = words("masked_fill where add mul")


def grouped(keys: Value) -> str:
    """How attention reads keys that several heads share, and in which dtypes fused kernels do."""
    flag = "give scaled_dot_product_attention enable_gqa=True"
    if keys.dtype in (torch.bfloat16, torch.float16):
        return flag
    return f"in bf16 or fp16, {flag}; in fp32 on CUDA keep the copies: with the flag, torch 2.11 has no fused kernel"


def expands(source: Value, result: Value) -> bool:
    """Whether `expand` makes this shape: each dimension stays, was 1, or is new."""
    pairs = zip(reversed(source.shape), reversed(result.shape), strict=False)
    return all(length in (1, wanted) for length, wanted in pairs)


def narrow(trace: Trace, call: Call) -> Value | None:
    """What was expanded before a call copies it; None if nothing was, or the call copies nothing."""
    maker = trace.makers.get(call.inputs[0].id) if call.name in ("reshape", "contiguous", "flatten", "clone") else None
    while maker is not None and maker.name in VIEWS:
        if maker.name in ("expand", "broadcast_to"):
            return maker.inputs[0]
        maker = trace.makers.get(maker.inputs[0].id)
    return None


def outsized(trace: Trace, captured: Captured) -> Iterator[Finding]:
    """Temporaries that are far larger than what they are made of and what comes of them."""
    for call in trace.calls:
        if call.name not in POINTWISE | PAIRED or call.out is None or len(call.inputs) < 2 or "compile" in call.inside:
            continue
        made = max((call.out, *call.inputs), key=lambda one: one.numel)
        copies = [maker for one in call.inputs for maker in copied(trace, one)]
        sources = [trace.root(copied(trace, one)[-1].inputs[0] if copied(trace, one) else one) for one in call.inputs]
        if made.numel < 8 * max(one.numel for one in sources) or made.bytes < 2**16:
            continue
        users = trace.past(call.out, POINTWISE | CASTS)
        reduced = [call] if call.name == REDUCES else [user for user in users if user.name in REDUCTIONS]
        wide = call.name == REDUCES or call.out.numel == made.numel
        paired = call.name in PAIRED or (call.name == "mul" and reduced and sums_products(trace, call, reduced[0]))
        if reduced and wide and paired:
            path = [*copies, call, *trace.between(call, reduced[0]), reduced[0]]
            yield Finding(
                "temporary",
                "A temporary far larger than its inputs, made to be reduced",
                in_order(path, call),
                f"{(copies or [call])[0].name} makes {size(made.bytes)} of "
                f"{size(sum(one.bytes for one in sources))}, and {reduced[0].name} sums it up",
                "write it as a matrix product"
                if call.name == "mul"
                else f"for distances of all pairs, torch.cdist(...{', p=1' if call.name == 'l1_loss' else ''}, "
                "compute_mode='donot_use_mm_for_euclid_dist'): without the mode, small distances are wrong",
                "compiler/fusion.md#rows",
                saves=2 * made.bytes + sum(copy.moved for copy in copies),
                kernels=1 + len(copies),
                rewrites=as_distances(trace, call, reduced[0]) if not copies else (),
            )


REDUCES = "pairwise_distance"
PAIRED = words("sub mse_loss l1_loss pairwise_distance")
COPIES = words("repeat tile repeat_interleave")


def copied(trace: Trace, value: Value) -> list[Call]:
    """The calls that made of a few numbers the many of a value, by copies; the last comes first."""
    found = []
    while (maker := trace.made_by(value)) is not None and maker.name in COPIES:
        found.append(maker)
        value = maker.inputs[0]
    return found


def similarities(trace: Trace, captured: Captured) -> Iterator[Finding]:
    """All pairs by a similarity that broadcasts both sides."""
    for call in trace.eager:
        if call.name != "cosine_similarity" or call.out is None or len(call.inputs) < 2:
            continue
        width = max(one.shape[-1] for one in call.inputs)
        before = [copied(trace, one) for one in call.inputs]
        sources = [made[-1].inputs[0] if made else one for one, made in zip(call.inputs, before, strict=True)]
        if call.out.numel * width >= 8 * max(one.numel for one in sources):
            yield Finding(
                "temporary",
                "A temporary far larger than its inputs, made to be reduced",
                (call.line,),
                f"cosine_similarity makes all pairs, {call.out.numel} of width {width}, several times",
                "F.normalize both sides, and one matrix product",
                "compiler/fusion.md#rows",
                saves=2 * call.out.bytes * width,
                kernels=1,
            )


def sums_products(trace: Trace, call: Call, reduced: Call) -> bool:
    """Whether a sum is taken of products and nothing else, as a matrix product does."""
    return reduced.name in ("sum", "mean") and all(
        one.name in PASSED | {"mul", "div"} for one in trace.between(call, reduced)
    )


def as_distances(trace: Trace, call: Call, reduced: Call) -> tuple[Rewrite, ...]:
    """A matrix product or `cdist`, to be tried: where the last dimension is reduced, and powers are plain."""
    steps = [one for one in trace.between(call, reduced) if one.name not in PASSED]
    dims = {*reduced.arguments[1:2], reduced.named.get("dim")}
    kinds = ["square" if one.name == "pow" and 2 in one.arguments else one.name for one in steps]
    kind = "product" if call.name == "mul" and not kinds else kinds[0] if len(kinds) == 1 else ""
    if kind not in POWERS or reduced.name != "sum" or not {-1, (-1,)} & dims or len(call.inputs) != 2:
        return ()
    return rewrite(trace, reduced, call.inputs, distances(kind))


POWERS = ("product", "square", "abs")


def one_hot_products(trace: Trace, captured: Captured) -> Iterator[Finding]:
    """A product with a matrix of zeros and ones, where a look-up would do."""
    for call in trace.calls:
        if call.name == "one_hot" and call.out is not None:
            products = [user for user in trace.past(call.out, PASSED | {"mul"}) if user.name in PRODUCTS]
            sends = any(one.name == "mul" for one in trace.between(call, products[0])) if products else False
            looks_up = () if sends or not products else as_look_up(trace, call, products)
            if products:
                yield Finding(
                    "temporary",
                    "A look-up written as a product",
                    in_order([call, *products], call),
                    f"one_hot makes {size(call.out.bytes)}, almost all zeros",
                    "send rows to their places with index_copy, and fetch them with an index"
                    if sends
                    else "index the table: F.embedding(index, table)"
                    if looks_up
                    else "fetch what the ones select with an index",
                    "compiler/fusion.md#scatter",
                    saves=2 * call.out.bytes + products[0].moved,
                    kernels=2,
                    rewrites=looks_up,
                )


def as_look_up(trace: Trace, call: Call, products: list[Call]) -> tuple[Rewrite, ...]:
    """The rows of the table, to be tried."""
    product = products[0]
    if len(products) > 1 or product.name not in ("matmul", "linear") or len(product.inputs) != 2:
        return ()
    turned = product.name == "linear"
    return rewrite(
        trace,
        product,
        [call.inputs[0], product.inputs[1]],
        lambda i, table: F.embedding(i, table.T if turned else table),
    )


def growing(trace: Trace, captured: Captured) -> Iterator[Finding]:
    """A tensor that grows by concatenation in a loop: each turn copies all that is there."""
    reported: set[Line] = {one.grows[0].line for one in decodings(trace)}
    for groups in trace.loops.values():
        for calls in groups:
            if calls[0].name != "cat" or calls[0].line in reported:
                continue
            made, links, ordered = set(), 0, False
            for call in calls:  # those of several layers alternate
                sources = [unordered(trace, value) for value in call.inputs]
                links += any(source.id in made for source, _ in sources)
                ordered = ordered or any(source.id in made and moved for source, moved in sources)
                made |= {value.id for value in call.outputs}
            longer = not ordered or calls[-1].outputs[0].numel > 2 * calls[0].outputs[0].numel
            if links >= 3 and longer:
                reported.add(calls[0].line)
                anew = any(user.name == "embedding" for user in trace.past(calls[0].outputs[0], PASSED))
                yield Finding(
                    "growing",
                    "A tensor grows by concatenation in a loop",
                    (calls[0].line,),
                    f"{len(calls)} copies of all that came before, {size(sum(call.moved for call in calls))} in all",
                    "each turn runs the model over all of it: where attention is causal, keep keys and values in a "
                    "static cache, and run the new token alone"
                    if anew
                    else "write into a tensor of the final size, as a static cache does, and bring its rows into order "
                    "with index_select"
                    if ordered
                    else "write into a tensor of the final size, as a static cache does; if only the last is read, "
                    "collect the parts in a list and concatenate once",
                    "compiler/fusion.md#layout",
                    saves=sum(call.moved for call in calls[:-1]),
                    kernels=len(calls) - 1,
                )


ORDERS = words("index index_select gather take_along_dim repeat_interleave")


def unordered(trace: Trace, value: Value) -> tuple[Value, bool]:
    """What a value is a view, a cast or a choice of rows of, and whether rows were chosen."""
    chosen = False
    value = trace.root(value)
    while (maker := trace.makers.get(value.id)) is not None and maker.name in ORDERS and maker.inputs:
        value, chosen = trace.root(maker.inputs[0]), True
    return value, chosen


def cached(trace: Trace, captured: Captured) -> Iterator[Finding]:
    """Keys or values that an earlier call gave, with those of this call behind them: a cache that grows."""
    for call in trace.eager:
        if call.name != "cat" or len(call.inputs) != 2 or call.out is None:
            continue
        old, new = call.inputs
        past = old.origin in ("input", "found", "buffer") and new.origin == "made"
        longer = sum(a != b for a, b in zip(old.shape, new.shape, strict=False)) <= 1 and old.numel >= new.numel
        users = trace.past(call.out, PASSED | {"expand", "repeat_interleave"})
        read = [one for one in users if one.name == "scaled_dot_product_attention" or of_activations(one)]
        as_key = any(trace.root(one).id == trace.root(call.out).id for user in read for one in user.inputs[1:3])
        if past and longer and as_key and weighed(trace, new):
            yield Finding(
                "growing",
                "A cache of keys and values grows by concatenation",
                (call.line,),
                f"each call copies all that came before, {size(call.moved)} here, and gives another size to compile",
                "write into a static cache, of the final length (index_copy_), and mask what is not written yet",
                "compiler/fusion.md#layout",
                saves=call.moved,
                kernels=1,
            )


def weighed(trace: Trace, value: Value) -> bool:
    """Whether a value comes from a projection, past views and pointwise work such as rotary embeddings."""
    todo, seen = [value.id], set()
    while todo and len(seen) < 30:
        maker = trace.makers.get(todo.pop())
        if maker is None or maker.index in seen:
            continue
        seen.add(maker.index)
        if any(one.origin == "parameter" and len(one.shape) >= 2 for one in maker.inputs):
            return True
        if maker.name in PASSED | POINTWISE | REDUCTIONS | {"cat", "stack", "rms_norm", "layer_norm"}:
            todo += [one.id for one in maker.inputs]
    return False


LEAK = "What is kept grows with each call"


def kept_graphs(trace: Trace, captured: Captured) -> Iterator[Finding]:
    """Results that the module stores with their graph: every activation behind them stays in memory."""
    for leak in trace.leaks:
        graphs = ", and their graph, so that all activations behind them stay, too" if leak.graph else ""
        yield Finding(
            "kept-graph",
            LEAK,
            leak.lines,
            f"the {leak.kind} {leak.name} has {leak.count} more tensor{'s' * (leak.count > 1)} after each call: "
            f"{size(leak.bytes)}{graphs}",
            "see that what empties it runs after each step"
            if leak.emptied
            else "empty it in each step, or keep the last one alone, detached; take a hook off that nobody needs: "
            "handle.remove()",
            "validation/memory.md#alive",
            saves=leak.bytes + leak.graph * sum(kept.bytes for kept in trace.saved),
            weight="note" if leak.emptied else "finding",
        )
    told = {line for leak in trace.leaks for line in leak.lines}
    for line in (one for one in trace.held if one not in told):
        yield Finding(
            "kept-graph",
            "The module stores a result with its graph",
            (line,),
            "the tensor still has a grad_fn after the call: all activations that it depends on stay in memory",
            "store x.detach(); return what a loss still needs, or set it anew in each call",
            "compiler/graph-breaks.md#hooks",
            saves=sum(kept.bytes for kept in trace.saved),
        )


def saved_activations(trace: Trace, captured: Captured) -> Iterator[Finding]:
    """The lines whose results take the most memory until backward: worth knowing, no fault."""
    by_line: dict[Line, list] = {}
    for kept in trace.saved:
        by_line.setdefault(kept.line, []).append(kept)
    total = sum(kept.bytes for kept in trace.saved)
    for line, kept in sorted(by_line.items(), key=lambda item: -sum(one.bytes for one in item[1]))[:5]:
        held = sum(one.bytes for one in kept)
        if 10 * held >= total:
            largest = kept[0]
            shape = "×".join(map(str, largest.shape))
            yield Finding(
                "saved",
                "Kept for backward",
                (line,),
                f"{size(held)} of {size(total)} in {len(kept)} tensors; the largest is {shape} "
                f"{str(largest.dtype)[6:]}, by {largest.made_by}",
                "recompute it in backward: torch.utils.checkpoint around the part that makes it",
                "compiler/what-compile-does.md#aotautograd-backward-too-in-fewer-kinds-of-operation",
                weight="note",
            )
