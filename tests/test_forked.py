"""tests/forked.py: a script that is forked sees and leaves what a script in a process of its own does."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import forked as tool
from tests.benchmarks import captures

Run = Callable[..., subprocess.CompletedProcess[str]]
SHOWS = """
import os, sys, types
import helper
def f(): pass
print(__name__, __file__ == sys.argv[0], sys.argv[1:], sys.orig_argv[1:] == ARGV)
print(os.getcwd() == os.path.dirname(__file__), sys.path[0] == os.getcwd(), helper.ONE, f.__module__, sys.stdin.read())
print(sys.modules["__main__"].f is f, __spec__ and __spec__.name, __package__, "torch" in sys.modules)
print("to stderr", file=sys.stderr)
"""
ENDS = {
    "a status": ("import sys; print('x'); sys.exit(3)", 3),
    "a message": ("raise SystemExit('no such thing')", 1),
    "an error": ("def f():\n    raise ValueError('wrong')\nf()", 1),
    "no syntax": ("x = = 1", 1),
    "a signal": ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", -signal.SIGSEGV),
    "at exit": ("import atexit; atexit.register(print, 'last'); print('first', end='')", 0),
    "a thread": (
        "import threading\nthreading.Timer(0.1, lambda: print('late')).start()",
        0,
    ),
    "a child": ("import os\nif os.fork() == 0: print('child', flush=True); os._exit(0)\nos.wait(); print('parent')", 0),
    "closed": ("import sys; sys.stdout.close()", 0),
}


def both(folder: Path, command: list[str], forked: Run) -> list[tuple[int, str, str]]:
    """How a command ends in a process of its own and forked: status, output, errors."""
    alone = subprocess.run(
        [sys.executable, *command], cwd=folder, env=captures.environment("cpu"), capture_output=True, text=True,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
    return [(done.returncode, done.stdout, done.stderr) for done in (alone, forked(command, folder, "cpu"))]


FIRST = """
import torch
from torch._inductor import codecache
from torch._inductor.fx_passes import joint_graph
from triton.runtime import cache
def made():
    kept = joint_graph.lazy_init, cache.triton_key, codecache._precompile_header
    return [each.cache_info().misses for each in kept]
before = made()
torch.compile(lambda x: x.sin() + 1)(torch.ones(8))
print(before, made())
"""


def test_a_first_compilation_finds_what_it_would_make(tmp_path: Path, forked: Run) -> None:
    """Patterns, the hash of Triton and that of the headers: 1.3 s of a core."""
    (tmp_path / "first.py").write_text(FIRST)
    done = forked(["first.py"], tmp_path, "cpu")
    assert done.stdout == "[1, 1, 1] [1, 1, 1]\n", done.stderr


@pytest.mark.parametrize("how", ["file", "module", "package"])
def test_a_script_sees_the_same(how: str, tmp_path: Path, forked: Run) -> None:
    command = ["shows.py", "--two", "3"] if how == "file" else ["-m", "shows", "--two", "3"]
    file = tmp_path / ("shows/__main__.py" if how == "package" else "shows.py")
    file.parent.mkdir(exist_ok=True)
    (file.parent / "__init__.py").touch()
    file.write_text(SHOWS.replace("ARGV", repr(command)).replace(', "torch" in sys.modules', ""))
    (tmp_path / "helper.py").write_text("ONE = 1\n")
    alone, child = both(tmp_path, command, forked)
    assert alone == child
    assert "['--two', '3'] True" in child[1] and child[2] == "to stderr\n"


@pytest.mark.parametrize("what", ENDS)
def test_a_script_ends_the_same(what: str, tmp_path: Path, forked: Run) -> None:
    text, status = ENDS[what]
    (tmp_path / "ends.py").write_text(text)
    alone, child = both(tmp_path, ["ends.py"], forked)
    assert alone == child and child[0] == status


def test_a_module_that_is_missing_is_named(forked: Run) -> None:
    done = forked(["-m", "snippets.nothing"])
    assert done.returncode == 1 and "No module named snippets.nothing" in done.stderr


def test_scripts_share_torch_and_nothing_that_they_did(tmp_path: Path, forked: Run) -> None:
    """Neither random numbers nor what an earlier script has set."""
    text = (
        "import random, sys, torch\nprint(torch.get_num_threads(), len(sys.modules), random.random(), torch.rand(1))\n"
    )
    (tmp_path / "one.py").write_text(f"{text}torch.set_num_threads(1); torch.manual_seed(3); import cProfile\n")
    first, second = (forked(["one.py"], tmp_path).stdout.split() for _ in range(2))
    assert first[:2] == second[:2] and first[2] != second[2] and first[3:] == second[3:]


def test_a_script_without_end_is_ended_with_what_it_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a server of this test: the timeout of the shared one is long."""
    (tmp_path / "snippets").mkdir()
    (tmp_path / "hangs.py").write_text(
        "import subprocess, sys\nprint('begun', flush=True)\n"
        "child = subprocess.Popen(['sleep', '600'])\nopen('pid', 'w').write(str(child.pid))\nchild.wait()\n"
    )
    bare = {**os.environ, "PYTHONPATH": str(captures.ROOT)}
    monkeypatch.setattr(tool, "SERVES", "from tests import forked; forked.PRELOADED = ('numpy',); forked.serve()")
    server = tool.Server(bare, tmp_path)
    with pytest.raises(subprocess.TimeoutExpired) as ended:
        server.run(["hangs.py"], timeout=3)
    assert ended.value.stdout == "begun\n"
    child = int((tmp_path / "pid").read_text())
    assert within(5, lambda: gone(child))
    (tmp_path / "works.py").write_text("print('works')")
    assert server.run(["works.py"]).stdout == "works\n"
    server.close()


STARTS_RANKS = """
import atexit, os, pathlib, signal, subprocess, sys, time
done = pathlib.Path("done")
if "RANK" in os.environ:
    signals = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    seen = os.environ["RANK"], __name__, sys.argv[1:], signals, os.listdir("/proc/self/fd")
    sys.stdout.write(f"{seen}\\n")  # at once: the other writes, too
    sys.stderr.write("forked\\n" if "torch" in sys.modules else "started\\n")
    import torch
    sys.stdout.write(f"{torch.get_num_threads()} threads\\n")
    if os.environ["RANK"] == "1":
        while not done.exists():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)
    done.touch()
else:
    done.unlink(missing_ok=True)
    atexit.register(print, "the parent's end")
    command = f"-m torch.distributed.run --standalone --nproc-per-node 2 {__file__} --two".split()
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    ended = subprocess.run([sys.executable, *command], env=os.environ | {"OMP_NUM_THREADS": "1"}, **pipes)
    print(ended.returncode, sorted(ended.stdout.splitlines()), "Signal 9 (SIGKILL)" in ended.stderr)
    print([line for line in ended.stderr.splitlines() if line.startswith(("forked", "started"))])
"""


def test_ranks_of_torchrun_are_forked_and_see_and_end_as_others_do(tmp_path: Path, forked: Run) -> None:
    (tmp_path / "starts.py").write_text(STARTS_RANKS)
    alone, child = both(tmp_path, ["starts.py"], forked)
    assert alone[1].endswith("True\n['started', 'started']\nthe parent's end\n"), alone
    assert child == (alone[0], alone[1].replace("started", "forked"), alone[2])


def test_torchrun_with_other_variables_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "x.py"]
    usual, rank = dict(os.environ), dict(os.environ) | {"RANK": "0"}
    assert tool.is_torchrun(command, usual)
    assert tool.is_torchrun(command, usual | {"OMP_NUM_THREADS": "1"})
    assert not tool.is_torchrun(command, usual | {"TORCH_LOGS": "graph"})
    assert not tool.is_torchrun(command, {name: usual[name] for name in usual if name != "PATH"})
    assert not tool.is_torchrun([sys.executable, "-m", "torch.utils.collect_env"], usual)
    assert not tool.is_torchrun([sys.executable, "-u", "x.py"], rank)
    monkeypatch.setattr(sys, "orig_argv", command)
    assert tool.is_torchrun([sys.executable, "-u", "x.py"], rank)
    assert not tool.is_torchrun([sys.executable, "-u", "x.py"], usual)


def test_a_server_that_ended_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tool, "SERVES", "import sys; sys.stdin.readline(); sys.exit(9)")
    with pytest.raises(RuntimeError, match=r"ended with status 9 before -m snippets\.a did"):
        tool.Server(os.environ, tmp_path).run(["-m", "snippets.a"])


def test_a_script_ends_with_whoever_waited_for_it(tmp_path: Path) -> None:
    """A run that is killed leaves nothing behind that takes a core."""
    (tmp_path / "endless.py").write_text(
        "import os, time\nopen('pid', 'w').write(str(os.getpid()))\nwhile True: time.sleep(0.1)\n"
    )
    asks = f"""
import os
from tests import forked
forked.SERVES = "from tests import forked; forked.PRELOADED = ('numpy',); forked.serve()"
environment = os.environ | {{"PYTHONPATH": {str(captures.ROOT)!r}}}
forked.Server(environment, {str(tmp_path)!r}).run(["endless.py"])
"""
    asker = subprocess.Popen([sys.executable, "-c", asks], cwd=captures.ROOT)
    written = tmp_path / "pid"
    assert within(30, lambda: written.exists() and written.read_text() != "")
    asker.kill()
    asker.wait()
    assert within(10, lambda: gone(int(written.read_text())))


def within(seconds: float, holds: Callable[[], bool]) -> bool:
    """Whether something holds before so many seconds have passed."""
    last = time.monotonic() + seconds
    while not (found := holds()) and time.monotonic() < last:
        time.sleep(0.01)
    return found


def gone(process: int) -> bool:
    """Whether it has ended; an orphan is waited for by whoever adopts it."""
    stat = Path(f"/proc/{process}/stat")
    try:
        return " Z " in stat.read_text()
    except OSError:
        return True
