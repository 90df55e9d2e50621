"""Worked arithmetic: an expression over named inputs, each of which says where it comes from."""

import ast
import math
import operator
import statistics
from collections.abc import Callable, Mapping

from docs.publish import units
from docs.publish.errors import PublishError, unknown
from docs.publish.evidence import Quantity
from docs.publish.place import Place

OPERATORS: dict[type[ast.AST], Callable] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
    ast.USub: operator.neg,
}
COMPARED: dict[type[ast.AST], Callable] = {
    ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge, ast.Eq: operator.eq,
}  # fmt: skip
FUNCTIONS: dict[str, Callable] = {
    "min": min, "max": max, "ceil": math.ceil, "log2": math.log2, "sqrt": math.sqrt,
    "median": lambda *numbers: statistics.median(numbers),
}  # fmt: skip
Input = int | Quantity


def calc(place: Place, expression: str, unit: str, inputs: Mapping[str, Input]) -> Quantity:
    """The value of an expression, in base units, to be shown in `unit` (see units.NAMED).

    Raises:
        PublishError: the expression uses no input, or one that is not given, or is no plain arithmetic; an input is
            neither a whole number nor a quantity; the unit is unknown.
    """
    if unit not in units.NAMED:
        raise unknown("calc: unit", unit, units.NAMED)
    for name, given in inputs.items():
        if not isinstance(given, (int, Quantity)) or isinstance(given, bool):
            raise PublishError(f"calc: {name}: expected a whole number or a macro's number, got {given!r}")
    tree = ast.parse(expression, mode="eval").body
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)} - FUNCTIONS.keys()
    for name in sorted(used - inputs.keys()):
        raise unknown(f"calc: input in {expression!r}", name, inputs)
    if not used:
        raise PublishError(f"calc: expected an expression over named inputs, got {expression!r}")
    values = {name: given.value if isinstance(given, Quantity) else given for name, given in inputs.items()}
    try:
        value = evaluate(tree, values)
    except (ArithmeticError, ValueError) as error:
        raise PublishError(f"calc: {expression!r}: {error}") from error
    quantities = [given for given in inputs.values() if isinstance(given, Quantity)]
    measured = any("command" in given.entry for given in quantities)
    entry = {
        "label": "Worked out from what is below",
        "value": units.in_unit(value, unit, exact=not measured),
        "formula": expression,
        "inputs": [_input(name, given) for name, given in inputs.items()],
        "stale": next((given.stale for given in quantities if given.stale), ""),
        "busy": next((given.entry["busy"] for given in quantities if given.busy), ""),
    }
    href = next((given.href for given in quantities), "")
    method = place.to("results/methodology/#worked-arithmetic")
    return Quantity(value, unit, entry, href or method)


def evaluate(node: ast.expr, values: Mapping[str, float]) -> float:
    """What plain arithmetic, or a comparison, over some values gives.

    Raises:
        PublishError: it is something else.
    """
    match node:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            return number
        case ast.Name(id=name) if name in values:
            return values[name]
        case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATORS:
            return OPERATORS[type(op)](evaluate(left, values), evaluate(right, values))
        case ast.UnaryOp(op=op, operand=operand) if type(op) in OPERATORS:
            return OPERATORS[type(op)](evaluate(operand, values))
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in COMPARED:
            return COMPARED[type(op)](evaluate(left, values), evaluate(right, values))
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]) if name in FUNCTIONS:
            return FUNCTIONS[name](*(evaluate(argument, values) for argument in arguments))
    raise PublishError(f"calc: expected + - * / // % ** and {', '.join(FUNCTIONS)}; got {ast.unparse(node)!r}")


def _input(name: str, given: Input) -> dict[str, str]:
    """An input as the evidence lists it."""
    if not isinstance(given, Quantity):
        return {"name": name, "value": f"{given:,}"}
    url = given.entry["source_url"] if given.href.startswith("https://") else given.href
    median = units.text(given.value, given.unit) if given.entry.get("runs") else ""  # a range stands for its median
    value = f"{median}, of {given.text}" if median else given.text
    return {"name": name, "value": value, "source": given.entry.get("formula", given.entry["label"]), "url": url}
