"""Norms that are written out, and norms whose result goes into an activation."""

from collections import Counter
from collections.abc import Iterator

from ..calls import Call, Value
from ..findings import Finding, in_order, size
from ..graphs import Captured
from ..names import PASSED, words
from ..rewrites import Rewrite, norm, rewrite
from ..trace import Trace

VARIANCES = words("var std var_mean std_mean")
SMALL = 2**12  # bytes: for fewer, two kernels are not worth a word
LEAST = 2**22  # bytes that a norm and its activation move, or more, for a finding
PART = 0.05  # of the bytes that the forward moves, for a norm and its activation that are a finding
SMALL_STEPS = words("add mul div clamp clamp_min maximum sqrt rsqrt pow reciprocal sub")


def written_out_norms(trace: Trace, captured: Captured) -> Iterator[Finding]:
    """A mean, a square and a root by which something is divided: RMSNorm, LayerNorm and their kin."""
    taken: set[int] = set()
    for call in trace.eager:
        if call.name not in ("mul", "div") or len(call.inputs) != 2 or call.index in taken:
            continue
        for x, scale in (call.inputs, call.inputs[::-1]):
            statistic = statistic_of(trace, scale)
            if statistic is None or not 1 < scale.numel < x.numel or (call.name == "div" and x is not call.inputs[0]):
                continue
            reduced, steps = statistic
            if reduced.name == "sum" and not any(divides_by_count(reduced, each) for each in steps):
                continue  # by a distance, or over the values that a mask counts: no norm of PyTorch's
            sources = {trace.root(one).id for one in origins(trace, reduced.inputs[0])}
            if not sources & {trace.root(one).id for one in origins(trace, x)}:
                continue
            path = [*squared(trace, reduced), reduced, *steps, call, *affine(trace, call)]
            taken |= {each.index for each in path}
            whole = call.outputs[0].bytes
            means = reduced.name in VARIANCES or any(less_mean(trace, each) for each in path)
            which, change, page = norm_named(means, reduced)
            other = which == "LayerNorm" and by_one_less(reduced) and not affine(trace, call)
            if other or read_again(trace, path):
                continue  # F.layer_norm divides by n, and keeps the mean and the deviation to itself
            yield Finding(
                "norm",
                f"{which} written out",
                in_order(path),
                f"{sum(each.kernels for each in path)} kernels move {size(sum(each.moved for each in path))}; "
                f"one would move {size(2 * whole)}",
                change,
                page,
                saves=max(0, sum(each.moved for each in path) - 2 * whole),
                kernels=sum(each.kernels for each in path) - 1,
                rewrites=as_norm(trace, x, means, reduced, steps, path),
            )
            break


def read_again(trace: Trace, path: list[Call]) -> bool:
    """Whether a mean or a deviation is read by anything but the norm, such as what undoes it at the end."""
    own = {call.index for call in path}
    whole = max(value.numel for call in path for value in call.outputs)
    todo = [value for call in path for value in call.outputs if value.numel < whole]
    means = [trace.makers.get(one.id) for call in path if call.name == "sub" for one in call.inputs[1:]]
    todo += [value for maker in means if maker is not None for value in maker.outputs if value.numel < whole]
    users = [user for value in todo for user in trace.past(value, PASSED)]
    users = [user for user in users if user.index not in own]
    return any(user.name != "sub" or user.index > path[-1].index for user in users) or any(
        value.id in trace.returned for value in todo
    )


def divides_by_count(reduced: Call, call: Call) -> bool:
    """Whether a step after a sum divides it by how many numbers it has."""
    count = reduced.inputs[0].numel / max(1, reduced.outputs[0].numel)
    by = count if call.name == "div" else 1 / count
    given = (one for one in call.arguments if type(one) in (int, float))
    return call.name in ("div", "mul") and any(abs(one / by - 1) < 1e-6 for one in given)


def less_mean(trace: Trace, call: Call) -> bool:
    """Whether a call takes a mean from what it is the mean of; any other difference is data."""
    if call.name != "sub" or len(call.inputs) != 2:
        return False
    maker = trace.made_by(call.inputs[1])
    while maker is not None and maker.name in ("div", "mul") and maker.inputs:
        maker = trace.made_by(maker.inputs[0])
    return maker is not None and maker.name in ("mean", "sum", "var_mean", "std_mean")


def as_norm(
    trace: Trace, x: Value, means: bool, reduced: Call, steps: list[Call], path: list[Call]
) -> tuple[Rewrite, ...]:
    """The norm in one call, to be tried: over the last dimension, by a mean of squares or a variance."""
    maker, tail = trace.made_by(x), path[[*map(id, path)].index(id(reduced)) + 1 + len(steps) :]
    if means and (maker is None or maker.name != "sub"):
        return ()
    source = maker.inputs[0] if means and maker else x
    eps = [one for call in steps if call.name == "add" for one in call.arguments if type(one) in (int, float)]
    if reduced.name not in ("mean", "var") or reduced.outputs[0].shape != (*source.shape[:-1], 1) or len(eps) > 1:
        return ()
    given = [(call.name, one) for call in tail for one in call.inputs if one.origin == "parameter"]
    names, last = [name for name, _ in given], max(path, key=lambda call: call.index)
    if names not in ([], ["mul"], ["add"], ["mul", "add"]):
        return ()
    compute = norm(means, float(eps[0]) if eps else 0.0, "mul" in names, "add" in names)
    return rewrite(trace, last, [source, *(one for _, one in given)], compute)


def by_one_less(reduced: Call) -> bool:
    """Whether a variance divides by n - 1, as torch's do unless they are told otherwise: F.layer_norm divides by n."""
    told = [*reduced.arguments[1:], reduced.named.get("unbiased", reduced.named.get("correction"))]
    return reduced.name in VARIANCES and not any(one is False or one == 0 for one in told[1:])


def norm_named(means: bool, reduced: Call) -> tuple[str, str, str]:
    """Which norm it is, what does it in one kernel, and the page."""
    rows = reduced.outputs[0].shape[-1:] == (1,) or reduced.outputs[0].shape == reduced.inputs[0].shape[:-1]
    if not rows:
        return "A norm", "F.group_norm or F.batch_norm where one fits; torch.compile else", "compiler/fusion.md#columns"
    if means and by_one_less(reduced):
        return "LayerNorm", "torch.compile makes one kernel of them; F.layer_norm divides by n", "kernels/layer-norm.md"
    if means:
        return "LayerNorm", "F.layer_norm, or kernels/layer_norm.py", "kernels/layer-norm.md"
    return "RMSNorm", "F.rms_norm, or kernels/rms_norm.py", "kernels/rms-norm.md"


def statistic_of(trace: Trace, value: Value) -> tuple[Call, list[Call]] | None:
    """The reduction that a number per row comes from, and the steps after it; at least a root or a norm among them."""
    steps, rooted = [], False
    for _ in range(8):
        call = trace.made_by(value)
        if call is None or not call.inputs:
            return None
        rooted |= call.name in ("sqrt", "rsqrt", "norm", "std", "std_mean") or (
            call.name == "pow" and any(one in (0.5, -0.5) for one in call.arguments)
        )
        if call.name in ("mean", "sum", "var", "std", "norm", "var_mean", "std_mean"):
            return (call, steps) if rooted else None
        if call.name not in SMALL_STEPS:
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
        call = trace.made_by(one)
        if call is not None and call.name in ("pow", "square", "mul", "sub", "abs", "var", "std", "add"):
            todo += [each for each in call.inputs if each.numel == one.numel]
    return found


def squared(trace: Trace, reduced: Call) -> list[Call]:
    """The square before a mean, and the difference from another mean before that."""
    call, found = trace.made_by(reduced.inputs[0]), []
    for _ in range(3):
        if call is None or call.name not in ("pow", "square", "mul", "sub", "abs"):
            break
        found.append(call)
        if call.name == "sub":
            found += [
                maker for one in call.inputs[1:] if (maker := trace.made_by(one)) is not None and maker.name == "mean"
            ]
        call = trace.made_by(call.inputs[0])
    return found


def affine(trace: Trace, call: Call) -> list[Call]:
    """The weight and the bias after a norm."""
    found = []
    for _ in range(2):
        users = [user for user in trace.past(call.outputs[0], PASSED) if user.name in ("mul", "add")]
        if len(users) != 1 or not any(one.origin == "parameter" for one in users[0].inputs):
            break
        call = users[0]
        found.append(call)
    return found


def norm_and_activation(trace: Trace, captured: Captured) -> Iterator[Finding]:
    """A norm whose result goes into an activation and nowhere else."""
    pairs = []
    for call in trace.eager:
        if call.name not in ("layer_norm", "rms_norm", "group_norm") or call.out is None:
            continue
        users = trace.past(call.out, PASSED)
        if len(users) == 1 and users[0].name in ("gelu", "silu", "relu") and call.out.bytes >= SMALL:
            pairs.append((call, users))
    moved, saved = sum(call.moved for call in trace.eager), Counter()
    for call, _ in pairs:
        saved[call.line] += 2 * call.out.bytes
    for call, users in pairs:
        little = max(PART * moved, LEAST) > saved[call.line]
        known = call.name == "layer_norm" and users[0].name == "gelu"
        yield Finding(
            "norm-activation",
            f"{call.name} and {users[0].name} in two kernels",
            in_order([call, users[0]]),
            f"{size(call.out.bytes)} are written and read between them",
            "kernels/layer_norm_gelu.py" if known else "torch.compile makes one kernel of them",
            "kernels/layer-norm-gelu.md",
            saves=2 * call.out.bytes,
            kernels=1,
            weight="note" if call.name == "group_norm" or little else "finding",
        )
