"""Renders a page's macros: {{ gpu(...) }} and the others that `Macros` offers. Plain Python and Jinja2, no MkDocs.

Code survives: fenced blocks and code spans are left as they are, whatever braces they hold.
"""

import re
import textwrap
import traceback

import jinja2

from docs.publish.errors import PublishError
from docs.publish.macros.catalogue import Macros
from docs.publish.macros.page import Page
from docs.publish.markdown.fences import code_in, replaced

NAME = "<page>"
ENVIRONMENT = jinja2.Environment(
    undefined=jinja2.StrictUndefined,
    keep_trailing_newline=True,
    autoescape=False,
    comment_start_string="{# ",  # {#anchor} is an attribute list
)
KEPT = re.compile("\ue000(\\d+)\ue001\n*")
BLOCK = re.compile("^(?P<before>[ \t]*)\ue002(?P<index>\\d+)\ue003", re.M)


def render(text: str, macros: Macros, page: Page, line: int = 1) -> str:
    """A page's Markdown with its macros replaced.

    Args:
        line: the line of the file on which `text` starts (after the front matter).

    Raises:
        PublishError: a macro is unknown or misused; the message begins with the page and the line.
    """
    kept: list[str] = []

    def keep(code: str) -> str:
        kept.append(code)
        return f"\ue000{len(kept) - 1}\ue001" + "\n" * code.count("\n")

    hidden = replaced(text, code_in(text, page.place.path, line), keep)
    try:
        template = jinja2.Template.from_code(ENVIRONMENT, ENVIRONMENT.compile(hidden, filename=NAME), macros.all())
        rendered = template.render()
    except jinja2.TemplateSyntaxError as error:
        raise PublishError(f"{page.place.path}:{line + error.lineno - 1}: {error.message}") from error
    except (jinja2.TemplateError, ValueError, TypeError, KeyError, ArithmeticError, OSError) as error:
        raise PublishError(f"{page.place.path}:{line + _line_of(error) - 1}: {_message(error)}") from error
    blocks = BLOCK.sub(
        lambda found: textwrap.indent(page.markdown[int(found["index"])].rstrip("\n"), found["before"]), rendered
    )
    if "\ue002" in blocks:
        number = blocks[: blocks.index("\ue002")].count("\n") + line
        raise PublishError(
            f"{page.place.path}:{number}: expected a chart, table, output or kernel_file on a line of its own"
        )
    return _restored(blocks, kept)


def _restored(text: str, kept: list[str]) -> str:
    """The code that was kept, in its place."""

    def restore(match: re.Match[str]) -> str:
        original = kept[int(match[1])]
        padding = "\n" * original.count("\n")
        return original + match[0][match[0].index("\ue001") + 1 :].removeprefix(padding)

    return KEPT.sub(restore, text)


def _line_of(error: BaseException) -> int:
    """The template's line where an error arose."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == NAME]
    return lines[-1] or 1 if lines else 1


def _message(error: BaseException) -> str:
    """What an error says, in one line, without Python's names."""
    message = str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error)
    return " ".join(message.replace("Macros.", "").split())
