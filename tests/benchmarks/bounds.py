"""Arithmetic that pages name, beside a case: a formula, and where its inputs come from.

    # What copying the inputs takes, at the copy rate of the same run.
    copied = bound("us", "2 * bytes / copy", bytes=67108864, copy=ceiling("copy"))

A page shows {{ bound("copied") }}, and the site looks up the inputs as its macros do (docs/publish/macros/bounds.py).
Bounds may share inputs, in mappings before their own: each takes those that its formula names. What a formula names
besides comes from the page, and so does a word in braces: with time=gpu("{variant}", "decode") the page says
{{ bound("paid", variant="compile") }}. An input may be another bound. Nothing measured depends on any of it.
"""

import ast
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Union


@dataclass(frozen=True)
class Macro:
    """A number that only the site knows, and what its macro is called with."""

    name: str
    words: tuple[object, ...]
    named: Mapping[str, object]


Input = Union[int, Macro, "Bound"]


@dataclass(frozen=True)
class Bound:
    """A formula; `unit` is one of docs/publish/units.py."""

    unit: str
    formula: str
    inputs: Mapping[str, Input]


def bound(unit: str, formula: str, *shared: Mapping[str, Input], **own: Input) -> Bound:
    """A formula with its inputs; of shared ones those that it names."""
    names = names_in(formula)
    found = {name: given for inputs in shared for name, given in inputs.items() if name in names}
    return Bound(unit, formula, found | own)


def traffic(passes: int, tensor: Mapping[str, Input], **rate: Input) -> tuple[Bound, Bound]:
    """The bytes of so many passes over a tensor, and what they take at a rate, which has a name."""
    formula = f"{passes} * rows * columns * width"
    return bound("MB", formula, tensor), bound("us", f"{formula} / {next(iter(rate))}", tensor, **rate)


def names_in(formula: str) -> set[str]:
    """The inputs that a formula names, but for functions."""
    nodes = list(ast.walk(ast.parse(formula, mode="eval")))
    functions = {node.func.id for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    return {node.id for node in nodes if isinstance(node, ast.Name)} - functions


def _macro(name: str) -> Callable[..., Macro]:
    return lambda *words, **named: Macro(name, words, named)


# The macros of docs/publish/macros/catalogue.py that give a number.
bandwidth, build, captured, ceiling = map(_macro, ("bandwidth", "build", "captured", "ceiling"))
counted, datasheet, error, gain = map(_macro, ("counted", "datasheet", "error", "gain"))
gpu, launches, machine, memory = map(_macro, ("gpu", "launches", "machine", "memory"))
peak, rate, registers, share, wall = map(_macro, ("peak", "rate", "registers", "share", "wall"))
h100 = partial(datasheet, "NVIDIA H100 80GB HBM3")
