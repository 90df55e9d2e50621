"""What an experiment found, as a notebook shows it: bars, generated kernels, what differs, and links to its files."""

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from pathlib import Path

from snippets.validation.equivalence import Agreement
from snippets.validation.timing import Timing

COLOURS = {  # the site's, and others where a notebook stands on its own
    "plain": "var(--rp-eager, #8a8a8a)",
    "compiled": "var(--rp-compile, #2d6cb5)",
    "ours": "var(--rp-ours, #b5460f)",
}


@dataclass(frozen=True)
class Report:
    """What an experiment found, by variant: errors where they can be stated, seconds where they mean something."""

    folder: Path
    agreements: Mapping[str, Agreement]
    timings: Mapping[str, Timing]
    roles: Mapping[str, str]

    def _repr_html_(self) -> str:
        """Milliseconds of each timed variant as bars, shortest first, in the site's colours; a notebook shows this."""
        times = sorted((timing.p50 * 1e3, name) for name, timing in self.timings.items())
        longest = times[-1][0]
        bars = "".join(
            f"<span>{escape(name)}</span><span style='display: flex; align-items: center; gap: 0.5em'>"
            f"<span style='width: {75 * ms / longest:.1f}%; height: 1.1em; background: {COLOURS[self.roles[name]]}'>"
            f"</span><b style='white-space: nowrap'>{ms:.3g} ms</b></span>"
            for ms, name in times
        )
        grid = "display: grid; grid-template-columns: max-content minmax(0, 1fr); gap: 0.45em 0.8em; max-width: 40em"
        return f"<div style='{grid}'>{bars}</div>"

    def code(self, variant: str) -> str:
        """The kernels that the compiler generated for a variant, without what surrounds them."""
        return (self.folder / "kernels" / f"{slug(variant)}.txt").read_text()

    def diff(self, variant: str, other: "Report", others: str) -> str:
        """What differs between the generated kernels of two variants, line by line; empty if nothing does."""
        one, two = self.code(variant).splitlines(), other.code(others).splitlines()
        return "\n".join(difflib.unified_diff(one, two, variant, others, lineterm="", n=1))


@dataclass(frozen=True)
class Listing:
    """The files of a folder's experiments; a notebook shows them as links, relative to the site's page."""

    files: tuple[str, ...]

    def _repr_html_(self) -> str:
        links = (f'<li><a href="../experiments/{name}"><code>{escape(name)}</code></a></li>' for name in self.files)
        return f"<ul>{''.join(links)}</ul>"


def listing(folder: Path, under: str = "") -> Listing:
    """What the experiments in a folder left, or those whose name begins with `under`."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return Listing(tuple(name for path in files if (name := path.relative_to(folder).as_posix()).startswith(under)))


def slug(name: str) -> str:
    """A variant's name as a file's: "F.silu, compiled" is "f-silu-compiled"."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
