"""A function with a code object of its own, for variants of a case that compile the same function.

What Dynamo compiles is kept with the code object, in one list for all that compile it, and a call looks through the
list from its front. Variants that share a function would pay for each other's guards, run each other's graphs, and
reach the limit of recompilations together.
"""

from collections.abc import Callable
from types import FunctionType
from typing import Any


def own(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, to compile apart from all others."""
    copy = FunctionType(
        function.__code__.replace(),
        function.__globals__,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy
