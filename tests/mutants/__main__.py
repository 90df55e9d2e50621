"""Plants each mutant in a copy of the tree and runs the test that must fail: `python -m tests.mutants [NAME…]`.

The tree is only read. The tests run on an unchanged copy first, since a test that fails anyway kills nothing.
"""

import argparse
import asyncio
import os
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch

from tests.mutants.mutant import ROOT, Mutant, load

NOT_COPIED = {".git", ".cache", ".nox", ".venv", "site", "docs/measurements/local"}
CACHES = {"TORCHINDUCTOR_CACHE_DIR": "inductor", "TRITON_CACHE_DIR": "triton"}  # keyed by the code compiled
SECONDS = 900  # for one run of pytest; a mutant that loops for ever ends then
PASSED, FAILED = 0, 1  # pytest's status; all others say that it did not get to run the tests
WIDTH = 200  # of a reason


@dataclass(frozen=True)
class Outcome:
    """How one run of pytest ended: its exit status, its first failure or last line, and the seconds that it took."""

    status: int
    reason: str
    seconds: float = 0.0


def main(arguments: list[str], root: Path = ROOT) -> int:
    """Returns the exit status: 0 where each mutant was killed or needs what this machine lacks."""
    parser = argparse.ArgumentParser(prog="nox -s mutants --", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="mutants, or areas; all if none is given")
    parser.add_argument("--list", action="store_true", help="print the mutants and stop")
    options = parser.parse_args(arguments)
    mutants = load(root)
    if unknown := set(options.names) - {word for mutant in mutants for word in (mutant.name, mutant.area)}:
        parser.error(f"no mutant and no area of this name: {', '.join(sorted(unknown))}")
    picked = [mutant for mutant in mutants if not options.names or {mutant.name, mutant.area} & set(options.names)]
    if options.list:
        print(*(f"{mutant.area:<20} {mutant.name:<42} {mutant.fault}" for mutant in picked), sep="\n")
        return 0
    try:
        return asyncio.run(run(picked, root))
    except (KeyboardInterrupt, asyncio.CancelledError) as interruption:
        return 128 + (signal.SIGINT if isinstance(interruption, KeyboardInterrupt) else signal.SIGTERM)


async def run(mutants: list[Mutant], root: Path) -> int:
    """Plant them all, several at a time, and print what became of each; returns the exit status."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)  # SIGINT does so by itself
    verdicts = {mutant.name: ("error", mutant.trouble(root)) for mutant in mutants if mutant.trouble(root)}
    gpu = torch.cuda.is_available()
    verdicts |= {mutant.name: ("not run", "needs a GPU") for mutant in mutants if mutant.needs == "gpu" and not gpu}
    left = [mutant for mutant in mutants if mutant.name not in verdicts]
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        bench = Bench(root, Path(folder))
        if not await unmutated(bench, left):
            return 1
        number = 0
        async with asyncio.TaskGroup() as group:

            async def judge(mutant: Mutant) -> None:
                nonlocal number
                outcome = await bench.test(mutant.name, [mutant.test], mutant)
                verdicts[mutant.name] = verdict, reason = judged(outcome)
                number += 1
                progress = f"[{number:>{len(str(len(left)))}}/{len(left)}]"
                print(f"{progress} {verdict:<8} {mutant.name:<42} {outcome.seconds:5.1f} s  {reason}", flush=True)

            for mutant in left:
                group.create_task(judge(mutant))
    return summary(verdicts)


async def unmutated(bench: "Bench", mutants: Iterable[Mutant]) -> bool:
    """Whether the tests pass on the tree as it is."""
    tests: dict[str, set[str]] = {}
    for mutant in mutants:
        tests.setdefault(mutant.test_file, set()).add(mutant.test)
    print(f"without a mutant: {len(tests)} test files", flush=True)
    async with asyncio.TaskGroup() as group:
        runs = {
            file: group.create_task(bench.test(Path(file).stem, [file] if file in ids else sorted(ids)))
            for file, ids in tests.items()
        }
    failed = {file: run.result().reason for file, run in runs.items() if run.result().status != PASSED}
    for file, why in failed.items():
        print(f"{file} fails without a mutant: {why}")
    return not failed


class Bench:
    """Copies of a tree in a temporary folder, and as many runs of pytest at a time as there are processors."""

    def __init__(self, root: Path, folder: Path):
        self.folder = folder
        self.original = folder / "original"
        self.slots = asyncio.Semaphore(len(os.sched_getaffinity(0)))
        caches = {variable: str(root / ".cache" / name) for variable, name in CACHES.items()}
        self.environment = (
            caches | os.environ | {"OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1", "COLUMNS": "400"}
        )

        def left_out(directory: str, names: list[str]) -> list[str]:
            below = Path(directory).relative_to(root)
            return [name for name in names if name == "__pycache__" or (below / name).as_posix() in NOT_COPIED]

        shutil.copytree(root, self.original, ignore=left_out)

    async def test(self, name: str, tests: list[str], mutant: Mutant | None = None) -> Outcome:
        """Run these tests until the first failure, in a copy that has the mutant."""
        async with self.slots:
            tree = self.folder / name
            shutil.copytree(self.original, tree)
            if mutant:
                mutant.plant(tree)
            outcome = await self.pytest(tree, tests)
            shutil.rmtree(tree, ignore_errors=True)
            return outcome

    async def pytest(self, tree: Path, tests: list[str]) -> Outcome:
        began = time.monotonic()
        scratch = tree.with_name(f"{tree.name}-scratch")  # also for locks, by which runs on one machine take turns
        scratch.mkdir()
        command = [sys.executable, "-m", "pytest", "-x", "-q", *tests]
        process = await asyncio.create_subprocess_exec(
            *command, cwd=tree, env=self.environment | {"TMPDIR": str(scratch)}, start_new_session=True,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
        try:
            output, _ = await asyncio.wait_for(process.communicate(), SECONDS)
        except TimeoutError:
            return Outcome(-1, f"no end after {SECONDS} s", time.monotonic() - began)
        finally:
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)  # and what the tests started
                await process.wait()
        assert process.returncode is not None
        return Outcome(process.returncode, reason(output.decode(errors="replace")), time.monotonic() - began)


def reason(output: str) -> str:
    """The first failure in what pytest printed, with its message, else the last line."""
    failures = re.findall(r"^(?:FAILED|ERROR) (.+)", output, re.MULTILINE)
    lines = failures or output.strip().splitlines()[-1:] or [""]
    return lines[0].removeprefix("tests/")[:WIDTH]


def judged(outcome: Outcome) -> tuple[str, str]:
    """killed, survived or error, and the reason."""
    if outcome.status == PASSED:
        return "survived", "the test passes"
    if outcome.status == FAILED:
        return "killed", outcome.reason
    return "error", f"pytest ended with status {outcome.status}: {outcome.reason}"


def summary(verdicts: dict[str, tuple[str, str]]) -> int:
    """Print the counts, and what is not as it should be; returns the exit status."""
    counts = {
        word: sum(verdict == word for verdict, _ in verdicts.values()) for word in ("killed", "survived", "error")
    }
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(f"{counts['killed']} of {len(verdicts)} killed; {usage.ru_utime + usage.ru_stime:.0f} s of processor time")
    for name, (verdict, why) in verdicts.items():
        if verdict != "killed":
            print(f"{verdict:<8} {name:<42} {why}")
    return int(counts["survived"] + counts["error"] > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
