"""What scripts printed, as tests/benchmarks/captures.py stored it: by script, device and section."""

from dataclasses import dataclass
from pathlib import Path

from docs.publish.errors import PublishError, unknown
from docs.publish.place import MEASUREMENTS
from docs.publish.records import staleness
from docs.publish.records.schema import Printed, Run, read
from tests.benchmarks import captures
from tests.benchmarks.source import ROOT

DEVICES = {"gpu": "cuda", "cpu": "cpu"}  # as pages name them; the first that has a section is shown


@dataclass(frozen=True)
class Capture:
    """A section of what a script printed, with the run that printed it."""

    script: str
    device: str
    section: str
    content: str
    run: Run

    @property
    def name(self) -> str:
        """For messages: "compiler/modes 'table'"."""
        return f"{self.script} {self.section!r}" if self.section else self.script

    @property
    def file(self) -> str:
        """The script's file."""
        return captures.source_of(self.script)

    @property
    def record(self) -> str:
        """Where it is stored."""
        return captures.path_of(self.script, self.device).relative_to(ROOT).as_posix()


@dataclass(frozen=True)
class Captures:
    """What is stored, by script and device."""

    files: dict[tuple[str, str], Printed]
    root: Path = ROOT

    @classmethod
    def load(cls, folder: Path = MEASUREMENTS / "captures", root: Path = ROOT) -> "Captures":
        """All that is stored below a folder.

        Raises:
            PublishError: a file does not hold what a script printed; the message names it.
        """
        found = {}
        for path in sorted(folder.rglob("*.json")):
            printed = read(path, Printed, root, captures.SCHEMA)
            if path != captures.path_of(printed.script, printed.device, folder):
                raise PublishError(f"{path.relative_to(root)}: expected another file for {printed.script}")
            found[printed.script, printed.device] = printed
        return cls(found, root)

    def find(self, script: str, section: str, on: str = "") -> Capture:
        """A section of what a script printed: of a GPU where one is stored, else of a CPU, or of the one that is named.

        Raises:
            PublishError: there is none; the message names those that there are.
        """
        if on and on not in DEVICES:
            raise unknown("on", on, DEVICES)
        devices = [DEVICES[on]] if on else DEVICES.values()
        stored = [self.files[script, device] for device in devices if (script, device) in self.files]
        if not stored:
            raise unknown("output of", script, sorted({name for name, device in self.files if device in devices}))
        for printed in stored:
            if section in printed.contents:
                return self.capture(printed, section)
        known = (name or '""' for printed in stored for name in printed.contents)
        what = f"output of {script}{f' on the {on.upper()}' if on else ''}: section"
        again = f"; if the script prints it now: nox -s record -- {script}"
        raise PublishError(f"{unknown(what, section, known)}{again}")

    @staticmethod
    def capture(printed: Printed, section: str) -> Capture:
        """A section of a file, with its run."""
        found = printed.contents[section]
        return Capture(printed.script, printed.device, section, found.content, printed.runs[found.run])

    def is_stale(self, capture: Capture) -> bool:
        """Whether the code that a GPU ran has changed since. What a CPU prints is held against the script by a test."""
        sources = capture.run.sources
        return sources is not None and staleness.script_is_stale(capture.file, sources, self.root)
