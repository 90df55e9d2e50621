"""How many planted faults the assistant finds at their lines, and how many clean twins it accuses.

Run `python -m tests.snippets.validation.planted.counted`.
"""

from pathlib import Path
from typing import NamedTuple
from unittest import mock

import torch

from snippets.validation.assistant import found as finding
from snippets.validation.assistant.found import find
from snippets.validation.assistant.graphs import Captured
from snippets.validation.assistant.trace import Trace
from tests.snippets.validation.planted import held_out
from tests.snippets.validation.planted.seen import CASES, evidence, faults, hits, twin, with_fault

Evidence = tuple[Trace, Captured]


class Row(NamedTuple):
    """What became of a module with a fault, and of its clean twin."""

    name: str
    found: str
    alarms: str


def row(name: str, faulty: Evidence, clean: Evidence) -> Row:
    """Judge a pair: a fault is found if a finding of its kind names its line."""
    found, alarms = hits(find(*faulty)), faults(find(*clean))
    first = f"{found[0].kind} at {Path(found[0].line.file).name}:{found[0].line.number}" if found else "missed"
    return Row(name, first, ", ".join(f"{one.kind} at {one.line.number}" for one in alarms) or "nothing")


def needed(faulty: Evidence) -> str:
    """The functions without which a fault is missed: what finds it, and no accident."""
    names = []
    for finder in [each for each in finding.FINDERS if hits(each(*faulty))]:
        left = tuple(each for each in finding.FINDERS if each is not finder)
        with mock.patch.object(finding, "FINDERS", left):
            names += [] if hits(find(*faulty)) else [finder.__name__]
    return ", ".join(names) or "nothing"


def counted(rows: list[Row]) -> str:
    found, alarms = (sum(one[place] != none for one in rows) for place, none in ((1, "missed"), (2, "nothing")))
    return f"{found:>9} of {len(rows)}{alarms:>22} of {len(rows)}"


def main() -> None:
    """Print all pairs, and then the sums."""
    torch.set_num_threads(1)  # tiny modules are not worth a second thread
    torch._dynamo.guards.profile_guard_manager = lambda *_: 0.0  # it times guards for a log, 0.06 s for each graph
    planted = [row(name, with_fault(name), twin(name)) for name in CASES]
    held = [row(name, evidence(faulty), evidence(clean)) for name, (faulty, clean) in held_out.CASES.items()]
    for title, which in (("planted", planted), ("held out", held)):
        print(f"==== {title}")
        print(f"{'module':24}{'fault':40}on its twin")
        for one in which:
            print(f"{one.name:24}{one.found:40}{one.alarms}")
    print("==== needed")
    for name in CASES:
        print(f"{name:24}{needed(with_fault(name))}")
    print("==== counted")
    print(f"{'':34}{'found':>15}{'false alarms on twins':>28}")
    print(f"{'known while the tool was written':34}{counted(planted)}")
    print(f"{'held out':34}{counted(held)}")


if __name__ == "__main__":
    main()
