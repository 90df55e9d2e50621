"""Is 2% real? What varies between runs of the same code, and how often a gate is wrong.

Run `python -m snippets.validation.regressions` to see it for the machine at hand.
"""

import random
import shutil
import statistics
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path

from snippets.validation.gate import LOOKS, PAIRS, Samples, Side, Verdict, paired, ratio_of, take_turns

Call = Callable[[], object]
LIMIT = 0.05
UNITS = 20  # of work; one more is a slowdown of exactly 5%
PROCESSES = 10  # of each side
SAMPLES = 11  # that each takes


# ---- work of a fixed size -------------------------------------------------------------------------------


# --8<-- [start:work]
def repeated(unit: Call, times: int) -> Call:
    """A call that does a unit of work so many times."""

    def call() -> None:
        for _ in range(times):
            unit()

    return call


def on_a_cpu() -> dict[str, Call]:
    """One unit of work that the interpreter rules, and one that the processor's arithmetic does."""
    data = bytes(range(256)) * 64
    return {"interpreter": lambda: sum(number * number for number in range(300)), "checksum": lambda: zlib.crc32(data)}


def on_a_gpu() -> dict[str, Call]:
    """One unit that launches rule, one that memory rules, one that matrix products rule."""
    import torch

    small, large = torch.zeros(1024, device="cuda"), torch.randn(2**26, device="cuda").bfloat16()
    a, b = (torch.randn(2048, 2048, device="cuda").bfloat16() for _ in range(2))
    return {"launches": small.neg, "memory": large.neg_, "matrix": lambda: a @ b}


def unchanged() -> dict[str, Call]:
    """The benchmarks as they are."""
    return {name: repeated(unit, UNITS) for name, unit in units().items()}


def planted() -> dict[str, Call]:
    """The benchmarks with 5% more work."""
    return {name: repeated(unit, UNITS + 1) for name, unit in units().items()}


# --8<-- [end:work]


def units() -> dict[str, Call]:
    return on_a_gpu() if has_gpu() else on_a_cpu()


def has_gpu() -> bool:
    """Whether there is a GPU to measure on. PyTorch takes seconds to import: asked only where there may be one."""
    if not any(map(shutil.which, ("nvidia-smi", "rocm-smi"))):
        return False
    import torch

    return torch.cuda.is_available()


SIDES = {
    "old": Side(__file__, "unchanged", str(Path(__file__).parents[2])),
    "same": Side(__file__, "unchanged", str(Path(__file__).parents[2])),
    "slow": Side(__file__, "planted", str(Path(__file__).parents[2])),
}


def measure(processes: int = PROCESSES, samples: int = SAMPLES, seconds: float = 0.005) -> list[Samples]:
    """Old code, the same code again, and slower code, in turn; each item comes from three processes of their own."""
    chance = random.Random()
    return [take_turns(SIDES, samples, seconds, chance)[0] for _ in range(processes)]


# ---- what varies ----------------------------------------------------------------------------------------


# --8<-- [start:spread]
def spread(values: Sequence[float]) -> float:
    """Half of the distance from the 20th to the 80th percentile, as a share of the median."""
    deciles = statistics.quantiles(values, n=10, method="inclusive")
    return (deciles[7] - deciles[1]) / 2 / statistics.median(values)


def spreads(taken: list[Samples], name: str) -> dict[str, float]:
    """How far apart repeated measurements of the same code lie, for each way to compare."""
    old, same = ([run[name][side] for run in taken] for side in ("old", "same"))
    return {
        "samples of one process": statistics.median(spread(samples) for samples in old),
        "medians of processes": spread([statistics.median(samples) for samples in old]),
        "ratios, run one after the other": spread(
            [statistics.median(b) / statistics.median(a) for a, b in zip(old, same[1:] + same[:1], strict=True)]
        ),
        "ratios, taking turns": spread([ratio_of(a, b) for a, b in zip(old, same, strict=True)]),
    }


# --8<-- [end:spread]


def ratios(taken: list[Samples], name: str, side: str) -> list[float]:
    """One ratio to the old code for each pair of processes."""
    return [ratio_of(run[name]["old"], run[name][side]) for run in taken]


# ---- how often a gate is wrong --------------------------------------------------------------------------


# --8<-- [start:simulate]
def gate(draw: Callable[[], float]) -> str:
    """What the gate says of pairs that come from `draw`, with all its looks."""
    found: list[float] = []
    for _ in range(LOOKS):
        found += [draw() for _ in range(PAIRS)]
        verdict: Verdict = paired(found, LIMIT)
        if verdict.status != "not judged":
            break
    return verdict.status


def rates(real: Sequence[float], gates: int = 1000) -> dict[str, float]:
    """How often the gate gives each verdict on pairs drawn from real ones."""
    chance = random.Random(0)
    statuses = [gate(lambda: chance.choice(real)) for _ in range(gates)]
    return {status: statuses.count(status) / gates for status in ("not slower", "slower", "not judged")}


def louder(real: Sequence[float], truth: float, times: float) -> list[float]:
    """The same pairs with so many times the noise, around the ratio that the work really has."""
    middle = statistics.median(real)
    return [truth * (ratio / middle) ** times for ratio in real]


# --8<-- [end:simulate]


# --8<-- [start:naive]
def naive(old: Sequence[float], new: Sequence[float], gates: int = 1000) -> float:
    """How often a usual check says "slower": one run's mean against the mean that an earlier run has stored."""
    chance = random.Random(0)
    return sum(chance.choice(new) > (1 + LIMIT / 2) * chance.choice(old) for _ in range(gates)) / gates


# --8<-- [end:naive]


def means(taken: list[Samples], name: str, side: str) -> list[float]:
    """The mean of each process."""
    return [statistics.fmean(run[name][side]) for run in taken]


# ---- the report -----------------------------------------------------------------------------------------


def main() -> None:
    """Print what varies, what the gate says, and how often it would be wrong, on this machine."""
    taken = measure()
    names = list(taken[0])
    print("==== spread")
    print(f"{'half of p20 to p80':34}" + "".join(f"{name:>13}" for name in names))
    for kind in spreads(taken, names[0]):
        print(f"{kind:34}" + "".join(f"{spreads(taken, name)[kind]:13.2%}" for name in names))
    print("==== gate")
    for name in names:
        for side, what in (("same", "unchanged"), ("slow", "5% more work")):
            found = paired(ratios(taken, name, side)[:PAIRS], LIMIT)
            print(f"{name:12} {what:13} {found.status:11} {found.ratio:6.3f}  ({found.low:.3f} to {found.high:.3f})")
    print("==== rates")
    print(
        f"{'of 1000 gates':12} {'':13}" + "".join(f"{status:>12}" for status in ("not slower", "slower", "not judged"))
    )
    for name in names:
        for side, what in (("same", "unchanged"), ("slow", "5% more work")):
            shares = rates(ratios(taken, name, side))
            print(f"{name:12} {what:13} " + "".join(f"{1000 * share:12.0f}" for share in shares.values()))
    print("==== usual")
    print("of 1000 checks of one mean against a stored mean, a limit half way, these say slower")
    for name in names:
        for side, what in (("same", "unchanged"), ("slow", "5% more work")):
            share = naive(means(taken, name, "old"), means(taken, name, side))
            print(f"{name:12} {what:13} {1000 * share:12.0f}")
    print("==== noise")
    print("the spread of pairs (half of p20 to p80), and of 1000 gates on unchanged work and on 5% more")
    print(f"{'':12} {'spread':>8} {'false alarms':>14} {'missed':>8} {'not judged, unchanged':>23} {'with 5%':>9}")
    for name in names:
        same, slow = (ratios(taken, name, side) for side in ("same", "slow"))
        for times in (1, 2, 4, 8, 16):
            noise = louder(same, 1.0, times)
            quiet, more = rates(noise), rates(louder(slow, 1 + LIMIT, times))
            print(
                f"{name:12} {spread(noise):8.2%} {1000 * quiet['slower']:14.0f} {1000 * more['not slower']:8.0f} "
                f"{1000 * quiet['not judged']:23.0f} {1000 * more['not judged']:9.0f}"
            )


if __name__ == "__main__":
    main()
