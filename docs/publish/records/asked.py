"""Which sections of scripts' output pages show, read from their macros, without rendering them."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import jinja2
from jinja2 import nodes

from docs.publish.errors import PublishError
from docs.publish.markdown.fences import code_in, replaced
from docs.publish.markdown.pages import front_matter
from docs.publish.records import cases
from tests.benchmarks import source
from tests.benchmarks.bounds import Bound, Macro

MACROS = ("output", "captured", "timeline")
PARSER = jinja2.Environment(comment_start_string="{# ")


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
    said = front_matter(text)
    case = str(said.get("case", page.removesuffix(".md")))
    calls = [(getattr(call.node, "name", ""), call) for call in PARSER.parse(shown).find_all(nodes.Call)]
    direct = [_asked(page, macro, call, said) for macro, call in calls if macro in MACROS]
    bounds = [_named_bound(call, said) for macro, call in calls if macro == "bound"]
    known = [(cases.bounds(source.ROOT, of or case).get(name), of or case) for name, of in bounds]
    through = [one for bound, of in known if bound for one in _of_bound(page, bound, of)]
    return list(dict.fromkeys([*_of_beliefs(page, text), *_of_numbers(page, said), *direct, *through]))


def _of_numbers(page: str, said: Mapping[str, Any]) -> Iterator[Asked]:
    """The sections of numbers in the place of an argument, {captured: {section: table, line: [mlp]}}."""
    waiting = [entry for entries in said.values() if isinstance(entries, dict) for entry in entries.values()]
    while waiting:
        words = waiting.pop()
        match words:
            case {"captured": dict() as one}:
                yield Asked(page, one.get("of") or script_of(page), one["section"], one.get("on", ""))
            case {"captured": [section, *_]}:
                yield Asked(page, script_of(page), section, "")
            case dict() | list():
                waiting += words.values() if isinstance(words, dict) else words


def _of_bound(page: str, bound: Bound, case: str) -> Iterator[Asked]:
    """The sections that a bound takes its inputs from."""
    for each in bound.inputs.values():
        match each:
            case Macro("captured", (str() as section, *_), given) if "{" not in section:  # the page says which
                yield Asked(page, str(given.get("of") or script_of(case)), section, str(given.get("on", "")))
            case Bound():
                yield from _of_bound(page, each, case)


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


def _asked(page: str, macro: str, call: nodes.Call, said: Mapping[str, Any]) -> Asked:
    first = _text(call.args[0]) if call.args else ""
    entry = said.get(macro, {}).get(first, {})
    words = {"section": first, **(dict(zip(("section",), entry, strict=False)) if isinstance(entry, list) else entry)}
    words |= {each.key: _text(each.value) for each in call.kwargs if each.key in ("section", "of", "on")}
    if wrong := [name for name in ("section", "of", "on") if words.get(name, "") is None]:
        raise PublishError(f"{page}: expected {wrong[0]} of {macro}(...) as a string, got an expression")
    return Asked(page, words.get("of") or script_of(page), words["section"], words.get("on", ""))


def _named_bound(call: nodes.Call, said: Mapping[str, Any]) -> tuple[str, str]:
    """The name of a bound, and the case that the call says."""
    first = _text(call.args[0]) or ""
    words = {"name": first, **said.get("bound", {}).get(first, {})}
    case = next((_text(each.value) for each in call.kwargs if each.key == "case"), words.get("case"))
    return words["name"], case or ""


def _text(node: nodes.Node) -> str | None:
    """A string; None for any other expression."""
    return node.value if isinstance(node, nodes.Const) and isinstance(node.value, str) else None
