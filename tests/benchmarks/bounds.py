"""Arithmetic that pages name: a plain function beside a case, and where its inputs come from.

    @bound("us", bytes=67108864, copy=ceiling("copy"))
    def copied(bytes: float, copy: float) -> float:
        \"""What copying the inputs takes, at the copy rate of the same run.\"""
        return 2 * bytes / copy

A page shows {{ bound("copied") }}: the site reads decorator and function from the file's text and looks up the inputs
as its macros do (docs/publish/macros/bounds.py). A parameter without an input comes from the page, and so does a word
in braces: with time=gpu("{variant}", "decode") the page says {{ bound("paid", variant="compile") }}. Here, where a test
calls the function with plain numbers, the decorator does nothing. Nothing measured depends on any of it.
"""

from collections.abc import Callable
from typing import TypeVar

F = TypeVar("F", bound=Callable)


def bound(unit: str, **inputs: object) -> Callable[[F], F]:
    """Name where the inputs of a function come from; `unit` is one of docs/publish/units.py."""
    return lambda function: function


def _looked_up(*words: object, **named: object) -> None:
    """An input that only the site knows."""


# The macros of docs/publish/macros/catalogue/values.py that give a number.
bandwidth = build = captured = ceiling = counted = datasheet = error = gain = gpu = launches = _looked_up
machine = memory = peak = rate = registers = share = wall = _looked_up
