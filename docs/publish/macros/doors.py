"""Ways into the site: jobs that lead to the pages which answer them, paths through pages, and the first commands."""

import posixpath
import re
from collections.abc import Iterable
from pathlib import Path

from docs.publish.markdown import pages, scripts
from docs.publish.place import Place
from snippets.environment import NEWEST, OLDEST

Job = tuple[str, str, str]  # in the reader's words, the page that answers it (maybe with an anchor), what is there


def jobs(wanted: Iterable[Job]) -> str:
    """The jobs as a Markdown list."""
    lines = "\n".join(f"- [**{words}**<br>{what}]({page})" for words, page, what in wanted)
    return f'<div class="rp-jobs" markdown="1">\n\n{lines}\n\n</div>\n'


Leg = tuple[str, str, str]  # a page's name, its file (maybe with an anchor), and what the reader does there


def route(root: Path, place: Place, legs: Iterable[Leg]) -> str:
    """A path through pages as a Markdown list, with the minutes that each takes to read, and their sum."""
    lines, total = [], 0
    for name, page, what in legs:
        source = re.sub(r"\.ipynb$", ".py", page.partition("#")[0])  # a notebook is written as a script
        text = (root / "docs" / "pages" / source).read_text(encoding="utf-8")
        minutes = pages.minutes(_prose(text) if page.endswith(".ipynb") else text)
        total += minutes
        link = posixpath.relpath(page, posixpath.dirname(place.path) or ".")
        lines.append(f"1. [**{name}**]({link}), {minutes} {'minute' if minutes == 1 else 'minutes'}: {what}")
    hours, rest = divmod(total, 60)
    spent = [f"{hours} {'hour' if hours == 1 else 'hours'}"] * bool(hours) + [f"{rest} minutes"] * bool(rest)
    return "\n".join(lines) + f"\n\nTo read all takes {' and '.join(spent)}.\n"


def _prose(script: str) -> str:
    """The cells of a notebook's script that are no code."""
    cells = re.split(r"^# %%", script, flags=re.MULTILINE)
    return "\n".join(cell for cell in cells if cell.startswith(" [markdown]"))


def requirement() -> str:
    """What pip is asked for: the releases of torch that the code is written for."""
    (oldest, newest) = (".".join(map(str, version)) for version in (OLDEST, (NEWEST[0], NEWEST[1] + 1)))
    return f"torch>={oldest},<{newest}"


def fetch(place: Place, source: str) -> str:
    """The line that fetches a script of this site and runs it, as a block of Markdown."""
    path = scripts.served(source)
    return f"```sh\ncurl -O {place.site_url}{path} && python {posixpath.basename(path)}\n```\n"


def clone(place: Place, command: str) -> str:
    """The lines that fetch torch and the repository and run something in the clone, as a block of Markdown."""
    folder = place.repository.rpartition("/")[2].removesuffix(".git")
    lines = [f'pip install "{requirement()}" numpy', f"git clone {place.repository}", f"cd {folder}", command]
    return "```sh\n" + "\n".join(lines) + "\n```\n"
