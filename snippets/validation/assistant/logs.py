"""A log of TORCH_LOGS, a folder of TORCH_TRACE, or what tlparse made of it: breaks, recompilations, skipped graphs."""

import json
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from .finders.readiness import BREAKS, CAUSES
from .graphs import author_line, breaks_of, recompiled_of
from .lines import Line
from .losses import Loss, Reading

HEADER = re.compile(r"[VIWEC]\d{4} \d\d:\d\d:\d\d\.\d+ \d+ ([^\]\s]+)\](.*)")  # (place in PyTorch, what follows)
MARKS = re.compile(r"\s?(\[\S*?\] ?)*")  # the graph's number, and the log's name
BEGINS = re.compile(r"Graph break |Recompiling function |torch\._dynamo hit config\.|skipping cudagraphs due to")
SKIPS = re.compile(r"skipping cudagraphs due to ([^\n.]*)")
LIMIT = re.compile(
    r"torch\._dynamo hit config\.(\w+) \((\d+)\)\s+function: '([^']+)' \((.*):(\d+)\)\s+last reason: (.*)"
)


@dataclass
class Compiled:
    """What a log tells of compilations.

    Attributes:
        entries: messages, as the log would print them.
        seconds: by compilation, such as "0/1"; only a structured trace has them.
        recompiled: entries with the compilation that each belongs to, where it is known.
    """

    entries: list[str] = field(default_factory=list)
    recompiled: list[tuple[str, str]] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)


# ---- reading --------------------------------------------------------------------------------------------------------


def read_log(text: str) -> Compiled | None:
    """A log's messages, whole; None if no line of the text is one of PyTorch's."""
    found, header = Compiled(), None
    for row in text.splitlines():
        match = HEADER.search(row)
        if match is None:
            continue
        marks = MARKS.match(match[2])[0]  # type: ignore[index]
        message, mine = match[2][len(marks) :] if marks.strip() else match[2][1:], (match[1], marks.strip())
        if message.startswith("{") and not found.entries and header is None:
            return structured(text)
        if header != mine or BEGINS.match(message):
            found.entries.append(message)
        else:
            found.entries[-1] += f"\n{message}"
        header = mine
    found.recompiled = [("", entry) for entry in found.entries if entry.startswith("Recompiling")]
    return found if header else None


def structured(text: str) -> Compiled:
    """A log of TORCH_TRACE: each line is JSON, and an indented text may follow."""
    found, files, frames = Compiled(), dict[int, str](), dict[str, str]()
    reasons: list[tuple[str, str]] = []
    for record, payload in records(text):
        compilation = f"{record.get('frame_id', '-')}/{record.get('frame_compile_id', '-')}"
        name = record.get("artifact", {}).get("name", "")
        if "str" in record:
            files[record["str"][1]] = record["str"][0]
        elif "dynamo_start" in record and record["dynamo_start"].get("stack"):
            last = record["dynamo_start"]["stack"][-1]
            frames[compilation] = f"{last['name']} in {files.get(last['filename'], last['filename'])}:{last['line']}"
        elif "compilation_metrics" in record:
            took = record["compilation_metrics"].get("entire_frame_compile_time_s")
            found.seconds[compilation] = found.seconds.get(compilation, 0.0) + (took or 0.0)
        elif name == "dynamo_graph_break_reason":
            found.entries.append(payload)
        elif name == "recompile_reasons":
            reasons.append((compilation, payload))
        elif SKIPS.search(payload) and name:
            found.entries.append(payload)
    found.recompiled = [(number, as_logged(payload, frames.get(number, ""))) for number, payload in reasons]
    return found


def records(text: str) -> Iterator[tuple[dict, str]]:
    """Each record of a structured log with its text."""
    record, payload = None, list[str]()
    for row in text.splitlines():
        if row.startswith("\t"):
            payload.append(row[1:])
        elif (match := HEADER.search(row)) and match[2].lstrip().startswith("{"):
            if record is not None:
                yield record, "\n".join(payload)
            payload = []
            try:
                record = json.loads(match[2])
            except ValueError:  # a log that was cut off
                record = None
    if record is not None:
        yield record, "\n".join(payload)


def as_logged(payload: str, frame: str) -> str:
    """The reasons of a recompilation in the form of the log."""
    try:
        reasons = json.loads(payload)
    except ValueError:
        reasons = [payload]
    reasons = [reasons] if isinstance(reasons, str) else reasons
    rows = "".join(f"\n    - {reason}" for reason in ("triggered by the following guard failure(s):", *reasons))
    return f"Recompiling function {frame or 'unknown in unknown:0'}{rows}"


def read_folder(folder: Path) -> Compiled | None:
    """All logs of a folder; of tlparse's output, whose copy of the log may be gone, the reasons in its files."""
    logs = [path for path in sorted(folder.rglob("*.log")) if path.is_file()]
    found = [one for path in logs if (one := read_log(path.read_text(encoding="utf-8", errors="replace")))]
    if found:
        return joined(found)
    breaks = [path.read_text(encoding="utf-8") for path in sorted(folder.rglob("*dynamo_graph_break_reason_*.txt"))]
    again = [
        (path.parent.name.strip("-").strip("_"), as_logged(path.read_text(encoding="utf-8"), ""))
        for path in sorted(folder.rglob("recompile_reasons_*.json"))
    ]
    return Compiled(breaks, again) if breaks or again or (folder / "compile_directory.json").exists() else None


def joined(several: Iterable[Compiled]) -> Compiled:
    """Those of several processes: a compilation's number is its own process's."""
    whole = Compiled()
    for number, one in enumerate(several):
        whole.entries += one.entries
        whole.recompiled += [(f"{number}: {at}" if at else "", entry) for at, entry in one.recompiled]
        whole.seconds |= {f"{number}: {at}": took for at, took in one.seconds.items()}
    return whole


# ---- what is said ---------------------------------------------------------------------------------------------------


def read_compiled(compiled: Compiled, name: str) -> Reading:
    """What stands out in a log: by seconds where it has them, then by how often."""
    losses = [*breaks(compiled), *recompilations(compiled), *skips(compiled), *limits(compiled)]
    order = sorted(losses, key=lambda one: (0.0 if math.isnan(one.seconds) else -one.seconds, -one.times))
    whole = sum(compiled.seconds.values())
    took = f", {whole:.2f} s of compilation" if compiled.seconds else ""
    counts = [
        f"{sum(one.times for one in losses if one.cause == cause)} {what}"
        for cause, what in (("graph-break", "graph breaks"), ("recompilation", "recompilations"))
    ]
    return Reading(f"{name}: {', '.join(counts)}{took}", order)


def breaks(compiled: Compiled) -> Iterator[Loss]:
    """The lines that break graphs, with how often the log has them."""
    found: dict[Line, list[str]] = defaultdict(list)
    for entry in compiled.entries:
        for one in breaks_of([entry]):
            line = next(
                (known for known in found if (known.file, known.number) == (one.line.file, one.line.number)), one.line
            )
            found[line].append(one.reason)
    for line, reasons in found.items():
        anchor, change = next(
            (cause for pattern, cause in CAUSES.items() if re.search(pattern, reasons[0], re.IGNORECASE)),
            ("library", "move the line out of what is compiled"),
        )
        yield Loss(
            "graph-break", line=line, times=len(reasons), title="a graph break", detail=reasons[0], change=change,
            page=f"{BREAKS}#{anchor}",
        )  # fmt: skip


def recompilations(compiled: Compiled) -> Iterator[Loss]:
    """The lines whose guards failed, with the seconds of the compilations that followed."""
    found: dict[Line, list[tuple[str, float]]] = defaultdict(list)
    for number, entry in compiled.recompiled:
        for one in recompiled_of([entry]):
            found[one.line].append((one.reason, compiled.seconds.get(number, math.nan)))
    for line, several in found.items():
        took = sum(seconds for _, seconds in several)
        named = line if line.number else None
        yield Loss(
            "recompilation", took, line=named, at_line=took, times=len(several), detail=f"failed: {several[0][0]}"
        )


def skips(compiled: Compiled) -> Iterator[Loss]:
    """Why no CUDA graph was recorded."""
    found: dict[tuple[str, Line | None], int] = defaultdict(int)
    for entry in compiled.entries:
        if match := SKIPS.search(entry):
            found[match[1].strip(), author_line(entry.partition("Found from")[2])] += 1
    for (reason, line), times in found.items():
        yield Loss("cuda-graph", line=line, times=times, detail=reason)


def limits(compiled: Compiled) -> Iterator[Loss]:
    """The functions that are compiled no more."""
    for entry in compiled.entries:
        if match := LIMIT.search(entry):
            limit, count, function, file, number, reason = match.groups()
            detail = f"{limit} {count}; failed: {re.sub(r'^[0-9/]+: ', '', reason.split('#')[0]).strip()}"
            yield Loss("limit", line=Line(file, int(number), function), times=1, detail=detail)
