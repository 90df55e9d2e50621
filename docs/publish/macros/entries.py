"""Long arguments of a macro stand in the page's front matter, under the macro's name and a name of their own.

    chart:
      decode: {metric: time, variants: [eager, compile], at: decode, title: "A step takes {compile}"}
    captured:
      counts: {of: compiler/modes_traps}

The page writes {{ chart("decode") }} and {{ captured("counts", "cache", which=2) }}: the name is the first argument,
and what the call says besides is added. Where the macro needs a first argument and the front matter has none, the name
is also that: here the section "counts". A number may stand for an argument: {gpu: [eager, decode]}.
"""

import inspect
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any

OWN = ("folklore", "questions")  # macros that read their words of front matter themselves

Macros = Mapping[str, Callable]


def known(macros: Macros, said: Mapping[str, Any], numbers: Collection[str]) -> dict[str, Callable]:
    """The macros, with what a page's front matter names for them."""
    entries = {name: said[name] for name in macros.keys() - {*OWN} if isinstance(said.get(name), dict)}
    value = partial(_value, macros, numbers)
    return {**macros, **{name: partial(_call, macros[name], entry, value) for name, entry in entries.items()}}


def arguments(
    macro: Callable, name: str, entry: list | Mapping[str, Any], besides: Mapping[str, Any]
) -> tuple[list[Any], dict[str, Any]]:
    """The arguments that front matter names: a list has them in order, a mapping by the macro's names for them.

    Args:
        name: of the entry.
        besides: what the page's call says by name.
    """
    if isinstance(entry, list):
        return list(entry), dict(besides)
    named, first = {**entry, **besides}, []
    for place, parameter in enumerate(inspect.signature(macro).parameters.values()):
        if parameter.kind is parameter.VAR_POSITIONAL:
            first += named.pop(parameter.name, [])
        elif parameter.name in named and parameter.kind is not parameter.KEYWORD_ONLY:
            first.append(named.pop(parameter.name))
        elif not place and parameter.kind is not parameter.VAR_KEYWORD and parameter.default is parameter.empty:
            first.append(name)
        else:
            break
    return first, named


def _call(macro: Callable, entries: Mapping[str, Any], value: Callable, /, *args: Any, **named: Any) -> Any:
    if args and isinstance(args[0], str) and args[0] in entries:
        first, named = arguments(macro, args[0], entries[args[0]], named)
        args, named = (*map(value, first), *args[1:]), {name: value(each) for name, each in named.items()}
    return macro(*args, **named)


def _value(macros: Macros, numbers: Collection[str], value: Any) -> Any:
    """What a macro gives for {gpu: [eager, decode]} or {gpu: {variant: eager, at: decode}}; anything else as it is."""
    if isinstance(value, dict) and len(value) == 1 and (name := next(iter(value))) in numbers:
        first, named = arguments(macros[name], "", value[name], {})
        return macros[name](*first, **named)
    return value
