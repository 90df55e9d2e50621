"""Is 2% real? What varies between runs of the same code, and how often a gate is wrong.

Run `python -m snippets.validation.regressions` to see it for the machine at hand.
"""

import statistics
from collections.abc import Sequence

from snippets.validation.gate import PAIRS, Samples, paired, ratio_of
from snippets.validation.regressions_rates import LIMIT, louder, naive, rates
from snippets.validation.regressions_work import measure


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


def means(taken: list[Samples], name: str, side: str) -> list[float]:
    """The mean of each process."""
    return [statistics.fmean(run[name][side]) for run in taken]


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
