"""Every link of every page leads to something: a file of the site, and an id in it, or what the page's viewer shows."""

import json
import re
from html.parser import HTMLParser
from pathlib import PurePosixPath
from urllib.parse import parse_qs, unquote, urljoin, urlsplit

import pytest

from tests.site.conftest import ROWS, Site, rows_of

BARE = re.compile(r'</?(?!script|style)[a-z][\w-]*(?: class="[^"]*")?>')  # a tag that names nothing, as most do
VIEWER = "compiled/"  # a fragment that begins so opens docs/theme/scripts/explorer.js


class Links(HTMLParser):
    """The ids of a page and what it refers to."""

    def __init__(self, html: str):
        super().__init__()
        self.ids: set[str] = set()
        self.targets: set[str] = set()
        self.viewer = ""  # the address of its data
        self.feed(BARE.sub("", html))

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        for name, value in attributes:
            if name in ("id", "name") and value:
                self.ids.add(value)
            elif name in ("href", "src", "data-copy-url") and value and tag != "base":
                self.targets.add(value)
            elif name == "data-explorer" and value:
                self.viewer = value
                self.targets.add(value)


def test_no_link_or_anchor_is_broken(site: Site) -> None:
    known = {url: Links(html) for url, html in (site.pages | site.rows).items()}
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
    shown = [below, *(f"{rows_of(below)}{case}.html" for case in parse_qs(there.query).get("rows", []))]
    if not all(map(site.has, shown)):
        return False
    if not there.fragment or there.fragment.startswith("__"):
        return True
    if there.fragment.startswith(VIEWER):
        return below in known and is_shown(site, base + below, known[below].viewer, there.fragment)
    return any(url in known and unquote(there.fragment) in known[url].ids for url in shown)


def is_shown(site: Site, page: str, viewer: str, fragment: str) -> bool:
    """Whether the viewer of a page has all that a deep link names.

    The link is compiled/<configuration>/<kernel>/<target>/<left form>/<right form>/L<line>, of which the end may be
    missing; <right form> may be <form>@<kernel>.
    """
    data = site.content(urlsplit(urljoin(page, viewer)).path) if viewer else None
    if data is None:
        return False
    parts = [unquote(part) for part in fragment.removeprefix(VIEWER).split("/")]
    if len(parts) > 6 or not all(parts):
        return False
    id_, name, target, left, right, line = parts + [""] * (6 - len(parts))
    configurations = [one for one in json.loads(data)["configurations"] if one["id"] == id_]
    kernels = {kernel["name"]: kernel for one in configurations for kernel in one["kernels"]}
    right, _, beside = right.partition("@")
    if len(parts) == 1:
        return bool(configurations)
    for form, kernel in ((left, name), (right, beside or name)):
        if kernel not in kernels:
            return False
        source, targets = kernels[kernel]["source"], kernels[kernel]["targets"]
        if target and target not in targets:
            return False
        if form and form not in {source["form"], *targets[target]["forms"]}:
            return False
    if not line:
        return True
    source = kernels[name]["source"]
    text = site.content(urlsplit(urljoin(urljoin(page, viewer), source["url"])).path) or b""
    number = re.fullmatch(r"L(\d+)", line)
    return bool(number) and 1 <= int(number[1]) <= len(text.splitlines())


@pytest.fixture(scope="module")
def deep(site: Site) -> list[str]:
    """A link into a viewer, in parts: configuration, kernel, target, forms and a line of the source."""
    index = json.loads(site.content(f"{site.prefix}compiled/softmax/index.json") or b"")
    configuration = index["configurations"][0]
    kernel = configuration["kernels"][0]
    return [configuration["id"], kernel["name"], "sm_90", "python", "sass", f"L{kernel['source']['last']}"]


@pytest.mark.parametrize("parts", [1, 2, 3, 4, 5, 6])
def test_a_deep_link_leads_to_what_the_viewer_has(site: Site, deep: list[str], parts: int) -> None:
    page = "kernels/softmax/"
    known = {page: Links(site.html(page)), "": Links(site.html(""))}
    fragment = "/".join(deep[:parts])
    assert leads(site, known, page, f"#compiled/{fragment}")
    assert leads(site, known, "", f"{page}#compiled/{fragment}")
    assert not leads(site, known, "", f"#compiled/{fragment}"), "the page has no viewer"
    wrong = "L99999" if parts == 6 else "none"
    assert not leads(site, known, page, "#compiled/" + "/".join([*deep[: parts - 1], wrong]))
    assert not leads(site, known, page, "#compiled/" + "/".join([*deep[:parts], *[""] * (6 - parts), "more"]))


def test_a_link_to_a_row_leads_to_a_case_that_the_machines_page_loads(site: Site) -> None:
    file, case = next((url, Links(html)) for url, html in site.rows.items())
    known, name = {file: case}, PurePosixPath(file).stem
    page = file.replace(ROWS, "results/machines/").removesuffix(f"{name}.html")
    row = min(id_ for id_ in case.ids if id_.startswith(name))
    assert leads(site, known, "", f"{page}?rows={name}#{row}") and leads(site, known, "", f"{page}?rows={name}")
    for wrong in (f"?rows={name}#{row}s", f"?rows={name}s#{row}", f"?rows={name}s", f"#{row}"):
        assert not leads(site, known, "", f"{page}{wrong}")


def test_the_links_of_rows_lead_to_the_same_places_from_the_page_that_loads_them(site: Site) -> None:
    for file, html in site.rows.items():
        page = file.rpartition("/")[0].replace(ROWS, "results/machines/") + "/"
        for target in Links(html).targets:
            assert urljoin(f"//site/{file}", target) == urljoin(f"//site/{page}", target)


def test_the_stylesheets_refer_to_files_that_exist(site: Site) -> None:

    broken = []
    for sheet in (site.folder / "stylesheets").glob("*.css"):
        for target in re.findall(r'url\("([^"]+)"\)', sheet.read_text()):
            if not (sheet.parent / target).exists():
                broken.append(f"{sheet.name}: {target}")
    assert not broken
