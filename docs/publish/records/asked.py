"""Which sections of scripts' output pages show, read from their macros, without rendering them."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import jinja2
from jinja2 import nodes

from docs.publish.errors import PublishError
from docs.publish.markdown.fences import code_in, replaced
from docs.publish.markdown.pages import front_matter

MACROS = ("output", "captured", "timeline")
PARSER = jinja2.Environment(comment_start_string="{# ")
Known = Mapping[str, nodes.Node]


class Asked(NamedTuple):
    """A section that a page shows: of which script, and on which device ("" where the page leaves that open)."""

    page: str
    script: str
    section: str
    on: str


def script_of(page: str) -> str:
    """A page's own script, as captures name it: "compiler/graph_breaks" of "compiler/graph-breaks.md"."""
    return page.removesuffix(".md").replace("-", "_")


def of_page(page: str, text: str) -> list[Asked]:
    """The sections that a page shows, each once.

    Raises:
        PublishError: a macro does not name its section in a way that can be read.
    """
    body = text.partition("\n---\n")[2] if text.startswith("---\n") else text
    shown = replaced(body, code_in(body, page), lambda code: "\n" * code.count("\n"))
    calls = [_asked(page, *call) for call in _calls(PARSER.parse(shown), {})]
    return list(dict.fromkeys([*_of_beliefs(page, text), *calls]))


def _of_beliefs(page: str, text: str) -> Iterator[Asked]:
    """The sections that folklore in a page's front matter compares."""
    for entry in front_matter(text).get("folklore", []):
        waiting: list[Any] = [entry]
        while waiting:
            words = waiting.pop()
            if isinstance(words, dict) and "output" in words:
                yield Asked(page, words.get("of") or entry.get("of") or script_of(page), words["output"], "")
            if isinstance(words, dict | list):
                waiting += words.values() if isinstance(words, dict) else words


def _calls(node: nodes.Node, known: Known) -> Iterator[tuple[nodes.Call, Known]]:
    """The macros that are called in a template, each with what its variables stand for there."""
    if isinstance(node, nodes.Call) and isinstance(node.node, nodes.Name) and node.node.name in MACROS:
        yield node, known
    if isinstance(node, nodes.For):
        for values in getattr(node.iter, "items", [node.iter]):
            inside = {**known, **_named(node.target, values)}
            for child in node.body:
                yield from _calls(child, inside)
                inside |= _named(child.target, child.node) if isinstance(child, nodes.Assign) else {}
        return
    inside = dict(known)
    for child in node.iter_child_nodes():
        yield from _calls(child, inside)
        inside |= _named(child.target, child.node) if isinstance(child, nodes.Assign) else {}


def _named(target: nodes.Node, value: nodes.Node) -> dict[str, nodes.Node]:
    """What names stand for after an assignment."""
    if isinstance(target, nodes.Tuple) and isinstance(value, nodes.Tuple):
        pairs = zip(target.items, value.items, strict=False)
        return {name: found for pair in pairs for name, found in _named(*pair).items()}
    return {target.name: value} if isinstance(target, nodes.Name) else {}


def _asked(page: str, call: nodes.Call, known: Known) -> Asked:
    macro = call.node.name  # type: ignore[attr-defined]  # _calls has looked
    named = {argument.key: argument.value for argument in call.kwargs}
    section = named.get("section", call.args[0] if call.args else nodes.Const(""))
    found = []
    for name, node in (("section", section), ("of", named.get("of")), ("on", named.get("on"))):
        value = known.get(node.name) if isinstance(node, nodes.Name) else node
        if value is not None and not (isinstance(value, nodes.Const) and isinstance(value.value, str)):
            raise PublishError(f"{page}: expected {name} of {macro}(...) as a string, got an expression")
        found.append(value.value if value is not None else "")
    return Asked(page, found[1] or script_of(page), found[0], found[2])
