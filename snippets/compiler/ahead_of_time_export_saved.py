"""A saved program, loaded in another process, and as another version would have written it."""

import logging
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import torch
from torch.export import ExportedProgram


# --8<-- [start:saved]
def loaded_elsewhere(program: ExportedProgram, folder: Path) -> str:
    """Load a saved program in a process that has PyTorch and nothing of ours, and call it."""
    torch.export.save(program, folder / "program.pt2")
    code = "import torch; print(tuple(torch.export.load('program.pt2').module()(torch.ones(5, 8)).shape))"
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=False)
    return done.stdout.strip() or what_failed(done.stderr)


# --8<-- [end:saved]
def what_failed(said: str) -> str:
    """The sentence of a long log that says why a program could not be loaded."""
    found = re.findall(r"^(?:.*\] )?(?:[\w.]+\.)?(\w+Error: .*)", said, flags=re.MULTILINE)
    return re.split(r"(?<=[a-z])\. ", (found or said.strip().splitlines()[-1:])[0])[0]


def doctored(path: Path, change: Callable[[str], str]) -> Path:
    """A saved program with another text in the place of its graph, as another version would have written it."""
    other = path.with_name("other.pt2")
    with zipfile.ZipFile(path) as before, zipfile.ZipFile(other, "w") as after:
        for name in before.namelist():
            data = before.read(name)
            after.writestr(name, change(data.decode()) if name.endswith("models/model.json") else data)
    return other


def load(path: Path) -> str:
    logged: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: logged.append(logging.Formatter().format(record))  # type: ignore[method-assign]
    logger = logging.getLogger("torch.export")
    logger.addHandler(handler)
    try:
        torch.export.load(path)
    except RuntimeError as error:
        return what_failed("\n".join([*logged, f"{type(error).__name__}: {error}"]))
    finally:
        logger.removeHandler(handler)
    return "loaded"


CHANGES: dict[str, Callable[[str], str]] = {
    "nothing": str,
    "a later minor version": lambda text: re.sub(r'("minor": )\d+', r"\g<1>999", text),
    "a later major version": lambda text: re.sub(r'("major": )\d+', r"\g<1>99", text),
    "an operation not known": lambda text: text.replace(
        "torch.ops.aten.div.Tensor", "torch.ops.aten.divide_new.Tensor"
    ),
}
