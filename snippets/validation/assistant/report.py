"""What was found, in numbers and for people in the terminal."""

import dataclasses
import html
import json
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from .clock import Timing
from .findings import GROUPS, Finding, size
from .graphs import Captured
from .lines import Line
from .profiling import Profile, in_words
from .subject import Subject
from .trace import UNWEIGHED, Trace
from .trials import Trial
from .verdict import Verdict

SITE = "https://ridgepoint-guide.github.io/ridgepoint/"
WIDTH = 110


@dataclass(frozen=True)
class Facts:
    """What was looked at, in numbers."""

    name: str
    device: str
    torch: str
    calls: int
    kernels: int  # operations of one forward that launch something
    moved: int  # bytes
    flops: int
    parameters: int  # bytes
    saved: int | None  # bytes kept for backward; None where memory could not be recorded
    peak: int | None  # bytes beyond parameters and inputs
    graphs: int
    breaks: int
    recompilations: int
    sizes: int
    error: str = ""  # why Dynamo could not capture
    runs: int = 0  # of the forward, on copies, for all but the profile, the times and the trials
    backward: bool = False  # whether the call has a gradient


@dataclass
class Report:
    """What `analyze` found: findings by expected gain, then notes; trials, the best first."""

    facts: Facts
    findings: list[Finding]
    trials: list[Trial] = field(default_factory=list)
    profile: Profile | None = None
    seconds: float = 0.0
    limits: tuple[str, ...] = ()  # what is not known or was not put back, and why
    step: Timing | None = None  # forward and backward, as the module is; where trials are timed

    @property
    def suggestions(self) -> list[Trial]:
        """What was tried, passed the check, and was faster."""
        return [trial for trial in self.trials if trial.suggested]

    @property
    def trades(self) -> list[Trial]:
        """What was tried and was faster, for precision."""
        return [trial for trial in self.trials if trial.trade]

    def of(self, group: str) -> list[Finding]:
        """What there is advice for."""
        advised = (finding for finding in self.findings if finding.helps is not False)
        return [finding for finding in advised if finding.group == group and finding.weight == "finding"]

    @property
    def no_help(self) -> list[Finding]:
        """What was tried and is no advice."""
        return [finding for finding in self.findings if finding.helps is False]

    @property
    def notes(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.weight == "note"]

    def __str__(self) -> str:
        return as_text(self)


def describe(subject: Subject, trace: Trace, captured: Captured, runs: int) -> Facts:
    """The numbers of a module."""
    weighed = not any(limit.startswith(UNWEIGHED) for limit in trace.skipped)
    return Facts(
        name=subject.name,
        device=torch.cuda.get_device_name(subject.device) if subject.device.type == "cuda" else "CPU",
        torch=torch.__version__,
        calls=len(trace.calls),
        kernels=trace.kernels,
        moved=sum(call.moved for call in trace.calls),
        flops=sum(call.flops for call in trace.calls),
        parameters=trace.parameters,
        saved=sum(kept.bytes for kept in trace.saved) if weighed else None,
        peak=trace.peak if weighed else None,
        graphs=len(captured.graphs),
        breaks=len(captured.breaks),
        recompilations=len(captured.recompiled),
        sizes=captured.sizes,
        error=captured.error,
        runs=runs,
        backward=trace.backward,
    )


def as_text(result: Report | Verdict) -> str:
    """For people in the terminal."""
    return "\n".join(text_of_verdict(result) if isinstance(result, Verdict) else text_of_report(result))


def text_of_report(report: Report) -> list[str]:
    numbers = {id(one): number for number, one in enumerate((each for group in GROUPS for each in report.of(group)), 1)}
    rows = [*summary(report.facts), *where_to_start(report, numbers), ""]
    for group, (title, _) in GROUPS.items():
        found = report.of(group)
        rows += [f"{title}: {len(found) or 'nothing'} found"]
        for finding in found:
            rows += ["", *text_of_finding(finding, numbers[id(finding)])]
        rows += [""]
    if notes := report.notes:
        rows += [
            "Worth knowing",
            *(wrapped(f"{note.title}, {note.line}: {note.evidence}", "  ", "    ") for note in notes),
            "",
        ]
    if report.profile:
        rows += ["Kernels", *(f"  {row}" for row in in_words(report.profile)), ""]
    rows += text_of_no_help(report)
    rows += text_of_trials(report)
    rows += text_of_limits(report.limits)
    return rows


def text_of_limits(limits: Sequence[str]) -> list[str]:
    """What is not known, or was not put back."""
    return ["", "Left out", *(wrapped(limit, "  ", "    ") for limit in limits)] if limits else []


def summary(facts: Facts) -> list[str]:
    graphs = f"{facts.graphs} graph{'s' * (facts.graphs != 1)}, {facts.breaks} break{'s' * (facts.breaks != 1)}"
    again = f"{facts.recompilations} recompilations over {facts.sizes} sizes"
    rest = "the rest could not be recorded"
    if facts.saved is not None and facts.peak is not None:
        rest = f"{size(facts.saved)} kept for backward, a peak of {size(facts.peak)} beside them"
    return [
        f"{facts.name} on {facts.device}, torch {facts.torch}",
        f"  forward: {facts.kernels} kernels move {size(facts.moved)} and compute {facts.flops / 1e9:.2f} GFLOP",
        f"  memory:  {size(facts.parameters)} of parameters, {rest}",
        f"  capture: {f'torch.compile raises {facts.error}' if facts.error else f'{graphs}; {again}'}; "
        f"the forward ran {facts.runs} times",
        f"  pages:   {SITE}",
    ]


def where_to_start(report: Report, numbers: dict[int, int]) -> list[str]:
    """The findings with the most bytes, work and launches to save, where there are enough to choose from."""
    first = [str(numbers[id(one)]) for one in report.findings if id(one) in numbers][:3]
    if len(numbers) < 2:
        return []
    several = f"findings {', '.join(first)}" if len(numbers) > 3 else f"finding {first[0]}"
    return [f"  start with {several}: most to save, by bytes, work and launches counted"]


def text_of_finding(finding: Finding, number: int) -> list[str]:
    times = f" ({finding.times} times)" if finding.times > 1 else ""
    rows = [f"{number:3}. {finding.title}{times}"]
    rows += [f"     {line!s:40} {line.text}"[:WIDTH].rstrip() for line in finding.lines[:6]]
    if len(finding.lines) > 6:
        rows += [f"     and {len(finding.lines) - 6} more lines"]
    rows += [
        wrapped(f"why     {finding.evidence}", "     ", " " * 13),
        wrapped(f"change  {change_of(finding)}", "     ", " " * 13),
    ]
    return [*rows, f"     read    {place(finding.page)}"]


def change_of(finding: Finding) -> str:
    """The change, and what is known of it."""
    return f"{finding.change} ({finding.tried or 'not tried'})"


def text_of_no_help(report: Report) -> list[str]:
    """What was tried for nothing, in one line each."""
    rows = [f"{one.title}, {one.line}: {one.change}; {one.tried}" for one in report.no_help]
    return ["Tried, and no help", *(wrapped(row, "  ", "    ") for row in rows), ""] if rows else []


def text_of_trials(report: Report) -> list[str]:
    if not report.trials:
        return ["Nothing was tried: without a GPU the tool analyses only, unless --measure asks for trials."]
    trades = f"; {len(report.trades)} faster at the price of precision" if report.trades else ""
    rows = [f"Tried: {len(report.trials)} changes, {len(report.suggestions)} of them right and faster{trades}"]
    for trial in report.trials:
        sign = "+" if trial.suggested else "?" if trial.trade else "-"
        rows.append(wrapped(f"{sign} {trial.name}: {outcome(trial)}", "  ", "      "))
        if trial.suggested or trial.trade:
            rows.append(f"      {trial.code}   {place(trial.page)}")
    return rows


def outcome(trial: Trial) -> str:
    """What came of a trial, in a line."""
    if trial.refused:
        return f"refused, {trial.refused}"
    memory = f", {trial.memory:.2f} of the memory" if trial.memory is not None else ""
    gain = f"a step is {trial.ratio} faster{memory}; the first takes {trial.cold:.1f} s"
    if trial.errors is not None:
        before, after = trial.errors
        return f"{gain}; results are {after:.0e} from float64, before {before:.0e}: a trade for you to decide"
    return f"{gain}; error {trial.error:.2f} of the bound"


def text_of_verdict(verdict: Verdict) -> list[str]:
    rows = [str(verdict), ""]
    rows += [
        f"  {check.name}: {check.share:.2f} of the bound{'' if check.holds else '   WRONG'}"
        for check in verdict.checks[:40]
    ]
    if verdict.not_compared:
        rows.append(
            f"  {verdict.not_compared} parameters have no counterpart of the same name: their gradients were "
            f"not compared"
        )
    for name, (before, after) in verdict.times.items():
        rows.append(
            f"  {name}: {before.p50 * 1e3:.3f} ms before, {after.p50 * 1e3:.3f} ms after, {before.samples} samples each"
        )
    if verdict.cold:
        rows.append(
            f"  first step: {verdict.cold[0]:.2f} s before, {verdict.cold[1]:.2f} s after, compilation included"
        )
    if verdict.breaks:
        rows.append(f"  graph breaks: {verdict.breaks[0]} before, {verdict.breaks[1]} after")
    for name, peak in zip(("before", "after"), verdict.peaks, strict=True):
        rows.append(f"  peak {name}: {size(peak) if peak is not None else 'not known'}")
    return rows + text_of_limits(verdict.limits)


def wrapped(text: str, first: str, later: str) -> str:
    return textwrap.fill(
        text, WIDTH, initial_indent=first, subsequent_indent=later, break_long_words=False, break_on_hyphens=False
    )


def place(page: str) -> str:
    """Where a page stands on the site: "compiler/fusion.md#rows" is compiler/fusion/#rows."""
    path, _, anchor = page.partition("#")
    return f"{path.removesuffix('.md')}/{'#' + anchor if anchor else ''}"


def address(page: str) -> str:
    """Where a page stands."""
    return f"{SITE}{place(page)}"


# --8<-- [start:json]
def as_json(result: Report | Verdict) -> str:
    """For programs: all that is in a report, lines as file, number and text."""
    content = plain(result)
    if isinstance(result, Report):
        content |= {name: [trial.name for trial in getattr(result, name)] for name in ("suggestions", "trades")}
    else:
        content |= {"right": result.right, "verdict": str(result), "ratios": plain(result.ratios)}
    return json.dumps({"schema": 1, **content}, indent=1)


# --8<-- [end:json]


def plain(value: Any) -> Any:
    """Dataclasses, tuples and numbers as what JSON knows."""
    if dataclasses.is_dataclass(value):
        shown = [each.name for each in dataclasses.fields(value) if each.repr]  # a rewrite is code
        found = {name: plain(getattr(value, name)) for name in shown}
        if isinstance(value, Line):
            found |= {"text": value.text}
        if isinstance(value, Finding):
            found |= {"group": value.group, "page": address(value.page)}
        if isinstance(value, Profile):
            rows = ((plain(line), *seconds) for line, seconds in value.lines.items())
            found |= {"lines": [dict(zip(("line", "seconds", "at_ceiling"), row, strict=True)) for row in rows]}
        return found
    if isinstance(value, dict):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    if (isinstance(value, float) and value != value) or value in (float("inf"), float("-inf")):
        return None
    return value


COLOURS = {  # those of docs/theme/palette.json, so that the page stands alone: light, dark
    "paper": ("#fbfaf6", "#17181b"), "raised": ("#f4f1ea", "#1f2125"), "line": ("#dcd7ca", "#3a3c42"),
    "ink": ("#1e1f22", "#e8e4da"), "ink-soft": ("#585751", "#aeaba1"), "accent": ("#a33d0b", "#f29a5f"),
    "eager": ("#73716b", "#8f8d86"), "ours": ("#b5460f", "#f29a5f"), "warn": ("#8a5a00", "#e6bd62"),
}  # fmt: skip
STYLE = """
html { font-size: 118%; }
body { background: var(--paper); color: var(--ink); margin: 0 auto; padding: 2.5rem 1.2rem 5rem; max-width: 44rem;
  font-family: "Ridgepoint Serif", "Source Serif 4", Charter, Georgia, serif; line-height: 1.55; }
h1 { font-weight: 400; font-size: 2.1rem; line-height: 1.12; margin: 0 0 .4em; }
h2 { font-size: 1.2rem; margin: 2.4em 0 .5em; }
h3 { font-size: 1rem; margin: 1.8em 0 .3em; }
p { margin: .4em 0; }
a { color: var(--ink); text-decoration-color: var(--accent); }
code, pre, td.code { font-family: "Ridgepoint Mono", Iosevka, ui-monospace, Menlo, Consolas, monospace;
  font-size: .8rem; }
pre { background: var(--raised); padding: .6rem .8rem; white-space: pre-wrap; margin: .5em 0; }
h1, p, pre, td { overflow-wrap: anywhere; }
.soft { color: var(--ink-soft); }
table { border-collapse: collapse; margin: .8em 0; width: 100%; font-size: .86rem; }
td, th { text-align: left;
  padding: .25em .7em .25em 0; border-bottom: 1px solid var(--line); vertical-align: top; }
th { font-weight: 600; }
.gain { color: var(--ours); }
.refused { color: var(--ink-soft); }
.trade { color: var(--warn); }
.bar { display: inline-block; height: .6em; background: var(--eager); vertical-align: baseline; }
.wrong { color: var(--warn); font-weight: 600; }
@media (max-width: 40rem) {
  html { font-size: 100%; }
  table, tbody, tr, td { display: block; }
  th { display: none; }
  td { border: 0; padding-right: 0; }
  tr { border-bottom: 1px solid var(--line); padding: .3em 0; }
}
"""


def as_html(result: Report | Verdict) -> str:
    """One page that needs nothing else, in the site's type and colours, light and dark."""
    title, body = html_of_verdict(result) if isinstance(result, Verdict) else html_of_report(result)
    light, dark = (" ".join(f"--{name}: {pair[mode]};" for name, pair in COLOURS.items()) for mode in (0, 1))
    colours = (
        f":root {{ color-scheme: light dark; {light} }} @media (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}"
    )
    meta = '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
    head = f"<head>{meta}<title>{escaped(title)}</title><style>{colours}{STYLE}</style></head>"
    return f'<!doctype html>\n<html lang="en">{head}\n<body><main>\n{body}\n</main></body></html>\n'


def html_of_report(report: Report) -> tuple[str, str]:
    facts = report.facts
    found = sum(len(report.of(group)) for group in GROUPS)
    parts = [
        f"<h1>{escaped(facts.name)}: {found} finding{'s' * (found != 1)}</h1>",
        *(f'<p class="soft">{escaped(row.strip())}</p>' for row in [*summary(facts), *in_ms(report.step)]),
    ]
    if report.trials:
        parts += ["<h2>What was tried</h2>", trials_table(report)]
    for group, (title, _) in GROUPS.items():
        parts += [
            f"<h2>{title}</h2>",
            *(map(html_of_finding, report.of(group)) if report.of(group) else ["<p>Nothing found.</p>"]),
        ]
    if no_help := text_of_no_help(report)[1:]:
        parts += ["<h2>Tried, and no help</h2>", *(f"<p>{escaped(row)}</p>" for row in no_help if row)]
    if notes := report.notes:
        rows = "".join(
            f"<tr><td>{escaped(note.title)}</td><td "
            f'class="code">{escaped(note.line)}</td><td>{escaped(note.evidence)}</td></tr>'
            for note in notes
        )
        parts += ["<h2>Worth knowing</h2>", f"<table>{rows}</table>"]
    if report.profile:
        parts += ["<h2>Kernels</h2>", kernels_table(report.profile)]
    if report.limits:
        parts += ["<h2>Left out</h2>", *(f"<p>{escaped(limit)}</p>" for limit in report.limits)]
    return f"{facts.name}: {found} findings", "\n".join(parts)


def in_ms(step: Timing | None) -> list[str]:
    """How long a step takes, where it was timed."""
    if step is None:
        return []
    low, middle, high = (f"{seconds * 1e3:.3f}" for seconds in (step.p20, step.p50, step.p80))
    return [f"a step as it is: {middle} ms ({low} to {high})"]


def html_of_finding(finding: Finding) -> str:
    times = f' <span class="soft">{finding.times} times</span>' if finding.times > 1 else ""
    lines = "\n".join(f"{line!s:36} {line.text}" for line in finding.lines[:8])
    read = f'<a href="{address(finding.page)}">Read why</a>'
    return (
        f"<section><h3>{escaped(finding.title)}{times}</h3><pre>{escaped(lines)}</pre>"
        f"<p>{escaped(finding.evidence)}.</p><p><b>Change:</b> {escaped(change_of(finding))}. {read}</p></section>"
    )


def trials_table(report: Report) -> str:
    rows = []
    for trial in report.trials:
        kind = "gain" if trial.suggested else "trade" if trial.trade else "refused"
        rows.append(
            f'<tr class="{kind}"><td>{escaped(trial.name)}</td><td>{escaped(outcome(trial))}</td><td '
            f'class="code">{escaped(trial.code)}</td></tr>'
        )
    return f"<table><tr><th>change</th><th>outcome</th><th>how</th></tr>{''.join(rows)}</table>"


def kernels_table(profile: Profile) -> str:
    longest = profile.kernels[0].seconds if profile.kernels else 1.0
    rows = []
    for kernel in profile.kernels[:15]:
        bar = f'<span class="bar" style="width: {8 * kernel.seconds / longest:.2f}rem"></span>'
        rows.append(
            f"<tr><td>{bar}</td><td>{kernel.seconds * 1e6:.1f} us</td><td "
            f'class="code">{escaped(kernel.name[:60])}</td><td class="code">{escaped(kernel.line)}</td></tr>'
        )
    return f"<p>{escaped(in_words(profile)[0])}</p><table>{''.join(rows)}</table>"


def html_of_verdict(verdict: Verdict) -> tuple[str, str]:
    title = f"{verdict.names[0]} and {verdict.names[1]}"
    rows = "".join(
        f'<tr class="{"" if check.holds else "wrong"}"><td '
        f'class="code">{escaped(check.name)}</td><td>{check.share:.2f} of the bound</td></tr>'
        for check in verdict.checks
    )
    rest = "".join(f"<p>{escaped(row.strip())}</p>" for row in text_of_verdict(verdict)[2 + len(verdict.checks[:40]) :])
    return title, f"<h1>{escaped(title)}</h1><p>{escaped(verdict)}</p>{rest}<h2>Every result</h2><table>{rows}</table>"


def escaped(value: object) -> str:
    return html.escape(str(value))
