"""A page that was found faultless is not visited again while it is served the same: a pytest plugin.

.cache/site-pages has a file for each page: a digest, and the paths that the page asked for. The digest is of all that
was served, of the code that visits and of the browser. Of the pages that are the same a few are visited nevertheless,
drawn at random; `--fresh` visits all. The run's summary counts those that were left out.
"""

import hashlib
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import pytest

AGAIN = 0.05  # of the pages that are the same
LEFT_OUT = "pages left out"


@dataclass
class Visited:
    """The pages found faultless, by address.

    Attributes:
        folder: where they are kept.
        served: the content at a path of the site.
        method: names the code that visits, and the browser.
        run: in which nothing that an earlier one found counts; empty where it does.
    """

    folder: Path
    served: Callable[[str], bytes | None]
    method: str
    again: float = AGAIN
    run: str = ""

    def faultless(self, url: str) -> bool:
        """Whether this very page was found so; of those some are drawn that count as others."""
        try:
            known, *asked = self._file(url).read_text(encoding="utf-8").splitlines()
        except (OSError, ValueError):
            return False
        return known == self._digest(asked) and random.SystemRandom().random() >= self.again

    def keep(self, url: str, asked: Iterable[str], faultless: bool) -> None:
        """Remember a visit: whether it found no fault, and the paths that were asked for."""
        file = self._file(url)
        file.unlink(missing_ok=True)
        if faultless:
            paths = sorted(set(asked))
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text("\n".join([self._digest(paths), *paths]), encoding="utf-8")

    def looks(self) -> set[str]:
        """Those that had enough contrast on a page without faults, whichever process visited it."""
        try:
            return set(self._looks.read_text(encoding="utf-8").split())
        except OSError:
            return set()

    def keep_looks(self, looks: Iterable[str]) -> None:
        """Remember more of them, in lines that are written at once, for several processes visit pages."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with self._looks.open("ab", buffering=0) as lines:
            lines.write("".join(f"{look}\n" for look in looks).encode())

    @property
    def _looks(self) -> Path:
        return self.folder / f"looks of {hashlib.sha256((self.method + self.run).encode()).hexdigest()[:16]}"

    def _file(self, url: str) -> Path:
        return self.folder / (url.strip("/").replace("/", "+") or "index")

    def _digest(self, asked: list[str]) -> str:
        found = hashlib.sha256(self.method.encode())
        for path in asked:
            found.update(f"\0{path}\0".encode() + hashlib.sha256(self.served(path) or b"").digest())
        return found.hexdigest()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports = terminalreporter.getreports("passed") + terminalreporter.getreports("failed")
    if count := sum(dict(report.user_properties).get(LEFT_OUT, 0) for report in reports if report.when == "call"):
        terminalreporter.write_line(f"{count} pages of the site are the same as when they passed; --fresh visits them")
