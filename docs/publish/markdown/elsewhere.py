"""Below embedded code: the script that it is part of, which its button copies (docs/theme/scripts/code.js), and where
names are from that the page does not show."""

import ast
import builtins
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from html import escape
from pathlib import Path

from markdown.extensions.toc import slugify  # type: ignore[import-untyped]

from docs.publish.kept import Kept, in_a_build, key
from docs.publish.markdown import markers
from docs.publish.markdown.fences import Block, blocks_of
from docs.publish.markdown.pages import front_matter
from docs.publish.markdown.scripts import OURS, bound, listed, package_of, served
from docs.publish.place import Place
from tests.benchmarks.imports import of_statement
from tests.benchmarks.source import ROOT

names = Kept("names")
HEADING = re.compile(r"^#{2,3} +(?P<title>.*?) *(?:\{ *#(?P<anchor>[\w-]+) *\})?$")
BINDS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


@dataclass(frozen=True)
class Name:
    """Where a name of a file is from: a module, or a line of the file itself."""

    module: str = ""
    original: str = ""  # in the module; "" of a module itself
    line: int = 0


def noted(text: str, place: Place, texts: Mapping[str, str], root: Path = ROOT) -> str:
    """A page's Markdown with a line below each embedded block: its script, and where the block's names are from.

    A block may be pasted alone, so its line has all that it imports, whatever lines above it say.

    Args:
        texts: the Markdown of all pages, by their paths: where names of other files are shown.
    """
    lines = text.splitlines()
    blocks = [block for block in blocks_of(text, place.path) if _sections(block)]
    shown = {section for block in blocks for section in _sections(block)}
    notes = [(block, list(_notes(block, shown, place, texts, root))) for block in blocks]
    for block, sentences in reversed(notes):
        indent = lines[block.line - 1].partition(block.fence)[0]
        script = place.to(served(_sections(block)[0][0]))
        line = f'{indent}<p class="rp-from" data-script="{script}" data-search-exclude>{" ".join(sentences)}</p>'
        lines[block.last : block.last] = ["", line, ""]
    return "\n".join(lines) + ("\n" if text.endswith("\n") else "")


def _sections(block: Block) -> list[tuple[str, str | None]]:
    return [(path, part) for path, part in block.includes if path.endswith(".py") and path.startswith(OURS)]


def _notes(
    block: Block,
    shown: set[tuple[str, str | None]],
    place: Place,
    texts: Mapping[str, str],
    root: Path,
) -> Iterator[str]:
    """Sentences of HTML: the script of a block's files, and where names are from that the page does not show."""
    for path in dict.fromkeys(path for path, _ in _sections(block)):
        names = {name for at, section in _sections(block) if at == path for name in used(root / path, section)}
        visible = [lines_of(root / path, section) for at, section in shown if at == path]
        new = {
            name: origin
            for name, origin in where(path, root).items()
            if name in names and not any(origin.line in lines for lines in visible)
        }
        here = sorted(name for name, origin in new.items() if origin.line)
        imported = list(_imported(new, place, texts, root))
        whole = any(at == path and section is None for at, section in _sections(block))
        file = f'<a href="{place.to(served(path))}" download><code>{Path(path).name}</code></a>'
        yield f"{'All' if whole else 'Part'} of {file}."
        if here:
            yield f"Also there: {_codes(here)}."
        if imported:
            yield f"Imported: {'; '.join(imported)}."


def _imported(origins: Mapping[str, Name], place: Place, texts: Mapping[str, str], root: Path) -> Iterator[str]:
    """Where imported names are from, but for modules under their own names."""
    modules: dict[str, list[str]] = {}
    for name, origin in sorted(origins.items()):
        if origin.original:
            modules.setdefault(origin.module, []).append(name)
        elif origin.module:
            yield f"<code>{name}</code> is <code>{origin.module}</code>"
    for module, names in modules.items():
        path = f"{module.replace('.', '/')}.py"
        if not (root / path).is_file():
            yield f"{_codes(names)} from <code>{module}</code>"
        else:
            found = [page_with(path, origins[name].original, texts, root) for name in names]
            # the first place that is more than a page; a page is better than none
            page, anchor = max(filter(None, found), key=lambda each: bool(each[1]), default=("", ""))
            if page and page != place.path:
                link = place.to(address(page) + (f"#{anchor}" if anchor else ""))
                title = escape(front_matter(texts[page]).get("title", page))
                yield f'{_codes(names)} from <a href="{link}">{title}</a>'


def _codes(names: list[str]) -> str:
    return listed([f"<code>{name}</code>" for name in names])


# ---- what files say of names ----------------------------------------------------------------------------------------


@in_a_build
def where(path: str, root: Path) -> dict[str, Name]:
    """Where each name is from that a file has at its top level."""
    found: dict[str, Name] = {}
    for node in ast.parse((root / path).read_text(encoding="utf-8")).body:
        for each in of_statement(node, package_of(path)):
            own_name = not each.name and each.bound == each.module.partition(".")[0]
            found[each.bound] = Name("" if own_name else each.module, each.name)
        if not isinstance(node, ast.Import | ast.ImportFrom):
            found |= {name: Name(line=node.lineno) for name in bound(node)}
    return found


@in_a_build
def lines_of(file: Path, section: str | None) -> range:
    """The lines of a section, or of the whole file."""
    lines = file.read_text(encoding="utf-8").splitlines()
    if section is None:
        return range(1, len(lines) + 1)
    found = [number for number, line in enumerate(lines, 1) if (marker := markers.MARKER.match(line))
             and marker["name"] == section]  # fmt: skip
    return range(found[0] + 1, found[-1])


@in_a_build
def used(file: Path, section: str | None) -> set[str]:
    """The names of the file's top level, and of no function of it, that a section uses."""
    lines = lines_of(file, section)
    return {name for line, name in _all_used(file) if line in lines}


@in_a_build
def _all_used(file: Path) -> list[tuple[int, str]]:
    text = file.read_text(encoding="utf-8")
    made_by = Path(__file__).read_text(encoding="utf-8")
    return names.get(key(text, made_by, sys.version), lambda: list(_global(ast.parse(text), frozenset())))


def _global(node: ast.AST, local: frozenset[str]) -> Iterator[tuple[int, str]]:
    """(line, name) of each name that is read and is no local one, nor Python's own."""
    if isinstance(node, ast.Name):
        if isinstance(node.ctx, ast.Load) and node.id not in local and not hasattr(builtins, node.id):
            yield node.lineno, node.id
        return
    inside = local | _locals(node) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) else local
    for child in ast.iter_child_nodes(node):
        outside = isinstance(node, ast.FunctionDef) and child in (*node.decorator_list, node.returns)
        yield from _global(child, local if outside else inside)


def _locals(function: ast.AST) -> frozenset[str]:
    """What a function gives a meaning to: its arguments, and all that it assigns or defines."""
    found = set()
    for node in ast.walk(function):
        if isinstance(node, ast.arg):
            found.add(node.arg)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, BINDS) and node is not function:
            found.add(node.name)
    return frozenset(found)


# ---- pages ----------------------------------------------------------------------------------------------------------


def page_with(path: str, name: str, texts: Mapping[str, str], root: Path = ROOT) -> tuple[str, str] | None:
    """The page that shows where a name is defined, and the anchor; else one that embeds the file; None if none does."""
    line = where(path, root)[name].line
    embeds = None
    for page, text in texts.items():
        for block in blocks_of(text, page):
            for at, section in block.includes:
                if at == path and line in lines_of(root / path, section):
                    return page, _anchor(text, block.line)
                embeds = embeds or ((page, "") if at == path else None)
    return embeds


def _anchor(text: str, line: int) -> str:
    """The anchor of the section that a line is in, "" above the first."""
    fenced = {number for block in blocks_of(text, "") for number in range(block.line, block.last + 1)}
    above = enumerate(text.splitlines()[: line - 1], 1)
    found = [match for number, heading in above if number not in fenced and (match := HEADING.match(heading))]
    return (found[-1]["anchor"] or slugify(found[-1]["title"], "-")) if found else ""


def address(page: str) -> str:
    """A page's address below the site's: "validation/timing.md" is at "validation/timing/"."""
    path = page.removesuffix(".md")
    return path.removesuffix("index") if path.rpartition("/")[2] == "index" else f"{path}/"
