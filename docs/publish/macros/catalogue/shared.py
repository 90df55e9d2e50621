"""What all macros of a page share: what is stored, and where the page stands."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from docs.publish.errors import PublishError
from docs.publish.evidence import Quantity, Shown
from docs.publish.macros import points
from docs.publish.macros.page import Page
from docs.publish.records.asked import script_of
from docs.publish.records.captures import Capture, Captures
from docs.publish.records.store import Store
from tests.benchmarks.source import ROOT

Names = str | Sequence[str]  # a name, or several


class Shared:
    """A page's macros, on what is stored."""

    def __init__(self, store: Store, captures: Captures, page: Page, root: Path = ROOT):
        self._root = root
        self._store = store.of(str(page.said.get("measured_on", "")))
        self._captures = captures
        self._page = page
        self._evidence = page.evidence

    def _named(self, at: Names, case: str, clock: str = "") -> dict[str, Any]:
        """What some named points share, and their shapes; nothing where none is named.

        Raises:
            PublishError: they differ in direction, dtype or clock.
        """
        found = [points.at(self._root, case or self._page.case, name, clock) for name in listed(at) if name]
        shared = {(one.direction, one.dtype, one.mode) for one in found}
        if len(shared) > 1:
            raise PublishError(f"at: expected points of one direction, dtype and clock, got {', '.join(listed(at))}")
        return {
            **{name: value for one in shared for name, value in zip(("direction", "dtype", "mode"), one, strict=True)},
            **({"shape": [str(one.shape) for one in found]} if found else {}),
        }

    def _shown(self, quantity: Quantity) -> Shown:
        return Shown(quantity, self._evidence)

    def _printed(self, section: str, of: str, on: str = "") -> Capture:
        """A section of what the page's own script printed, or the one that is named."""
        return self._captures.find(of or script_of(self._page.place.path), section, on)

    def _macros(self) -> dict[str, Callable]:
        names = [name for name in dir(self) if not name.startswith("_") and name != "all"]
        return {name: getattr(self, name) for name in names}


def numbers_of(macros: type) -> list[str]:
    """The macros that give a number, by name."""
    returned = {
        name: getattr(macros, name).__annotations__.get("return") for name in dir(macros) if not name.startswith("_")
    }
    return [name for name, what in returned.items() if what in (Shown, Shown | str)]


def listed(names: Names) -> list[str]:
    return [names] if isinstance(names, str) else list(names)
