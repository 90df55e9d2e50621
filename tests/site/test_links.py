"""Every link of every page leads to something: a file of the site, and an id in it."""

from html.parser import HTMLParser
from urllib.parse import unquote, urljoin, urlsplit

from tests.site.conftest import Site


class Links(HTMLParser):
    """The ids of a page and what it refers to."""

    def __init__(self, html: str):
        super().__init__()
        self.ids: set[str] = set()
        self.targets: set[str] = set()
        self.feed(html)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        for name, value in attributes:
            if name in ("id", "name") and value:
                self.ids.add(value)
            elif name in ("href", "src", "data-copy-url") and value and tag != "base":
                self.targets.add(value)


def test_no_link_or_anchor_is_broken(site: Site) -> None:
    known = {url: Links(html) for url, html in site.pages.items()}
    broken = [
        f"{url or 'index.html'}: {target}"
        for url, page in known.items()
        for target in page.targets
        if not leads(site, known, url, target)
    ]
    assert not broken, "links that lead nowhere:\n" + "\n".join(sorted(broken))


def leads(site: Site, known: dict[str, Links], page: str, target: str) -> bool:
    """Whether a link leads to something; other hosts are taken at their word."""
    base = f"http://site{site.prefix}"
    there = urlsplit(urljoin(base + page, target))
    if there.scheme not in ("http", "https") or there.netloc != "site":
        return True
    below = there.path.removeprefix(site.prefix)
    if site.content(there.path) is None:
        return False
    ids = known[below].ids if below in known else set()
    return not there.fragment or there.fragment.startswith("__") or unquote(there.fragment) in ids


def test_the_stylesheets_refer_to_files_that_exist(site: Site) -> None:
    import re

    broken = []
    for sheet in (site.folder / "stylesheets").glob("*.css"):
        for target in re.findall(r'url\("([^"]+)"\)', sheet.read_text()):
            if not (sheet.parent / target).exists():
                broken.append(f"{sheet.name}: {target}")
    assert not broken
