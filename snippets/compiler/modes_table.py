"""Tables of what each mode costs, and after how many calls it has paid for its compiling."""

from collections.abc import Iterator

from snippets.compiler.modes_measured import Row
from snippets.compiler.modes_options import MODES, OPTIONS


# --8<-- [start:break-even]
def break_even(paid: float, before: float, after: float) -> float:
    """Calls after which `paid` seconds are earned back by calls that take `after` instead of `before`.

    Two runs differ by a per cent or two, so less than that is no gain.
    """
    return paid / (before - after) if after < 0.98 * before else float("inf")


# --8<-- [end:break-even]
def about(calls: float) -> str:
    """Two digits: the third is another one in the next run."""
    return {0.0: "at once", float("inf"): "never"}.get(calls) or f"{float(f'{calls:.1e}'):,.0f}"


def table(rows: list[Row], workload: str) -> Iterator[str]:
    """A line for eager and for each mode of a workload."""
    mine = {row["mode"]: row for row in rows if row["workload"] == workload}
    order = [name for name in (*MODES, *OPTIONS) if name in mine]
    if not any("time" in row for row in mine.values()):
        yield f"{workload}: {next((row['failed'] for row in mine.values()), 'not measured')}"
        return
    default = mine.get("default", {})
    some = next(row for row in (default, *mine.values()) if "time" in row)
    head = f"{'a call':>13}{'peak':>12}{'kept':>12}{'compiling':>12}{'pays over eager':>18}{'over default':>15}"
    yield f"{workload:<28}{head}"
    yield f"  {'eager':<26}{columns(some, 'eager')}"
    for name in order:
        row = mine[name]
        if "failed" in row:
            yield f"  {name:<26}  {row['failed'][:80]}"
            continue
        now, eager = row["time"][name], row["time"]["eager"]
        pays = break_even(row["compile"], eager, now)
        line = f"  {name:<26}{columns(row, name)}{row['compile']:>10.1f} s{about(pays):>18}"
        if name != "default" and "time" in default:
            # each mode was timed beside eager in its own process: the default's time is carried over by that
            usual = default["time"]["default"] * eager / default["time"]["eager"]
            line += f"{about(break_even(max(row['compile'] - default['compile'], 0), usual, now)):>15}"
        yield line


def columns(row: Row, name: str) -> str:
    """Time and memory, as the table has them."""
    held = [row[what][name] for what in ("peak", "kept")]
    memory = ["–" if size is None else f"{size / 2**20:,.0f} MiB" for size in held]
    return f"{row['time'][name] * 1e6:>10.1f} us{memory[0]:>12}{memory[1]:>12}"


def searches(rows: list[Row], workload: str) -> Iterator[str]:
    """A line for each product that max-autotune searched."""
    for row in rows:
        if row["workload"] == workload and row["mode"] == "max-autotune-no-cudagraphs":
            for one in row.get("tried", ()):
                sizes = " × ".join("x".join(map(str, size)) for size in one["sizes"])
                yield (
                    f"{workload:<12}{one['product']:<12}{sizes:<28}{one['choices']:>4} tried  "
                    f"library {one['library'] * 1e6:7.1f} us  best {one['best'] * 1e6:7.1f} us  {one['winner']}"
                )


def descents(rows: list[Row], workload: str) -> Iterator[str]:
    """How a workload's kernels are launched, as Inductor guesses and as coordinate descent finds."""
    for row in rows:
        if row["workload"] == workload and row["mode"] in ("default", "coordinate-descent") and "settings" in row:
            yield f"{row['mode']}: {row['steps']} launches tried one step away"
            yield from (f"    {settings}" for settings in row["settings"])


def totals(rows: list[Row], workload: str) -> Iterator[str]:
    """Compiling and so many calls, in seconds, for each mode; and who is done first."""
    mine = [row for row in rows if row["workload"] == workload and "time" in row and row["mode"] in MODES]
    if not mine:
        return
    eager = next((row for row in mine if row["mode"] == "default"), mine[0])["time"]["eager"]
    paid, each = {"eager": 0.0}, {"eager": eager}
    for row in sorted(mine, key=lambda row: list(MODES).index(row["mode"])):
        paid[row["mode"]] = row["compile"]
        each[row["mode"]] = row["time"][row["mode"]] * eager / row["time"]["eager"]
    numbers = (1_000, 100_000, 10_000_000)
    spent = {calls: {name: paid[name] + calls * each[name] for name in paid} for calls in numbers}
    yield f"{'calls':<26}" + "".join(f"{calls:>28,}" for calls in numbers)
    for name in paid:
        yield f"{name:<26}" + "".join(f"{spent[calls][name]:>26,.1f} s" for calls in numbers)
    yield f"{'done first':<26}" + "".join(f"{min(each, key=each.get):>28}" for each in spent.values())  # type: ignore[arg-type]
