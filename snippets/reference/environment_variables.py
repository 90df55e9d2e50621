"""What the variables and options of the compiler stack do: defaults in the installed torch, and runs that show it."""

import json
import logging
import os
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path

import torch

from snippets.reference.environment_variables_effects import effects
from snippets.reference.environment_variables_processes import (
    child,
    debug,
    forked,
    logs,
    repro,
    told_everything,
    triton_and_cpp,
)
from snippets.reference.environment_variables_settings import (
    OPTIONS,
    SETTINGS,
    options,
)


# --8<-- [start:precedence]
def print_precedence() -> None:
    """For the process that asks: who wins, a variable or a line of code, under the two variables named here."""
    import torch._inductor.config as config

    config.max_autotune = False
    print(f"TORCHINDUCTOR_MAX_AUTOTUNE=1, then config.max_autotune = False in the code: {config.max_autotune}")
    config.fx_graph_cache = True
    print(f"TORCHINDUCTOR_FX_GRAPH_CACHE=0, then config.fx_graph_cache = True in the code: {config.fx_graph_cache}")
    os.environ["TORCHINDUCTOR_COORDINATE_DESCENT_TUNING"] = "1"
    print(f"os.environ changed after the import, config.coordinate_descent_tuning: {config.coordinate_descent_tuning}")


# --8<-- [end:precedence]


def precedence(folder: Path) -> Iterator[tuple[str, str]]:
    given = {"TORCHINDUCTOR_MAX_AUTOTUNE": "1", "TORCHINDUCTOR_FX_GRAPH_CACHE": "0"}
    yield "precedence", forked(print_precedence, given).stdout.strip()


def tables() -> Iterator[tuple[str, str]]:
    """Each group's settings, with the values that the installed version has without a variable and with it."""
    changed, usual = json.loads(told_everything()[0]), options()
    for name, group in SETTINGS.items():
        lines = []
        for variable, where in group:
            if where not in OPTIONS:
                lines.append(f"{variable}\n    read by {where}")
                continue
            lines += [variable] if variable else []
            lines.append(f"{'    sets ' * bool(variable)}{where}")
            value = usual[where] or "empty"
            lines.append(f"    {value} -> {changed[where]}" if variable else f"    {value}")
        yield name, "\n".join(lines)


def everything() -> None:
    """For a process that nobody has told anything about the compiler."""
    printed: list[tuple[str, str]] = []
    with tempfile.TemporaryDirectory() as folder:
        for effect in (precedence, logs, debug, repro, triton_and_cpp):
            (own := Path(folder, effect.__name__)).mkdir()
            printed += effect(own)
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    printed += tables()
    with torch._inductor.config.patch({"cpp.vec_isa_ok": False}):  # no vector instructions, and so no trials of them
        printed += effects()
    for name, text in printed:
        print(f"==== {name}")
        print(text.replace(folder, "/tmp"))


def main() -> None:
    """Print every group's defaults, and every effect that takes seconds on a CPU."""
    print(child({}, "everything", module="snippets.reference.environment_variables").stdout, end="")


if __name__ == "__main__":
    if sys.argv[1:]:
        everything()
    else:
        main()
