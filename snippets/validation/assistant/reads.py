"""`assistant read`: what a profiler's trace, a log of PyTorch, or traces of several ranks say is the largest loss."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from .logs import Compiled, joined, read_compiled, read_folder, read_log
from .losses import Reading
from .spent import read_one, read_ranks
from .subject import Refused
from .traces import Trace, read_trace

EXPECTED = "expected a trace of torch.profiler, a log of TORCH_LOGS, or a folder of TORCH_TRACE or tlparse"


def main(arguments: list[str]) -> int:
    """`assistant read FILE_OR_FOLDER [MORE...]`."""
    parser = argparse.ArgumentParser("assistant read", description=__doc__)
    parser.add_argument(
        "paths", nargs="+", type=Path, metavar="FILE_OR_FOLDER", help=EXPECTED.removeprefix("expected ")
    )
    print(read_all(parser.parse_args(arguments).paths))
    return 0


def read_all(paths: Sequence[Path]) -> Reading:
    """What the files say, recognised by their content.

    Raises:
        Refused: one of them is nothing that is known, or they are of several kinds.
    """
    found = [one for path in paths for one in read(path)]
    traces = [one for one in found if isinstance(one, Trace)]
    logs = [one for one in found if isinstance(one, Compiled)]
    if traces and logs:
        raise Refused(f"{EXPECTED}; got several kinds: read traces and logs one after the other")
    if logs:
        return read_compiled(joined(logs), ", ".join(path.name for path in paths))
    return read_one(traces[0]) if len(traces) == 1 else read_ranks(traces)


def read(path: Path) -> list[Trace | Compiled]:
    """The traces or the log in a file or a folder."""
    try:
        found = read_directory(path) if path.is_dir() else [read_file(path)]
    except OSError as error:
        raise Refused(f"{path} cannot be read: {error.strerror}") from None
    except (LookupError, TypeError, AttributeError) as error:
        raise Refused(
            f"{EXPECTED}; {path} breaks off, or is of another version: {type(error).__name__} {error}"
        ) from None
    if found and all(one is not None for one in found):
        return [one for one in found if one is not None]
    kind = "a folder without them" if path.is_dir() else described(path)
    raise Refused(f"{EXPECTED}; {path} is {kind}")


def read_directory(folder: Path) -> list[Trace | Compiled | None]:
    """The traces of a folder, as those of ranks; tlparse's output has a trace of the compiler too, which is none."""
    traces = []
    if not (folder / "compile_directory.json").exists():
        traces = [
            one
            for path in sorted(folder.iterdir())
            if path.name.endswith((".json", ".json.gz")) and (one := read_trace(path))
        ]
    return list(traces) or [read_folder(folder)]


def read_file(path: Path) -> Trace | Compiled | None:
    return read_trace(path) or read_log(path.read_text(encoding="utf-8", errors="replace"))


def described(path: Path) -> str:
    """What a file that is nothing of these looks like."""
    raw = path.read_bytes()[:200]
    if not raw:
        return "empty"
    if raw.lstrip()[:1] in (b"{", b"["):
        return "JSON without traceEvents"
    return (
        "packed or binary"
        if b"\0" in raw or raw[:2] == b"\x1f\x8b"
        else f"text that begins with {raw[:40].decode(errors='replace').splitlines()[0]!r}"
    )
