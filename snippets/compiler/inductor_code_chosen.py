"""What Inductor chose for a Triton kernel, and what became of it: blocks, warps, registers."""

from collections.abc import Mapping
from typing import Any

import torch


class Refused(RuntimeError):
    """There is nothing to show, or this torch keeps it elsewhere; the message says which."""


# --8<-- [start:chosen]
def chosen(kernel: Any) -> dict[str, Any]:
    """How a Triton kernel is launched: Inductor tries its configurations, if there are several, in the first call.

    Returns:
        signature: an entry for each parameter, as snippets.validation.compiled_code.source_of takes them;
        constants: the constexprs among them by name, such as XBLOCK;
        options: num_warps and what else Triton's compiler got;
        tried: the number of configurations;
        registers, spilled, shared: of the binary, for a thread, in bytes a thread, in bytes.
    """
    try:
        (launcher,) = kernel.launchers  # those that lost are gone
        meta = kernel._create_compile_meta(launcher.config)
        options = kernel._create_compile_options(launcher.config, meta)
        entries = signature(kernel.fn, meta)
        return {
            "signature": entries,
            "constants": {name: meta["constants"][name] for name in meta["signature"] if name in meta["constants"]},
            "options": {name: value for name, value in options.items() if isinstance(value, (bool, int, float, str))},
            "tried": max(1, len(kernel.compile_results)),
            "registers": launcher.n_regs,
            "spilled": launcher.n_spills and 4 * launcher.n_spills,  # counted in words
            "shared": launcher.shared,
        }
    except (AttributeError, KeyError, ValueError) as error:
        problem = f"{type(error).__name__}: {error}"
        raise Refused(f"torch {torch.__version__} does not tell how it launches a kernel: {problem}") from error


def signature(function: Any, meta: Mapping[str, Any]) -> list[str]:
    """The types of a Triton kernel's arguments, with :16 where 16 divides the value, and the values of constexprs.

    Raises:
        ValueError: an argument has a value that no entry can say.
    """
    declared = {parameter.name for parameter in function.params if parameter.is_constexpr}
    hints = meta["configs"][0]
    entries = []
    for index, name in enumerate(function.arg_names):
        kind, value = meta["signature"][name], meta["constants"].get(name)
        if kind != "constexpr":
            divisible = ["tt.divisibility", 16] in [list(hint) for hint in hints.get((index,), [])]
            entries.append(f"{kind}:16" if divisible else kind)
        elif name in declared or value is None:
            entries.append(repr(value))
        elif value == 1:  # its type is lost, and does not matter
            entries.append("i32:1")
        else:
            raise ValueError(f"{name}: expected a constexpr, None or 1, got {value!r}")
    return entries


# --8<-- [end:chosen]
