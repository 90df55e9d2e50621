"""The doors of the start page: jobs that lead to the pages which answer them, and the lines that fetch the code."""

from collections.abc import Iterable
from pathlib import Path

from docs.publish.place import Place
from snippets.environment import NEWEST, OLDEST

Job = tuple[str, str, str]  # in the reader's words, the page that answers it (maybe with an anchor), what is there


def jobs(root: Path, wanted: Iterable[Job]) -> str:
    """The jobs as a Markdown list. A job whose page does not stand yet has no line."""
    there = ((words, page, what) for words, page, what in wanted if _stands(root, page))
    lines = "\n".join(f"- [**{words}**<br>{what}]({page})" for words, page, what in there)
    return f'<div class="rp-jobs" markdown="1">\n\n{lines}\n\n</div>\n'


def _stands(root: Path, page: str) -> bool:
    return (root / "docs" / "pages" / page.partition("#")[0]).is_file()


def requirement() -> str:
    """What pip is asked for: the releases of torch that the code is written for."""
    (oldest, newest) = (".".join(map(str, version)) for version in (OLDEST, (NEWEST[0], NEWEST[1] + 1)))
    return f"torch>={oldest},<{newest}"


def clone(place: Place, command: str) -> str:
    """The lines that fetch torch and the repository and run something in the clone, as a block of Markdown."""
    folder = place.repository.rpartition("/")[2].removesuffix(".git")
    lines = [f'pip install "{requirement()}" numpy', f"git clone {place.repository}", f"cd {folder}", command]
    return "```sh\n" + "\n".join(lines) + "\n```\n"
