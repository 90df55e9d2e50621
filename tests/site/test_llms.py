"""What programs read of the built site: llms.txt, Markdown, all records, and what a link to a page shows."""

import html
import io
import json
import re
import struct
import zipfile
from collections.abc import Iterator

import pytest

from tests.site.conftest import ROOT, Site

LINK = re.compile(r"^- \[(.+?)\]\((\S+?)\)(?:: (.+))?$", re.M)
WHERE = re.compile(r"Measured on .+ with torch \d+\.\d+\.\S+; \d{4}-\d\d-\d\d( to \d{4}-\d\d-\d\d)?\.")
FENCED = re.compile(r"^```\w*\n.*?^```$", re.M | re.S)
SPAN = re.compile(r"`[^`]*`")
META = re.compile(r'<meta (?:property|name)="([\w:]+)" content="([^"]*)">')
NUMBER = re.compile(r'class="rp-number[^>]*>([^<]*)<')
PNG = b"\x89PNG\r\n\x1a\n"


def read_as_markdown(site: Site) -> dict[str, str]:
    """The Markdown of each page by the page's address."""
    found = {url: site.content(f"{site.prefix}{url}index.md") for url in site.pages if url != "404.html"}
    return {url: (text or b"").decode() for url, text in found.items()}


def faults(page: str, text: str) -> Iterator[str]:
    """What a page's Markdown lacks of its HTML, or still has of it."""
    first = text.partition("\n")[0]
    if '"software":"' in page and not WHERE.fullmatch(first):
        yield f"first line: {first[:80]}"
    if not re.search(r"^# \S", text, re.M):
        yield "no title"
    if '<link rel="alternate " type="text/markdown" href="index.md">' not in page:
        yield "no link"
    article = page[page.find("<article") : page.find("</article>")]
    if (listings := page.count("<pre")) != (blocks := len(FENCED.findall(text))):
        yield f"{listings} listings, {blocks} blocks of code"
    prose = SPAN.sub("", FENCED.sub("", text))
    if left := re.search(r"</?(?:a|div|p|table|td|span|svg|script)\b[^>]*>|\{\{ \w|--8<--", prose):
        yield f"left: {left[0][:60]}"
    numbers = {html.unescape(number).strip() for number in NUMBER.findall(article)}
    if lost := sorted(number for number in numbers if number not in text):
        yield f"lost: {', '.join(lost[:3])}"


def test_each_page_is_there_as_markdown(site: Site) -> None:
    texts = read_as_markdown(site)
    assert len(texts) > 80
    found = [
        f"{url or 'index.html'}: {fault}" for url, text in texts.items() for fault in faults(site.pages[url], text)
    ]
    assert not found, "\n".join(found)


def test_each_fault_of_markdown_is_found() -> None:
    listing = '<article><pre><code>a</code></pre><a class="rp-number" href="#">5 µs</a></article>{"software":"torch"}'
    found = [fault.partition(":")[0] for fault in faults(listing, "Measured\n\n<div>{{ gpu('a') }}\n")]
    assert found == ["first line", "no title", "no link", "1 listings, 0 blocks of code", "left", "lost"]


def in_order(nav: list) -> list[str]:
    """The pages that mkdocs.yml names, in their order."""
    values = [value for entry in nav for value in (entry.values() if isinstance(entry, dict) else [entry])]
    return [path for value in values for path in (in_order(value) if isinstance(value, list) else [value])]


def test_llms_lists_the_pages_in_the_order_of_the_navigation(site: Site) -> None:
    from mkdocs.config import load_config

    config = load_config(str(ROOT / "mkdocs.yml"))
    text = (site.content(f"{site.prefix}llms.txt") or b"").decode()
    assert re.match(rf"# {config.site_name}\n\n> \S.+\n\n\S.+\n\n## ", text), text[:300]
    assert re.findall("^## (.+)$", text, re.M) == [next(iter(entry)) for entry in config.nav]
    links = LINK.findall(text)
    assert len(links) == len(re.findall("^- ", text, re.M))
    named = [re.sub(r"(^|/)index$", r"\1", re.sub(r"\.(md|ipynb)$", "", path)) for path in in_order(config.nav)]
    listed = [link.partition(site.prefix)[2].removesuffix("index.md").rstrip("/") for _, link, _ in links]
    assert [url for url in listed if not url.startswith("results/machines/")] == [url.rstrip("/") for url in named]
    assert not [link for _, link, about in links if not about or not site.has(f"/{link.split('/', 3)[3]}")]


def shown_beside_a_link(site: Site, page: str) -> Iterator[str]:
    """What is missing where somebody links to a page."""
    said = dict(META.findall(page))
    for name in ("og:title", "og:description", "og:url", "og:image", "twitter:card"):
        if not said.get(name):
            yield f"no {name}"
    image = site.content(site.prefix + said.get("og:image", "").partition(site.prefix)[2]) or b""
    if not image.startswith(PNG) or struct.unpack(">II", image[16:24]) != (1200, 630):
        yield "no picture of 1200 × 630 pixels"


def test_each_page_has_what_is_shown_beside_a_link(site: Site) -> None:
    pages = {url: page for url, page in site.pages.items() if url != "404.html"}
    found = [
        f"{url or 'index.html'}: {fault}" for url, page in pages.items() for fault in shown_beside_a_link(site, page)
    ]
    assert not found, "\n".join(found)
    titles = dict(META.findall(pages["compiler/modes/"]))
    assert titles["og:title"] == "Choose a torch.compile mode"
    assert titles["og:image"].endswith("compiler/modes/card.png"), "each page has a picture of its own"


@pytest.mark.parametrize(
    ("page", "fault"),
    [
        ('<meta property="og:title" content="">', "no og:title"),
        ('<meta property="og:image" content="https://host/ridgepoint/llms.txt">', "no picture of 1200 × 630 pixels"),
    ],
)
def test_what_is_missing_beside_a_link_is_found(site: Site, page: str, fault: str) -> None:
    assert fault in list(shown_beside_a_link(site, page))


def test_the_archive_has_all_committed_records(site: Site) -> None:
    folder = ROOT / "docs" / "measurements"
    records = {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for kind in ("runs", "sweeps", "captures")
        for path in (folder / kind).rglob("*.json")
    }
    packed = zipfile.ZipFile(io.BytesIO(site.content(f"{site.prefix}results/records.zip") or b""))
    assert {name: packed.read(name) for name in packed.namelist()} == records
    assert all(json.loads(record) for record in records.values())
