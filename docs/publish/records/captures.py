"""What scripts printed, as tests/benchmarks/captures.py stored it: by name, by script, and whether it is stale."""

from dataclasses import dataclass
from pathlib import Path

from docs.publish.errors import unknown
from docs.publish.place import MEASUREMENTS
from docs.publish.records import staleness
from docs.publish.records.schema import Capture, read
from tests.benchmarks.source import ROOT


@dataclass(frozen=True)
class Captures:
    """The stored captures by name."""

    by_name: dict[str, Capture]
    root: Path = ROOT

    @classmethod
    def load(cls, folder: Path = MEASUREMENTS / "captures", root: Path = ROOT) -> "Captures":
        """Every capture below a folder.

        Raises:
            PublishError: a file is no capture; the message names it.
        """
        found = [read(path, Capture, root) for path in sorted(folder.rglob("*.json"))]
        return cls({capture.name: capture for capture in found}, root)

    def named(self, name: str) -> Capture:
        """Raises: PublishError: there is none of that name."""
        if name not in self.by_name:
            raise unknown("capture", name, self.by_name)
        return self.by_name[name]

    def of_script(self, path: str) -> Capture:
        """All that a script printed, by the script's path.

        Raises:
            PublishError: it was not captured whole.
        """
        whole = {capture.sources.files[0]: capture for capture in self.by_name.values() if not capture.section}
        if path not in whole:
            raise unknown("output of", path, whole)
        return whole[path]

    def is_stale(self, capture: Capture) -> bool:
        """Whether the code that printed it has changed since."""
        return staleness.capture_is_stale(capture.sources, self.root)
