"""Bounds: named arithmetic that stands beside a case, see tests/benchmarks/bounds.py. Read from its text, never run."""

import ast
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from docs.publish.errors import PublishError, unknown
from docs.publish.evidence import Quantity
from docs.publish.macros.calc import Input, calc, evaluate
from docs.publish.macros.shown import plain
from docs.publish.place import Place, case_file
from tests.benchmarks import source

Given = Mapping[str, Any]  # what a page hands over


@dataclass(frozen=True)
class Bound:
    """A function with its inputs, as its file has them."""

    name: str
    unit: str
    inputs: Mapping[str, ast.expr]
    function: ast.FunctionDef

    @property
    def parameters(self) -> list[str]:
        return [each.arg for each in self.function.args.args]

    @property
    def words(self) -> set[str]:
        """What inputs leave for the page to say: "variant" of gpu("{variant}", "decode")."""
        texts = [
            node.value for each in self.inputs.values() for node in ast.walk(each) if isinstance(node, ast.Constant)
        ]
        return {word for text in texts if isinstance(text, str) for word in re.findall(r"\{(\w+)\}", text)}

    def show(
        self, place: Place, given: Given, macros: Mapping[str, Callable], numbers: Collection[str]
    ) -> str | Quantity:
        """The function's value with its evidence, or words where the function returns such.

        Args:
            given: parameters that have no input, and words in braces.
            macros: by name, those of the case.
            numbers: the names of macros that give one.

        Raises:
            PublishError: an input is missing, too much, or cannot be found; the function is no plain arithmetic.
        """
        wanted = self.words | set(self.parameters) - self.inputs.keys()
        if wanted != given.keys():
            names = ", ".join(sorted(wanted)) or "nothing"
            raise PublishError(
                f"bound {self.name!r}: expected the page to give {names}; got {', '.join(given) or 'nothing'}"
            )
        values = {name: plain(given[name]) for name in given if name in self.parameters}
        values |= {name: plain(_looked_up(each, given, macros, numbers)) for name, each in self.inputs.items()}
        taken = _returned(self.function.body, {name: getattr(each, "value", each) for name, each in values.items()})
        if isinstance(taken, ast.Constant) and isinstance(taken.value, str):
            return taken.value
        used = {node.id for node in ast.walk(taken) if isinstance(node, ast.Name)}
        return calc(
            place, ast.unparse(taken), self.unit, {name: values[name] for name in self.parameters if name in used}
        )


def find(root: Path, case: str, name: str) -> Bound:
    """A bound of a case, or of a page's own file where it has no case.

    Raises:
        PublishError: there is no such bound.
    """
    known = of_case(root, case)
    if name not in known:
        raise unknown(f"bound of {case}", name, known)
    return known[name]


def of_case(root: Path, case: str) -> Mapping[str, Bound]:
    """The bounds of a case by name.

    Raises:
        PublishError: a decorator does not begin with a unit.
    """
    return _read(case_file(root, case))


@cache
def _read(path: Path) -> Mapping[str, Bound]:
    found = {}
    for name, function in source.bounds(path).items():
        (decorator,) = (each for each in function.decorator_list if isinstance(each, ast.Call))
        match decorator.args:
            case [ast.Constant(value=str() as unit)]:
                inputs = {str(each.arg): each.value for each in decorator.keywords}
                found[name] = Bound(name, unit, inputs, function)
            case _:
                raise PublishError(f'{path.name}: bound {name!r}: expected bound("unit", input=...)')
    return found


def _looked_up(node: ast.expr, given: Given, macros: Mapping[str, Callable], numbers: Collection[str]) -> Any:
    """An input: what a macro gives, or a whole number."""

    def words(each: ast.expr) -> Any:
        value = ast.literal_eval(each)
        return re.sub(r"\{(\w+)\}", lambda found: str(given[found[1]]), value) if isinstance(value, str) else value

    match node:
        case ast.Call(func=ast.Name(id=name), args=args, keywords=named) if name in numbers:
            return macros[name](*map(words, args), **{str(each.arg): words(each.value) for each in named})
    value: Input = evaluate(node, {})  # type: ignore[assignment]  # calc refuses what is no whole number
    return value


def _returned(body: Iterable[ast.stmt], values: Mapping[str, float]) -> ast.expr:
    """What a function's body returns for some values: an expression, behind the `if`s that lead to it."""
    for statement in body:
        match statement:
            case ast.Expr(value=ast.Constant(value=str())):
                continue
            case ast.Return(value=ast.expr() as value):
                return value
            case ast.If(test=test, body=then, orelse=[]):
                if evaluate(test, values):
                    return _returned(then, values)
            case _:
                raise PublishError(f"bound: expected if and return, got {ast.unparse(statement)!r}")
    raise PublishError("bound: expected a return at the end")
