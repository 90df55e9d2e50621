"""Compile all kernels as they are published: `python -m docs.publish.compiled [NAME ...]`."""

import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial

import triton

from docs.publish.compiled import build, cuda, inductor
from docs.publish.errors import PublishError
from docs.publish.place import kernel_files
from snippets.validation.compiled_code import Refused


def main(names: list[str]) -> int:
    """Returns the exit status."""
    began, known = time.perf_counter(), [*kernel_files(), build.INDUCTOR]
    if unknown := [name for name in names if name not in known]:
        print(f"names: expected some of {', '.join(known)}, got {', '.join(unknown)}", file=sys.stderr)
        return 2
    try:
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as beside:
            others: list[Callable[[], object]] = [inductor.fresh, *(partial(cuda.results, n) for n in kernel_files())]
            waiting = [beside.submit(other) for other in others if not names and not all(map(build.is_fresh, known))]
            build.build(names or known, _report)
            for task in waiting:
                task.result()
        for other in others if not names else ():
            other()  # where Triton's kernels are kept, these are as a rule
    except (Refused, PublishError) as error:
        _report("")
        print(error, file=sys.stderr)
        return 1
    _report("")
    print(f"kernels compiled ahead of time: {time.perf_counter() - began:.0f} s", file=sys.stderr)
    return 0


def _report(line: str) -> None:
    """In the place of the last one where somebody looks, else not at all."""
    if sys.stderr.isatty():
        print(f"\r\033[K{line}", end="", file=sys.stderr, flush=True)


if __name__ == "__main__":
    if triton.knobs.runtime.interpret:  # whether to, triton asks when it is imported
        command = [sys.executable, "-m", "docs.publish.compiled", *sys.argv[1:]]
        sys.exit(subprocess.run(command, env=os.environ | {"TRITON_INTERPRET": "0"}).returncode)
    sys.exit(main(sys.argv[1:]))
