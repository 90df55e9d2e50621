"""A page's source reads as text: its macros are short and few, and what is long stands elsewhere, under a name."""

import re
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

import pytest
from jinja2 import nodes

from docs.publish.macros.catalogue import Macros
from docs.publish.macros.entries import OWN
from docs.publish.markdown import pages
from docs.publish.markdown.fences import code_in, replaced
from docs.publish.records.asked import PARSER

READ = "docs/pages"  # through docs.publish

LONGEST, SHARE = 70, 0.15
MACRO = re.compile(r"\{\{.*?\}\}|\{%.*?%\}", re.S)


class Call(NamedTuple):
    """A macro on a page, with its first argument, and the case that it is about."""

    page: str
    macro: str
    first: object
    case: str


def body(text: str) -> str:
    """A page without its front matter."""
    return text.partition("\n---\n")[2] if text.startswith("---\n") else text


def macros(text: str) -> list[str]:
    """What stands in braces on a page, but for what is in its code."""
    prose = body(text)
    return MACRO.findall(replaced(prose, code_in(prose), lambda code: "\n" * code.count("\n")))


@cache
def calls() -> list[Call]:
    """The macros of all pages, in front matter too: a number there has its macro's name."""
    return [call for page, text in pages.texts().items() for call in _calls(page, text)]


def _calls(page: str, text: str) -> Iterator[Call]:
    said = pages.front_matter(text)
    own = str(said.get("case", page.removesuffix(".md")))
    for call in PARSER.parse("".join(macros(text))).find_all(nodes.Call):
        if isinstance(call.node, nodes.Name):
            first = next((each.value for each in call.args[:1] if isinstance(each, nodes.Const)), None)
            case = next(
                (
                    each.value.value
                    for each in call.kwargs
                    if each.key == "case" and isinstance(each.value, nodes.Const)
                ),
                own,
            )
            yield Call(page, call.node.name, first, case)
    for name, entry in said.get("bound", {}).items():
        yield Call(page, "bound", entry.get("name", name), entry.get("case", own))
    waiting = [entry for name, entries in said.items() if isinstance(entries, dict) for entry in entries.values()]
    while waiting:
        match waiting.pop():
            case {"bound": {"name": name, **more}}:
                yield Call(page, "bound", name, more.get("case", own))
            case {"bound": [name, *_]}:
                yield Call(page, "bound", name, own)
            case dict() as words:
                waiting += words.values()
            case list() as words:
                waiting += words


def long(text: str) -> list[str]:
    return [macro for macro in macros(text) if len(macro) > LONGEST]


def assigned(text: str) -> list[str]:
    return [macro for macro in macros(text) if re.match(r"\{%-? *(set|macro) ", macro)]


def share(text: str) -> float:
    """Of the characters below the front matter, those in macros."""
    return sum(map(len, macros(text))) / max(1, len(body(text)))


def test_no_macro_is_long():
    found = [f"{page}: {len(macro)}: {macro}" for page, text in pages.texts().items() for macro in long(text)]
    assert not found, f"name these in the front matter, or make them a bound: {found}"


def test_nothing_is_assigned_or_defined_on_a_page():
    found = [f"{page}: {macro}" for page, text in pages.texts().items() for macro in assigned(text)]
    assert not found, f"name these in the front matter, or make them a bound: {found}"


def test_macros_are_the_smaller_part_of_a_page():
    found = [f"{page}: {share(text):.1%}" for page, text in pages.texts().items() if share(text) >= SHARE]
    assert not found, (
        f"expected macros in less than {SHARE:.0%} of the text below the front matter: {found}; "
        "name their arguments in the front matter, or quote fewer numbers"
    )


def test_what_front_matter_names_for_a_macro_is_used():
    known = {name for name in dir(Macros) if not name.startswith("_")} - {*OWN}
    used = {(call.page, call.macro, call.first) for call in calls()}
    lost = [
        f"{page}: {macro}: {name}"
        for page, said in pages.front_matters().items()
        for macro in said.keys() & known
        for name in said[macro]
        if (page, macro, name) not in used
    ]
    assert not lost


def test_the_rows_of_front_matter_are_used():
    lost = [
        f"{page}: rows: {name}"
        for page, text in pages.texts().items()
        for name in pages.front_matter(text).get("rows", {})
        if not any(re.search(rf"\brows\.{name}\b", macro) for macro in macros(text))
    ]
    assert not lost


TEXT = "---\ncase: a/b\n---\nSo. {{ gpu('a', 'b') }} `{{ in_code }}` {% set x = 1 %}\n"


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (macros(TEXT), ["{{ gpu('a', 'b') }}", "{% set x = 1 %}"]),
        (assigned(TEXT), ["{% set x = 1 %}"]),
        (assigned("{%- macro f(x) %}"), ["{%- macro f(x) %}"]),
        (long("{{ " + "x" * 65 + " }}"), ["{{ " + "x" * 65 + " }}"]),
        (long("{{ " + "x" * 64 + " }}"), []),
        (share("12345{{ x }}"), 7 / 12),
    ],
)
def test_macros_are_found(found: object, expected: object):
    assert found == expected
