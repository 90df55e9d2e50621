"""A page for programs that read, and for whoever links to it: as Markdown, and as a picture of its title."""

import base64
import html
import json
import re
import tomllib

import vl_convert

from docs.publish import kept, palette
from tests.benchmarks.source import ROOT

UNSEEN = re.compile(r'<(script|style|button|form)\b.*?</\1>|<a class="headerlink".*?</a>', re.S)
LISTING = re.compile(r"<pre\b[^>]*>(.*?)</pre>", re.S)
TORCH = re.compile(r"\btorch [^,]+")
RULES = tomllib.loads((ROOT / "docs/theme/markdown.toml").read_text(encoding="utf-8"))["rules"]
NOT_OF_ONE = "Where this page has numbers, the words or links beside them say where they were measured."
kept_pages, kept_pictures = kept.Kept("markdown"), kept.Kept("pictures")


def markdown(page: str, title: str, said: dict) -> str:
    """A page's HTML as Markdown: where its numbers are from, then all but what only a browser can show."""
    body = UNSEEN.sub("", page.rpartition("</h1>")[2])
    text = kept_pages.get(kept.key(body, RULES), lambda: _converted(body))
    head = measured(page), f"# {said.get('title') or title}", said.get("description")
    return "\n\n".join(filter(None, (*head, text))) + "\n"


def measured(page: str) -> str:
    """On which machines the numbers of a page were measured, with which torch, and when."""
    found = re.search(r'<script type="application/json" id="rp-evidence">(.*?)</script>', page, re.S)
    runs = [each for each in json.loads(found[1]).values() if "software" in each] if found else []
    where = {f"{run['machine']} with {torch[0]}": None for run in runs if (torch := TORCH.search(run["software"]))}
    days = sorted({run["date"][:10] for run in runs})
    dated = " to ".join(dict.fromkeys(days[:1] + days[-1:]))
    return f"Measured on {'; '.join(where)}; {dated}." if where else NOT_OF_ONE


def _converted(body: str) -> str:
    parts = LISTING.split(re.sub(r"<tr\b.*?</tr>", _row, body, flags=re.S))  # prose and code in turns
    said = [re.search(r"\b(?:language|hl)-(\w+)[^<>]*>\s*$", prose[-200:]) for prose in parts[::2]]
    for old, new in RULES:
        parts[::2] = [re.sub(old, new, prose, flags=re.S) for prose in parts[::2]]
    for at, language in enumerate(said[:-1]):
        code = re.sub("<[^>]*>", "", parts[2 * at + 1]).strip("\n")
        parts[2 * at + 1] = f"```{language[1] if language else ''}\n{code}\n```"
    return "\n\n".join(filter(None, (html.unescape(part).strip() for part in parts)))


def _row(row: re.Match[str]) -> str:
    """A line of a table, and below a head the line that makes it one; inside, the HTML stays."""
    cells = re.findall(r"<t[dh]\b[^>]*>(.*?)</t[dh]>", row[0], re.S)
    flat = [re.sub(r"</?(?:p|br|div)\b[^>]*>", " ", cell).replace("|", r"\|").split() for cell in cells]
    return f"\n| {' | '.join(map(' '.join, flat))} |" + ("" if "<td" in row[0] else "\n" + "|---" * len(cells) + "|")


def picture(drawing: str) -> bytes:
    """An SVG in the palette's light colours as PNG, which other sites show beside a link."""
    drawing = re.sub(r"var\(--rp-([\w-]+)\)", lambda name: palette.colours("light")[name[1]], drawing)
    known = kept.key(drawing, vl_convert.__version__)
    return base64.b64decode(kept_pictures.get(known, lambda: base64.b64encode(vl_convert.svg_to_png(drawing)).decode()))
