"""Which tests ran where, at which commit, and what did not run, as counts; what failed proves nothing."""

from collections import Counter
from collections.abc import Iterator, Mapping
from html import escape
from pathlib import Path

from docs.publish.markup import blocks, code, facts, front_matter, link, table
from docs.publish.place import Place
from docs.publish.records.schema import TestReport, read

UNRUNNABLE = "docs/publish/generated/unrunnable.toml"
OUTCOMES = ("passed", "skipped", "xfailed")  # of what is green
KINDS = {
    "embedded": "embedded from files that tests run",
    "run": "run by the tests as they stand on the page",
    "measures": "commands that measure a case for minutes; the tests check that the case exists",
    "captured": "captured output, put there by a macro, of scripts that a test runs again",
    "listed": "listed as not runnable, each with its reason",
    "unaccounted": "not accounted for",
}


def load(folder: Path, root: Path) -> list[TestReport]:
    """The committed reports of test runs (tests/report.py), newest first.

    Raises:
        PublishError: a file is no test report; the message names it.
    """
    reports = [read(path, TestReport, root) for path in folder.glob("*.json")]
    return sorted(reports, key=lambda report: report.date, reverse=True)


def page(reports: list[TestReport], kernels: Mapping[str, str], fenced: Mapping[str, int], place: Place) -> str:
    """The verification page as Markdown: the newest green report of each machine, what is red since, and the census.

    Args:
        kernels: the hash of each kernel's file as it is now (tests/benchmarks/source.py).
        fenced: how many blocks of code there are of each kind.
    """
    parts = [
        front_matter("Verification", "Which tests ran where, at which commit, and what is skipped"),
        "Every test runs on every push, on a machine without a GPU: Triton kernels in Triton's interpreter, compiled "
        "code through Inductor's C++ backend. The tests also run natively on a GPU, and the report of that run is "
        "committed with the records. A report with a failure proves nothing: it is shown in red, and the newest report "
        "without a failure counts.",
    ]
    machines: dict[str, list[TestReport]] = {}
    for report in reports:
        machines.setdefault(report.machine["slug"], []).append(report)
    if not machines:
        parts.append("No report of a native run has been committed yet.")
    for of_one in machines.values():
        parts += _machine(of_one, kernels, place)
    parts += [
        "## Code blocks on the pages",
        "A test accounts for every fenced block. Those that cannot run are listed in one reviewed file with their "
        f"reasons, {link(UNRUNNABLE, place.source(UNRUNNABLE))}, which should never grow.",
        facts([(what, str(fenced[kind])) for kind, what in KINDS.items() if kind in fenced]),
    ]
    return blocks(parts)


def _changed(report: TestReport, now: Mapping[str, str]) -> str:
    """Which kernels are not those that were tested."""
    changed = [name for name in now if (report.kernels or {}).get(name) != now[name]]
    return f"changed since: {', '.join(map(code, changed))}" if changed else "as they are now"


def _machine(reports: list[TestReport], now: Mapping[str, str], place: Place) -> Iterator[str]:
    """The newest report if it is red, and the newest green one: of that alone something is claimed."""
    newest, name, slug = reports[0], reports[0].machine["name"], reports[0].machine["slug"]
    yield f"## {name} {{ #{slug} }}"
    if not newest.green:
        yield f'<p><strong class="rp-badge">{escape(_red(newest))}</strong></p>'
        yield from _wrong(newest)
    proof = next((report for report in reports if report.green), None)
    yield from _report(proof, now, place) if proof else ["No report of this machine is without a failure."]


def _red(report: TestReport) -> str:
    """What is wrong with a report, in a line."""
    counts = Counter(test.outcome for test in report.tests)
    errors = counts["error"]
    wrong = f"{counts['failed'] + counts['xpassed']} failed, {errors} error{'s' * (errors != 1)}"
    if not counts["passed"]:
        wrong += ", none passed"
    return f"red: {wrong}, of {report.date[:10]} on {report.machine['name']}"


def _wrong(report: TestReport) -> list[str]:
    """The tests that did not end as they should, each with its reason."""
    wrong = [test for test in report.tests if test.outcome in ("failed", "error", "xpassed")]
    lines = [("", [code(test.id), escape(test.reason)]) for test in wrong]
    return ["### Failed", table(("test", "why"), lines, words=True)] if wrong else []


def _report(report: TestReport, now: Mapping[str, str], place: Place) -> Iterator[str]:
    counts = Counter(test.outcome for test in report.tests)
    versions = ", ".join(f"{name} {version}" for name, version in report.software.items())
    commit = link(report.commit[:10], f"{place.repository}/tree/{report.commit}") if report.commit else "no commit"
    yield "### The newest report without a failure"
    yield facts(
        [
            ("Tests", ", ".join(f"{counts[name]} {name}" for name in OUTCOMES if counts[name])),
            (
                "Left out",
                f"{left_out} tests, which the command deselects" if (left_out := report.deselected) else "none",
            ),
            ("Kernels", _changed(report, now)),
            ("Commit", commit + (", with uncommitted changes" if report.dirty else "")),
            ("Date", f"{report.date[:10]}, {report.date[11:16]} UTC"),
            ("Command", code(report.command)),
            ("Software", escape(versions)),
        ]
    )
    yield "### By file"
    yield _by_file(report)
    skipped = Counter(
        test.reason or "no reason given" for test in report.tests if test.outcome in ("skipped", "xfailed")
    )
    if skipped:
        lines = [("", [escape(reason), str(count)]) for reason, count in skipped.most_common()]
        yield "### Skipped"
        yield table(("reason", "tests"), lines)


def _by_file(report: TestReport) -> str:
    """How the tests of each file ended."""
    files: dict[str, Counter[str]] = {}
    for test in report.tests:
        files.setdefault(test.id.partition("::")[0], Counter())[test.outcome] += 1
    present = [name for name in OUTCOMES if any(counts[name] for counts in files.values())]
    lines = [("", [code(file), *(str(counts[name]) for name in present)]) for file, counts in sorted(files.items())]
    return table(("file", *present), lines)
