"""Scripts in processes forked from one that has imported torch, Dynamo, Inductor and Triton: each saves that time.

`Server` starts the process, in an environment of its own, and `serve` is what it does. A script sees
what `python -m MODULE` or `python FILE` would show it. What is decided before torch is imported stays as the server's
environment has it: a script that is about that needs a fresh process. Where a script starts torchrun, this and its
ranks are forked as well.
"""

import atexit
import contextlib
import ctypes
import gc
import importlib.util
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import types
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.lighter import lighten

PRELOADED = ("numpy", "torch", "torch._dynamo", "torch._inductor.compile_fx", "triton", "triton.language")
ON_THE_WAY = (  # what a first compilation imports, and the Llama of pages; other versions may have other names
    "sympy.tensor.tensor", "torch._dynamo.repro.after_dynamo", "torch.export._trace", "torch.utils.cpp_extension",
    "torch.distributed.tensor.experimental._context_parallel", "transformers.models.llama.modeling_llama",
)  # fmt: skip
RARELY = 50_000, 20, 50  # objects between two collections: Dynamo and Inductor make many, and few in cycles
EMPTY = '#include <torch/csrc/inductor/cpp_prefix.h>\nextern "C" void kernel(long) {}'
TORCHRUN = ["-m", "torch.distributed.run"]
LATE = {"OMP_NUM_THREADS", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"}  # `become_rank` sets the threads; torchrun reads
SERVES = "from tests import forked; forked.serve()"


class Server:
    """A process that runs one script after another, each in a child of its own.

    Args:
        environment: all variables of the server and its scripts.
        folder: where scripts start.
    """

    def __init__(self, environment: Mapping[str, str], folder: Path):
        command = [sys.executable, "-c", SERVES]
        self._process = subprocess.Popen(
            command, cwd=folder, env=dict(environment), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._folder = folder

    def run(self, command: Sequence[str], folder: Path | None = None, timeout: float = 1800):
        """How a script ended: a `CompletedProcess` of `[python, *command]` with its output as text.

        Args:
            command: `["-m", MODULE, ARGUMENT, ...]` or `[FILE, ARGUMENT, ...]`.
            folder: where the script runs, if not where the server was started.

        Raises:
            subprocess.TimeoutExpired: it took longer than `timeout` seconds, and was ended with all that it started.
        """
        assert self._process.stdin and self._process.stdout
        with tempfile.TemporaryDirectory() as written:
            paths = [os.path.join(written, name) for name in ("stdout", "stderr")]
            order = {
                "command": list(command),
                "folder": str(folder or self._folder),
                "paths": paths,
                "seconds": timeout,
            }
            print(json.dumps(order), file=self._process.stdin, flush=True)
            if not (answer := self._process.stdout.readline()):
                raise RuntimeError(
                    f"the server ended with status {self._process.wait()} before {' '.join(command)} did"
                )
            printed, said = (Path(path).read_text(encoding="utf-8", errors="replace") for path in paths)
        whole = [sys.executable, *command]
        if (status := json.loads(answer)) is None:
            raise subprocess.TimeoutExpired(whole, timeout, printed, said)
        return subprocess.CompletedProcess(whole, status, printed, said)

    def close(self) -> None:
        """End the server."""
        assert self._process.stdin and self._process.stdout
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


# ---- the server -----------------------------------------------------------------------------------------------------


def end_with_parent() -> None:
    """Be killed when the process that started this one ends, however it does: nobody else would end this one."""
    with contextlib.suppress(OSError, AttributeError):  # Linux alone has it
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def serve() -> None:
    """Import what scripts need, then run one script for each line of standard input until that is closed."""
    end_with_parent()
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    orders = os.fdopen(os.dup(0), "r")
    subprocess.Popen = Popen  # type: ignore[misc]  # before torch is imported, which keeps it by name
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)  # an import that prints must not answer
    for name in PRELOADED:
        importlib.import_module(name)
    if "torch" in PRELOADED:
        prepare()
        lighten()
    for finalizer in weakref.finalize._registry:  # type: ignore[attr-defined]
        finalizer.atexit = False  # no child takes apart what the server holds
    gc.collect()
    gc.freeze()  # a child's collections neither look at nor copy what all share
    gc.set_threshold(*RARELY)
    for line in orders:
        order = json.loads(line)
        child = os.fork()
        if child == 0:
            orders.close()
            answers.close()
            become(**order)
        print(json.dumps(ended(child, order["seconds"])), file=answers)


def prepare() -> None:
    """Import, make and hash what each script's first compilation would, without asking for a GPU.

    To compile would do more, but start threads, which a child does not have.
    """
    import torch
    from torch._inductor import codecache
    from torch._inductor.codegen import common
    from torch._inductor.fx_passes import joint_graph, post_grad
    from triton.runtime import cache

    for name in ON_THE_WAY:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    joint_graph.lazy_init(torch.device("cpu"))  # patterns, for graphs of this device
    post_grad.lazy_init()
    common.init_backend_registration()
    torch._dynamo.list_backends()
    cache.triton_key()  # of all its files
    with contextlib.suppress(Exception):  # no compiler for C++
        codecache.CppPythonBindingsCodeCache.load_pybinding(["long"], EMPTY)  # precompiles and hashes the headers


def ended(child: int, seconds: float) -> int | None:
    """A child's exit status, the negative signal that ended it, or None where it had to be ended."""
    last = time.monotonic() + seconds
    pause = 0.002
    while True:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > last:
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return None
        time.sleep(pause)
        pause = min(0.01, pause * 1.5)


def become(command: list[str], folder: str, paths: list[str], seconds: float) -> None:
    """Be the process that `python COMMAND` starts; does not return."""
    end_with_parent()
    os.setsid()
    for number, path in enumerate(paths, 1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND), number)
    os.chdir(folder)
    run_and_leave(command)


class Popen(subprocess.Popen):
    """What a script starts. torchrun and its ranks go on in what `subprocess` forks, where others become a program."""

    def __init__(self, args: Sequence[str], *more: object, **options: Any):
        environment = options.get("env")
        if is_torchrun(args, environment):
            for stream in (sys.stdout, sys.stderr):
                stream.flush()  # or the child would write it, too
            options["preexec_fn"] = lambda: become_rank(list(args[1:]), environment)
        super().__init__(args, *more, **options)


def is_torchrun(args: object, environment: Mapping[str, str] | None) -> bool:
    """Whether this starts torchrun under no other variables but `LATE`, or a rank of one that was forked."""
    if not isinstance(args, (list, tuple)) or args[0] != sys.executable or environment is None:
        return False
    if sys.orig_argv[1:3] == TORCHRUN:
        return "RANK" in environment
    other = {name for name, _ in {*environment.items()} ^ {*os.environ.items()}}
    return list(args[1:3]) == TORCHRUN and other <= LATE


def become_rank(command: list[str], environment: Mapping[str, str]) -> None:
    """Be the process that `python COMMAND` starts, with the streams and the folder that it has; does not return."""
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))  # the one among them by which the parent waits for the program
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):  # torchrun's
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    atexit._clear()  # what the parent does at its end, as removing its folders
    gc.enable()
    os.environ.clear()
    os.environ.update(environment)
    sys.modules["torch"].set_num_threads(int(os.environ.get("OMP_NUM_THREADS", sys.modules["torch"].get_num_threads())))
    if command[0] == "-u":
        sys.stdout.reconfigure(write_through=True)  # type: ignore[union-attr]
        command = command[1:]
    run_and_leave(command)


def run_and_leave(command: list[str]) -> None:
    """Run a script and end as it does."""
    random.seed()
    sys.modules["numpy"].random.seed()
    status = 1
    try:
        run(command)
        status = 0
    except SystemExit as ending:
        status = status_of(ending)
    except BaseException as error:  # noqa: BLE001 (the interpreter's own way)
        shown = error.__traceback__
        while shown and shown.tb_frame.f_code.co_filename == __file__:  # begin where the script does
            shown = shown.tb_next
        traceback.print_exception(type(error), error, shown)
    leave(status)


def run(command: list[str]) -> None:
    """The script, as the main module of this process."""
    sys.orig_argv = [sys.executable, *command]
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    if command[0] == "-m":
        sys.path[0] = os.getcwd()
        spec = importlib.util.find_spec(command[1])
        if spec is not None and spec.submodule_search_locations is not None:  # a package
            spec = importlib.util.find_spec(f"{command[1]}.__main__")
        if spec is None or spec.loader is None:
            sys.exit(f"{sys.executable}: No module named {command[1]}")
        path, code = str(spec.origin), spec.loader.get_code(spec.name)
        sys.argv = [path, *command[2:]]
        main.__spec__, main.__loader__, main.__package__ = spec, spec.loader, spec.parent
    else:
        path = os.path.abspath(command[0])
        sys.argv, sys.path[0] = command, os.path.dirname(path)
        code = compile(Path(path).read_bytes(), path, "exec")
        main.__package__ = None
    main.__file__ = path
    exec(code, vars(main))


def status_of(ending: SystemExit) -> int:
    """The exit status that Python gives for it; a message is printed."""
    if ending.code is None or isinstance(ending.code, int):
        return (ending.code or 0) & 0xFF
    print(ending.code, file=sys.stderr)
    return 1


def leave(status: int) -> None:
    """End as an interpreter does, but without taking apart what the server shares: that takes two seconds."""
    try:
        threading._shutdown()
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
    finally:
        os._exit(status)
