"""Bounds: named arithmetic that stands beside a case, see tests/benchmarks/bounds.py."""

import ast
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from docs.publish.errors import PublishError, unknown
from docs.publish.evidence import Quantity, plain
from docs.publish.macros.calc import calc, evaluate
from docs.publish.place import Place
from docs.publish.records import cases
from tests.benchmarks.bounds import Bound, Input, Macro, names_in

Given = Mapping[str, Any]  # what a page hands over
WORD = re.compile(r"\{(\w+)\}")


def find(root: Path, case: str, name: str) -> Bound:
    """A bound of a case, or of a page's own file where it has no case.

    Raises:
        PublishError: there is no such bound.
    """
    known = cases.bounds(root, case)
    if name not in known:
        raise unknown(f"bound of {case}", name, known)
    return known[name]


def show(name: str, bound: Bound, place: Place, given: Given, macros: Mapping[str, Callable]) -> str | Quantity:
    """A bound's value with its evidence, or words where the formula gives such.

    Args:
        given: what the formula names and has no input, and words in braces.
        macros: by name, those of the case.

    Raises:
        PublishError: an input is missing, too much, or cannot be found; the formula is no plain arithmetic.
    """
    names = names_in(bound.formula)
    words = {word for text in _texts(bound) for word in WORD.findall(text)}
    wanted = sorted(words | names - bound.inputs.keys())
    if {*wanted} != given.keys():
        expected, got = (", ".join(these) or "nothing" for these in (wanted, given))
        raise PublishError(f"bound {name!r}: expected the page to give {expected}; got {got}")
    values = {each: plain(given[each]) for each in given if each in names}
    values |= {each: plain(_looked_up(what, place, given, macros)) for each, what in bound.inputs.items()}
    known = {each: getattr(value, "value", value) for each, value in values.items()}
    taken = ast.parse(bound.formula, mode="eval").body
    while isinstance(taken, ast.IfExp):
        taken = taken.body if evaluate(taken.test, known) else taken.orelse
    if isinstance(taken, ast.Constant) and isinstance(taken.value, str):
        return taken.value
    formula = ast.unparse(taken)
    return calc(place, formula, bound.unit, {each: values[each] for each in values if each in names_in(formula)})


def _texts(bound: Bound) -> Iterator[str]:
    """What the macros are called with."""
    for each in bound.inputs.values():
        if isinstance(each, Bound):
            yield from _texts(each)
        elif isinstance(each, Macro):
            yield from (text for text in (*each.words, *each.named.values()) if isinstance(text, str))


def _looked_up(what: Input, place: Place, given: Given, macros: Mapping[str, Callable]) -> Any:
    """An input: a whole number, what a macro gives, or another bound."""

    def filled(text: Any) -> Any:
        return WORD.sub(lambda found: str(given[found[1]]), text) if isinstance(text, str) else text

    if isinstance(what, Bound):
        words = {word for text in _texts(what) for word in WORD.findall(text)}
        return show("an input", what, place, {word: given[word] for word in words}, macros)
    if isinstance(what, Macro):
        named = {name: filled(text) for name, text in what.named.items()}
        return macros[what.name](*map(filled, what.words), **named)
    return what
