"""The page of a machine: what it is and its runs; and a file for each case, with every current number of it."""

from collections.abc import Iterator, Mapping
from html import escape
from itertools import groupby, pairwise

from docs.publish import evidence, units
from docs.publish.evidence import above_ceiling
from docs.publish.markup import NONE, badges, blocks, code, facts, front_matter, link, marks, table
from docs.publish.place import Place, machine_page, rows_file
from docs.publish.records.measured import DIRECTIONS, METRICS, MODES, Coordinates, Measured
from docs.publish.records.schema import Ceiling, Failure, Record
from docs.publish.records.store import Store

COLUMNS = (
    "shape", "variant", "p50", "p20", "p80", "samples", "read", "written", "bandwidth", "of memory ceiling", "FLOP/s",
    "of matrix ceiling", "peak memory", "kernels", "error", "allowed error", "build", "registers", "spills", "launch",
)  # fmt: skip
MEANINGS = {  # of the columns, in the legend of a case
    "p50": "the median time of one call",
    "p20, p80": "three samples in five lie between these times",
    "read, written": "the bytes that the operation cannot avoid, by formula, not counted on the GPU",
    "of memory ceiling": "<code>bandwidth</code> as a share of the best bandwidth that plain kernels reached in the "
    "same run, with the same mix of reads and writes",
    "of matrix ceiling": "<code>FLOP/s</code> as a share of the best rate that a large matrix product reached in the "
    "same run, in the same dtype",
    "peak memory": "what one call takes beyond its inputs",
    "kernels": "what the GPU runs in one call",
    "error": "the largest difference from the same function in float64; of several results, of the one that comes "
    "closest to what is allowed",
    "allowed error": "what the check lets pass; a variant beyond it gets no time",
    "build": "the first call, compiling included",
    "launch": "what this host took, in the same run, for one trivial operation",
}
VARIANTS = {
    "eager": "PyTorch as it is written, not compiled",
    "compile": "<code>torch.compile</code> in its default mode",
    "compile-max": "<code>torch.compile</code> with <code>max-autotune-no-cudagraphs</code>, which includes coordinate "
    "descent tuning",
    "ours": "this site's code, in the files above",
}
STATES = {
    "sm_clock_mhz": "{} MHz",
    "memory_clock_mhz": "memory {} MHz",
    "temperature_c": "{} °C",
    "power_w": "{} W",
}


def page(store: Store, machine: str, place: Place) -> str:
    """The page of a machine as Markdown."""
    rows = store.select(Coordinates(machine=machine))
    runs = list({row.record.id: row.record for row in rows}.values())
    newest = store.newest_record(Coordinates(machine=machine))
    head = ("date", "commit", "command", "state", "host and software")
    lines = (_run(record, above, place) for above, record in pairwise([None, *runs]) if record)
    parts = [
        front_matter(store.machines[machine], "Every number of this machine, with its evidence"),
        _machine(newest, place),
        "## Cases",
        "The name of a case opens all of its numbers, with their evidence.",
        _cases(rows, place),
        "## Runs",
        table(head, lines, words=True, stacked=True),
        "## Measured peaks { #ceilings }",
        _ceilings(newest),
    ]
    if busy := store.busy(machine):
        parts += ["## Measured while the machine was busy", _busy(busy)]
    if failures := store.failures(machine):
        parts += ["## Not timed", "What these runs could not time, and why.", _failures(failures)]
    return blocks(parts)


def case_rows(store: Store, machine: str, case: str, place: Place) -> str:
    """The rows of a case as an HTML file, whose body the machine's page loads."""
    name = store.machines[machine]
    head = f'<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n<title>{escape(f"{case}, {name}")}</title>'
    back = link(name, place.to(machine_page(machine)))
    about = f"<h3>{case}</h3>\n<p>{escape(evidence.question(case))} Every current number of this case on {back}.</p>"
    return blocks([head, about, *_case(store.select(Coordinates(case, machine=machine)), place)])


def cases(store: Store, machine: str) -> list[str]:
    """The cases that a machine has measured, by name."""
    return sorted({row.case for row in store.select(Coordinates(machine=machine))})


def _cases(rows: list[Measured], place: Place) -> str:
    """A line for each case, with a link to its rows."""
    lines = []
    for case, measured in groupby(sorted(rows, key=lambda row: row.case), lambda row: row.case):
        of_case = list(measured)
        named = link(case, place.to(rows_file(of_case[0].machine, case)))
        days = evidence.days(row.record for row in of_case)
        lines.append(("", [named + badges(marks(*of_case)), escape(evidence.question(case)), str(len(of_case)), days]))
    return table(("case", "what it asks", "numbers", "measured"), lines, words=True, stacked=True)


def _machine(record: Record, place: Place) -> str:
    machine = record.machine
    slug = machine["slug"]
    downloads = f"{link('JSON', place.to(f'results/{slug}.json'))}, {link('CSV', place.to(f'results/{slug}.csv'))}"
    gpu = machine["kind"] == "gpu"
    return facts(
        [
            ("Memory", _binary(machine["memory_bytes"])),
            ("Host", escape(machine.get("processor") or "") if gpu else ""),
            ("Multiprocessors" if gpu else "Cores", str(machine["units"])),
            ("L2 cache", _binary(machine["l2_bytes"]) if machine["l2_bytes"] else ""),
            ("Driver", escape(machine["driver"] or "")),
            ("Power limit", f"{machine['power_limit_w']:.0f} W" if machine["power_limit_w"] else ""),
            (
                "An empty kernel",
                f"{units.text(record.floor.p50, 's')}: no GPU time of one call is below that" if record.floor else "",
            ),
            ("All numbers", downloads),
        ]
    )


def _binary(size: int) -> str:
    """A size in powers of ten, as everywhere on the site, and in those of two, in which vendors count memory."""
    scale, unit = (2**30, "GiB") if size >= 2**30 else (2**20, "MiB")
    return f"{units.text(size, 'B')} ({size / scale:.4g} {unit}), as the system reports it"


def _run(record: Record, above: Record | None, place: Place) -> tuple[str, list[str]]:
    """A line of the table of runs; its id is the run's. Host and software are said where they change."""
    commit = record.commit or ""
    where = link(commit[:10], f"{place.repository}/tree/{commit}") if commit else "none"
    known = [_host(record), *(f"{name} {version}" for name, version in record.software.items())]
    same = above and _host(record) == _host(above) and record.software == above.software
    return record.id, [
        f"{record.date[:10]}, {record.date[11:16]} UTC",
        where + (" and uncommitted changes" if record.dirty else ""),
        code(record.command),
        _state(record.machine) or NONE,
        "as above" if same else escape(", ".join(filter(None, known))),
    ]


def _host(record: Record) -> str:
    """The processor, and which start of the machine it was."""
    known = record.machine.get("processor"), record.machine.get("boot")
    return ", start ".join(filter(None, known))


def _state(machine: Mapping) -> str:
    """Clocks, temperature and power before a run, and after it where they differ."""
    found = []
    for name, text in STATES.items():
        values = [
            f"{state[name]:.0f}" for state in (machine["before"], machine["after"]) if state.get(name) is not None
        ]
        if values:
            found.append(text.format(" → ".join(dict.fromkeys(values))))
    return ", ".join(found)


def _ceilings(record: Record) -> str:
    """The ceilings of the newest run; a row is held against those of its own run."""
    lines = [_ceiling(f"traffic mix {mix}", best, "B/s") for mix, best in record.ceilings["bandwidth"].items()]
    lines += [
        _ceiling(f"{dtype} matrix product, {regime}", best, "FLOP/s")
        for dtype, regimes in record.ceilings["matrix"].items()
        for regime, best in regimes.items()
    ]
    introduction = (
        f"Measured in the newest run ({record.date[:10]}). Each number is held against the ceilings of its own run.\n\n"
    )
    return introduction + table(("ceiling", "rate", "p50", "p20", "p80", "samples", "reached by"), lines, remark=True)


def _ceiling(name: str, best: Ceiling, unit: str) -> tuple[str, list[str]]:
    time = best["time"]
    times = [units.text(seconds, "s") for seconds in (time.p50, time.p20, time.p80)]
    return "", [name, units.text(best["rate"], unit), *times, str(time.samples), escape(best["by"])]


def _case(rows: list[Measured], place: Place) -> Iterator[str]:
    """The tables of a case, one for each direction, dtype, mode and kind of shape."""
    first = rows[0]
    record = first.record
    files = ", ".join(link(file, place.source(file, record.commit)) for file in first.row.sources.files)
    records = {row.record.id: row.record for row in rows}.values()
    runs = ", ".join(
        link(run.date[:16].replace("T", " "), place.to(machine_page(first.machine, run.id))) for run in records
    )
    stale = f"{badges(['stale'])} The {first.stale} has changed since." if first.stale else ""
    if busy := dict.fromkeys(row.busy for row in rows if row.busy):
        stale += f"{badges(['busy'])} {escape(evidence.busy('; '.join(busy)))}"
    yield f"<p>Measured on {runs}, with {files}.{stale}</p>"
    above = sum(bool(above_ceiling(row, metric)) for row in rows for metric in ("share", "rate_share"))
    if above:
        method = place.to("results/methodology/#above-the-ceiling")
        yield f"<p>{above} of these numbers are above a measured ceiling: {link('why', method)}.</p>"
    cells = {row.anchor: _cells(row) for row in rows}
    yield _legend(rows, list(cells.values()), place)

    def group(row: Measured) -> tuple[str, str, str, str]:
        return row.direction, row.dtype, row.mode, " × ".join(row.row.shape)

    for (direction, dtype, mode, dimensions), timed in groupby(sorted(rows, key=group), group):
        lines = _table([(row.anchor, cells[row.anchor]) for row in timed])
        timing = f"{MODES[mode]} ({code(mode)})"
        what = f"<p><strong>{DIRECTIONS[direction]}</strong>, {dtype}, {timing}; shape: {dimensions}</p>"
        yield f'<section class="rp-group">{what}{lines}</section>'


def _legend(rows: list[Measured], cells: list[list[str]], place: Place) -> str:
    """What the columns, the variants and the modes of a case's tables mean: of those that stand there."""
    columns = [name for at, name in enumerate(COLUMNS) if any(line[at] != NONE for line in cells)]
    found = {row.row.variant for row in rows}
    meanings = {
        "Variants": {name: text for name, text in VARIANTS.items() if name in found},
        "Columns": {name: text for name, text in MEANINGS.items() if name.split(", ")[0] in columns},
        "Modes": {name: text for name, text in MODES.items() if any(row.mode == name for row in rows)},
    }
    parts = [
        f"<p><strong>{kind}</strong></p>"
        f"<ul>{''.join(f'<li>{code(name)}: {text}</li>' for name, text in its.items())}</ul>"
        for kind, its in meanings.items()
        if its
    ]
    method = link("Methodology", place.to("results/methodology/"))
    parts.append(f"<p>How each is measured: {method}.</p>")
    return f"<details><summary>What the variants, columns and modes mean</summary>{''.join(parts)}</details>"


def _table(lines: list[tuple[str, list[str]]]) -> str:
    """The lines without the columns in which none of them has anything."""
    kept = [at for at in range(len(COLUMNS)) if any(cells[at] != NONE for _, cells in lines)]
    return table([COLUMNS[at] for at in kept], [(name, [cells[at] for at in kept]) for name, cells in lines], grid=True)


def _cells(measured: Measured) -> list[str]:
    row, time = measured.row, measured.time
    spills = max((binary.spills for binary in row.binaries), default=None)
    return [
        units.size(row.size),
        code(row.variant),
        *(units.text(seconds, "s") for seconds in (time.p50, time.p20, time.p80)),
        str(time.samples),
        units.text(row.bytes_read, "B") if row.moved else NONE,
        units.text(row.bytes_written, "B") if row.moved else NONE,
        *(_metric(measured, name) for name in ("bandwidth", "share", "rate", "rate_share", "memory", "kernels")),
        units.text(row.error.value, ""),
        units.text(row.error.bound, ""),
        _metric(measured, "build"),
        _metric(measured, "registers"),
        NONE if spills is None else str(spills),
        units.text(row.host["eager_launch"], "s") if row.host else NONE,
    ]


def _metric(row: Measured, name: str) -> str:
    value = row.metric(name)
    return NONE if value is None else units.text(value, METRICS[name].unit)


def _busy(rows: list[Measured]) -> str:
    """What no chart draws, and no number quotes where another run has it."""
    introduction = (
        "Other work ran on the machine at the same time. These rows stay in the record, but no chart shows them. "
        "Measure them again.\n\n"
    )

    def key(row: Measured) -> tuple[str, str, str]:
        return f"{row.case} {row.direction}, {row.dtype}, {row.mode}", row.record.date[:10], row.busy

    lines = [
        ("", [escape(timed), str(len([*these])), day, escape(reason)])
        for (timed, day, reason), these in groupby(sorted(rows, key=key), key)
    ]
    return introduction + table(("timed", "rows", "date", "reason"), lines, remark=True)


def _failures(failures: list[Failure]) -> str:
    """A line for each reason: most are given at many shapes."""

    def key(one: Failure) -> tuple[str, str, str]:
        return one.case, one.variant, one.explanation

    lines = []
    for (case, variant, why), these in groupby(sorted(failures, key=key), key):
        where = dict.fromkeys(f"{one.direction} {units.size(one.size)} {one.dtype}" for one in these)
        lines.append(("", [escape(case), code(variant), ", ".join(where), escape(why)]))
    return table(("case", "variant", "at", "reason"), lines, words=True)
