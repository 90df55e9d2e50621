"""Renders a page's macros: {{ number(...) }} and the others that `Macros` offers. Plain Python and Jinja2, no MkDocs.

Code survives: fenced blocks and code spans are left as they are, whatever braces they hold.
"""

import re
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jinja2

from docs.publish.errors import PublishError
from docs.publish.evidence import Evidence, Quantity
from docs.publish.macros import captures as capture_blocks
from docs.publish.macros import charts, kernel_files, losses, numbers, sweeps, tables
from docs.publish.macros.calc import Input, calc
from docs.publish.markdown.fences import code_in, replaced
from docs.publish.place import Place
from docs.publish.records.captures import Captures
from docs.publish.records.measured import Coordinates
from docs.publish.records.store import Store
from tests.benchmarks.source import ROOT

NAME = "<page>"
Names = str | Sequence[str]  # one, or several
ENVIRONMENT = jinja2.Environment(
    undefined=jinja2.StrictUndefined,
    keep_trailing_newline=True,
    autoescape=False,
    comment_start_string="{# ",  # {#anchor} is an attribute list
)
KEPT = re.compile("\ue000(\\d+)\ue001\n*")
BLOCK = re.compile("^(?P<before>[ \t]*)\ue002(?P<index>\\d+)\ue003", re.M)


@dataclass
class Page:
    """What a page's macros left behind.

    Attributes:
        evidence: of its numbers.
        markdown: blocks of Markdown, to stand where their placeholders are before Markdown is converted.
        html: blocks of finished HTML, to stand where their placeholders are afterwards.
    """

    place: Place
    evidence: Evidence = field(default_factory=Evidence)
    markdown: list[str] = field(default_factory=list)
    html: list[str] = field(default_factory=list)

    def put_markdown(self, block: str) -> str:
        """A placeholder for a block, which gets the indentation of the place where the macro stands."""
        self.markdown.append(block)
        return f"\ue002{len(self.markdown) - 1}\ue003"

    def put_html(self, block: str) -> str:
        """A placeholder for HTML that Markdown must not touch."""
        self.html.append(block)
        return self.put_markdown(f'<div data-rp-block="{len(self.html) - 1}"></div>\n')

    def finish(self, html: str) -> str:
        """The page's HTML with its blocks in their places and the evidence at its end."""
        filled = re.sub(r'<div data-rp-block="(\d+)"></div>', lambda found: self.html[int(found[1])], html)
        return filled + self.evidence.script()


class Macros:
    """What a page can call. Arguments by name, apart from the first few."""

    def __init__(self, store: Store, captures: Captures, page: Page, root: Path = ROOT):
        self._root = root
        self._store = store
        self._captures = captures
        self._page = page

    def number(self, case: str, variant: str, metric: str, **where: Any) -> str:
        """A measured number: number("kernels/rms-norm", "ours", "share", shape="32768x4096", direction="backward")."""
        return self._page.evidence.show(self.value(case, variant, metric, **where))

    def ceiling(self, name: str, mode: str | None = None, **where: Any) -> str:
        """A measured ceiling: ceiling("copy"), ceiling("bfloat16", "burst")."""
        return self._page.evidence.show(self.ceiling_value(name, mode, **where))

    def datasheet(self, device: str, figure: str) -> str:
        """What the vendor states: datasheet("NVIDIA H200", "bandwidth")."""
        return self._page.evidence.show(self.datasheet_value(device, figure))

    def calc(self, expression: str, unit: str, **inputs: Input) -> str:
        """Worked arithmetic: calc("2 * rows * width / copy", unit="us", rows=8, width=2, copy=ceiling_value(...))."""
        return self._page.evidence.show(calc(self._page.place, expression, unit, inputs))

    def value(self, case: str, variant: str, metric: str, over: str | None = None, **where: str) -> Quantity:
        """A measured number as an input of calc()."""
        return numbers.measured(self._store, self._page.place, Coordinates(case, variant, **where), metric, over)

    def ceiling_value(self, name: str, mode: str | None = None, **where: str) -> Quantity:
        """A measured ceiling as an input of calc()."""
        return numbers.ceiling(self._store, self._page.place, name, mode, Coordinates(**where))

    def datasheet_value(self, device: str, figure: str) -> Quantity:
        """A datasheet's figure as an input of calc()."""
        return numbers.datasheet(device, figure)

    def table(
        self,
        case: str,
        metric: Names,
        variants: Names = (),
        shape: Names = (),
        over: str | None = None,
        title: str = "",
        **where: str,
    ) -> str:
        """A table from records, see docs.publish.macros.tables.table."""
        at, page = Coordinates(case, **where), self._page
        named = _list(metric), _list(variants), _list(shape)
        return page.put_html(tables.table(self._store, page.place, page.evidence, at, *named, over, title))

    def chart(self, **spec: Any) -> str:
        """A chart from records, see docs.publish.macros.charts.render."""
        return self._page.put_html(charts.render(spec, self._store, self._page.evidence, self._page.place))

    def losses(self, case: str) -> str:
        """Every point of a case's grid at which ours is behind, see docs.publish.macros.losses."""
        return self._page.put_html(losses.losses(self._store, self._page.place, self._page.evidence, case))

    def sweep(self, kernel: str, direction: str, shape: str, dtype: str = "bfloat16") -> str:
        """What a sweep tried at a point: sweep("softmax", direction="forward", shape="4096x32768")."""
        return self._page.put_html(
            sweeps.table(self._root, self._page.place, self._page.evidence, kernel, direction, shape, dtype)
        )

    def capture(self, name: str, lines: str = "", title: str = "") -> str:
        """What a script printed, by the capture's name."""
        return self._captured(self._captures.named(name), lines, title)

    def output(self, script: str, lines: str = "", title: str = "") -> str:
        """All that a script printed, by the script's path."""
        return self._captured(self._captures.of_script(script), lines, title)

    def kernel_file(self, name: str) -> str:
        """The panel that offers kernels/<name>.py to copy."""
        return self._page.put_markdown(kernel_files.panel(name, self._page.place, self._root))

    def explorer(self, name: str) -> str:
        """What kernels/<name>.py, or the compiler's page, was compiled to: facts, and the button of the viewer."""
        from docs.publish.compiled import explorer  # brings Triton

        page = self._page
        return page.put_html(explorer.panel(self._store, self._captures, page.evidence, page.place, name))

    def compiled(self, name: str, at: str, function: str, **what: str) -> str:
        """A fact of a compiled kernel, or words, with a link into the viewer: see explorer.reference.

        compiled("softmax", "forward-32768x4096", "_forward_row_kernel", fact="registers")
        compiled("softmax", "forward-32768x4096", "_forward_row_kernel", line="row = (tl.program_id", text="the row")
        """
        from docs.publish.compiled import explorer

        return explorer.reference(self._captures, name, at, function, **what)

    def _captured(self, capture: capture_blocks.Capture, lines: str, title: str) -> str:
        page = self._page
        return page.put_markdown(capture_blocks.show(self._captures, capture, page.place, page.evidence, lines, title))

    def all(self) -> dict[str, Callable]:
        """The macros by name."""
        names = [name for name in dir(self) if not name.startswith("_") and name != "all"]
        return {name: getattr(self, name) for name in names}


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
    blocks = BLOCK.sub(lambda found: _indented(page.markdown[int(found["index"])], found["before"]), rendered)
    if "\ue002" in blocks:
        number = blocks[: blocks.index("\ue002")].count("\n") + line
        raise PublishError(
            f"{page.place.path}:{number}: expected a chart, table, capture or kernel_file on a line of its own"
        )
    return _restored(blocks, kept)


def _list(names: Names) -> list[str]:
    return [names] if isinstance(names, str) else list(names)


def _restored(text: str, kept: list[str]) -> str:
    """The code that was kept, in its place."""

    def restore(match: re.Match[str]) -> str:
        original = kept[int(match[1])]
        padding = "\n" * original.count("\n")
        return original + match[0][match[0].index("\ue001") + 1 :].removeprefix(padding)

    return KEPT.sub(restore, text)


def _indented(block: str, indent: str) -> str:
    return "\n".join(indent + line if line else "" for line in block.splitlines())


def _line_of(error: BaseException) -> int:
    """The template's line where an error arose."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == NAME]
    return lines[-1] or 1 if lines else 1


def _message(error: BaseException) -> str:
    """What an error says, in one line, without Python's names."""
    message = str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error)
    return " ".join(message.replace("Macros.", "").split())
