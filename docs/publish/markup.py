"""Tables as HTML for generated pages."""

from collections.abc import Iterable, Sequence
from html import escape

FRONT_MATTER = "---\ntitle: {title}\ndescription: {description}\nsearch:\n  exclude: true\n---\n\n# {title}\n\n"
NONE = "–"


def front_matter(title: str, description: str) -> str:
    """The head of a generated page, which search leaves out."""
    return FRONT_MATTER.format(title=title, description=description)


def table(
    head: Sequence[str], rows: Iterable[tuple[str, Sequence[str]]], words: bool = False, remark: bool = False
) -> str:
    """A table in a box that scrolls sideways by itself.

    Args:
        rows: the id of each line, or "", and its cells as HTML.
        words: the cells are words rather than numbers, and stand on the left.
        remark: the last cell of each line is words, and may wrap.
    """
    kinds = "rp-table" + " rp-words" * words + " rp-remark" * remark
    heads = "".join(f'<th scope="col">{cell}</th>' for cell in head)
    lines = "".join(
        f'<tr{f" id={chr(34)}{anchor}{chr(34)}" if anchor else ""}><th scope="row">{cells[0]}</th>'
        + "".join(f"<td>{cell}</td>" for cell in cells[1:])
        + "</tr>"
        for anchor, cells in rows
    )
    return (
        f'<div class="rp-scroll"><table class="{kinds}">'
        f"<thead><tr>{heads}</tr></thead><tbody>{lines}</tbody></table></div>\n\n"
    )


def facts(pairs: Iterable[tuple[str, str]]) -> str:
    """A table of names and values (HTML); pairs without a value are left out."""
    lines = "".join(f'<tr><th scope="row">{name}</th><td>{value}</td></tr>' for name, value in pairs if value)
    return f'<div class="rp-scroll"><table class="rp-table rp-words"><tbody>{lines}</tbody></table></div>\n\n'


def link(text: str, href: str) -> str:
    """A link; the text is escaped."""
    return f'<a href="{escape(href)}">{escape(text)}</a>'


def code(text: str) -> str:
    return f"<code>{escape(text)}</code>"
