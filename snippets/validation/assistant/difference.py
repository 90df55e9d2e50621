"""Two reports, of before and after a change: what is worse, and what is better."""

import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

from .clock import Timing
from .findings import size
from .subject import Refused, one_line
from .verdict import Ratio

MORE = 0.01  # of memory that may be added: on a GPU the allocator rounds
WORSE, BETTER, OTHER = "worse", "better", "other"
Key = Callable[[dict], tuple]


@dataclass(frozen=True)
class Difference:
    """One thing that changed; OTHER is what says how far the two can be compared."""

    word: str
    what: str

    @property
    def worse(self) -> bool:
        return self.word == WORSE

    def __str__(self) -> str:
        return f"{self.word:6}  {self.what}"


def read(file: Path) -> dict[str, Any]:
    """A report that --json wrote.

    Raises:
        Refused: there is none.
    """
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise Refused(f"{file} cannot be read: {error.strerror}") from None
    except ValueError:
        raise Refused(f"{file} is not JSON") from None
    if not isinstance(content, dict) or content.get("schema") != 1 or not {"facts", "checks"} & content.keys():
        raise Refused(f"{file} is no report of this version: write it with --json")
    return content


def difference(before: dict[str, Any], after: dict[str, Any]) -> list[Difference]:
    """What the second report has that the first has not, what is worse in front.

    Raises:
        Refused: one is of a module, the other of a changed version; or something is missing in one.
    """
    if ("facts" in before) != ("facts" in after):
        raise Refused("one report is of a module, the other of --against: they say different things")
    parts = (of_findings, of_capture) if "facts" in before else (of_checks,)
    try:
        found = [one for part in (*parts, of_memory, of_times, of_limits) for one in part(before, after)]
    except (LookupError, TypeError, AttributeError) as error:
        raise Refused(f"one of the two is no whole report: {type(error).__name__}: {one_line(error)}") from None
    return sorted(found, key=lambda one: (WORSE, BETTER, OTHER).index(one.word))


def of_findings(before: dict, after: dict) -> Iterator[Difference]:
    """By kind, file and the text of the line, since numbers shift; then by function, since a line may be edited."""
    old, new = (
        [one for one in report["findings"] if one["weight"] == "finding" for _ in range(one["times"])]
        for report in (before, after)
    )
    for key in (by_text, by_function):
        old, new = without(old, new, key), without(new, old, key)
    for word, left in ((WORSE, new), (BETTER, old)):
        for told, times in Counter(map(in_words, left)).items():
            yield Difference(
                word, f"{told}{f' ({times} times)' if times > 1 else ''}{'' if word is WORSE else ': gone'}"
            )


def by_text(finding: dict) -> tuple:
    line = finding["lines"][0]
    return finding["kind"], PurePath(line["file"]).name, line["text"]


def by_function(finding: dict) -> tuple:
    line = finding["lines"][0]
    return finding["kind"], PurePath(line["file"]).name, line["function"]


def without(some: list[dict], others: list[dict], key: Key) -> list[dict]:
    """Those that have no counterpart, each of the others being one's only."""
    there, left = Counter(map(key, others)), []
    for one in some:
        if there[key(one)]:
            there[key(one)] -= 1
        else:
            left.append(one)
    return left


def in_words(finding: dict) -> str:
    line = finding["lines"][0]
    return f"{finding['title']}, {PurePath(line['file']).name}:{line['number']}: {line['text']}"


def of_capture(before: dict, after: dict) -> Iterator[Difference]:
    """Whether torch.compile still takes the module."""
    old, new = before["facts"]["error"], after["facts"]["error"]
    if bool(old) != bool(new):
        yield Difference(
            WORSE if new else BETTER, f"torch.compile raises {new}" if new else "torch.compile raises no more"
        )


def of_checks(before: dict, after: dict) -> Iterator[Difference]:
    """Whether the changed module is right."""
    if before["right"] != after["right"]:
        yield Difference(BETTER if after["right"] else WORSE, after["verdict"].partition(";")[0])


def of_memory(before: dict, after: dict) -> Iterator[Difference]:
    for name, old, new in zip(MEMORY, memory(before), memory(after), strict=True):
        if old is not None and new is not None and abs(new - old) > MORE * old:
            yield Difference(WORSE if new > old else BETTER, f"{name}: {size(new)}, before {size(old)}")


MEMORY = ("parameters", "peak of a step")


def memory(report: dict) -> tuple[int | None, int | None]:
    if facts := report.get("facts"):
        return facts["parameters"], facts["peak"]
    return None, report["peaks"][1]


def of_times(before: dict, after: dict) -> Iterator[Difference]:
    """Steps are slower or faster where their percentiles do not overlap, on the same device."""
    devices = [report.get("facts", report)["device"] for report in (before, after)]
    old, new = times(before), times(after)
    if devices[0] != devices[1]:
        yield Difference(OTHER, f"times are not compared: {devices[0]} before, {devices[1]} after")
        return
    for name in old.keys() - new.keys():
        yield Difference(OTHER, f"the {name} was timed before, and is not now")
    for name in [name for name in old if name in new]:
        ratio = Ratio.of(old[name], new[name])
        if ratio.word != "as fast":
            told = " ms, before ".join(f"{one.p50 * 1e3:.3f}" for one in (new[name], old[name]))
            yield Difference(WORSE if ratio.word == "slower" else BETTER, f"{name} {ratio.word}: {told} ms")


def times(report: dict) -> dict[str, Timing]:
    if "facts" in report:
        return {"step": Timing(**report["step"])} if report.get("step") else {}
    return {name: Timing(**after) for name, (_, after) in report["times"].items()}


def of_limits(before: dict, after: dict) -> Iterator[Difference]:
    """What only one of the two could not find out: a report that knows less must not pass for a better one."""
    old, new = ({limit.partition(":")[0]: limit for limit in report["limits"]} for report in (before, after))
    yield from (Difference(WORSE, f"left out: {limit}") for what, limit in new.items() if what not in old)
    yield from (Difference(OTHER, f"left out before: {limit}") for what, limit in old.items() if what not in new)
