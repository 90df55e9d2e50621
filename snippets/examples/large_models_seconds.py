"""The seconds that a change costs, by hand from this machine's rates and measured; and which to try first."""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from snippets.examples.large_models_change import EACH, STATES, Change, available
from snippets.examples.large_models_measure import GIB, error, line, progress, seconds, section, size, tried
from snippets.examples.large_models_moments import kept_by_token, predicted
from snippets.examples.large_models_shape import Shape
from snippets.validation.timing import seconds_per_call


def rates(device: torch.device) -> dict[str, float]:
    """Of this machine, now: bf16 FLOP/s of a matmul, bytes/s of memory, and of pinned memory to and from the GPU."""
    n = 8192 if device.type == "cuda" else 256
    a, b = (torch.randn(n, n, device=device, dtype=torch.bfloat16) for _ in range(2))
    x = torch.empty(n * n * 4, device=device)
    host = torch.empty(n * n * 4, pin_memory=device.type == "cuda")
    time_of = partial(seconds_per_call, device=device, at_least=0.2)
    return {
        "matmul": 2 * n**3 / time_of(lambda: a @ b),
        "memory": 2 * x.nbytes / time_of(lambda: x.mul_(1.0)),
        "to the CPU": x.nbytes / time_of(lambda: host.copy_(x, non_blocking=True)),
        "from the CPU": x.nbytes / time_of(lambda: x.copy_(host, non_blocking=True)),
    }


def forward_seconds(model: nn.Module, tokens: Tensor) -> float:
    """The blocks' forward, which a checkpoint of blocks repeats."""
    with torch.no_grad(), torch.autocast(tokens.device.type, torch.bfloat16):
        return min(seconds(lambda: model.model(input_ids=tokens)) for _ in range(4))


# --8<-- [start:seconds]
def seconds_paid(
    s: Shape, tokens: int, length: int, change: Change, rate: Mapping[str, float], forward: float
) -> float:
    """By hand: what a step takes more, if nothing overlaps but what comes from the CPU with what goes there."""
    flops = tokens * s.layers * (2 * s.block + 2 * length * s.width)  # of a forward; attention: half of the scores
    paid = {"": 0.0, "blocks": forward, "cheap": forward - flops / rate["matmul"]}[change.repeat]
    paid += (STATES[change.states] - STATES["fp32"]) * 2 * s.parameters / rate["memory"]  # states read and written
    if change.states == "CPU":
        paid += 8 * s.parameters / min(rate["to the CPU"], rate["from the CPU"])
    if change.offload:
        paid += s.layers * moved_by_block(s, tokens, change) * (1 / rate["to the CPU"] + 1 / rate["from the CPU"])
    if change.rows:
        paid += 2 * tokens * s.embedding / rate["matmul"]  # logits again
    if change.fused:
        paid -= (36 - 6) * tokens * s.words / rate["memory"]  # bytes of a logit, read and written from matmul to matmul
    return paid


def moved_by_block(s: Shape, tokens: int, change: Change) -> float:
    """save_on_cpu copies each tensor as often as an operation saves it, and weights, too."""
    if change.repeat == "blocks":
        return 4.0 * tokens * s.width
    twice = 4 * s.width * 2 + 2 * s.width  # both norms' inputs, attention's result
    return tokens * float(kept_by_token(s, change) + twice) + 2.0 * s.block


# --8<-- [end:seconds]


def each(model: nn.Module, s: Shape, tokens: Tensor, rate: Mapping[str, float], names: Sequence[str]) -> None:
    """Every change alone, and some together: saved and paid, by hand and measured; then the order to try them in."""
    count, forward = tokens.numel(), forward_seconds(model, tokens)
    plain = tried(model, tokens, Change())
    if isinstance(plain, str):
        print(f"as it comes: {plain}")
        return
    line("", "peak", "by hand", "error", "saved", "step", "paid", "by hand")
    order = []
    for name in names:
        change = available(EACH[name])
        progress(name)
        ran = plain if name == "as it comes" else tried(model, tokens, change)
        peak = predicted(s, count, change)[1]
        if isinstance(ran, str):
            print(f"{name:34} {ran}", flush=True)
            continue
        saved, paid = plain.peak - ran.peak, ran.seconds - plain.seconds
        guess = f"{seconds_paid(s, count, tokens.shape[1], change, rate, forward) * 1e3:+.0f} ms"
        guess = guess if change.budget is None else "not known"
        times = f"{ran.seconds * 1e3:.0f} ms", f"{paid * 1e3:+.0f} ms", guess
        line(name, size(ran.peak), size(peak), error(peak, ran.peak), size(saved), *times)
        order.append((name, saved, paid / plain.seconds))
    section("order")
    ranked(order)


def ranked(order: Iterable[tuple[str, float, float]]) -> None:
    """By GiB for a percent of time; first those that cost none."""
    listed = [each for each in order if each[1] > 0.005 * GIB or (not torch.cuda.is_available() and each[1] > 0)]
    line("", "saved", "time paid", "per percent")
    for name, saved, share in sorted(listed, key=lambda found: (found[2] > 0.01, -found[1] / max(found[2], 0.01))):
        line(name, size(saved), f"{100 * share:+.1f} %", "free" if share <= 0.01 else size(saved / share / 100))
