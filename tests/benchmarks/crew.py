"""Points side by side: processes prepare, build and check at the same time, and take their samples one after another.

Who has built asks for a turn. Then all others are stopped (SIGSTOP) and what they had queued on the GPU runs out, until
the samples are taken: nothing else runs meanwhile, on the GPU or the host. Where a library times alternatives while it
builds, each of them has a turn, too.

A process may run out of memory beside others. Its point is then measured again beside a quarter as many, then by a
process that has the machine for itself; where a process crashes or hangs, at once. A process that keeps a point's
memory ends, and another begins.
"""

import contextlib
import ctypes
import functools
import math
import multiprocessing
import os
import signal
import sys
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch
import torch._inductor.config

from snippets.validation.timing import nothing
from tests.benchmarks import machine, method, runner
from tests.benchmarks.case import Point
from tests.benchmarks.runner import Found, Outcomes, Points, Record

SPAWN = multiprocessing.get_context("spawn")  # a process with CUDA cannot be forked
GPU_MEMORY, HOST_MEMORY = 6 * 2**30, 3 * 2**30  # bytes for each process
KEPT = 2**30  # bytes of the GPU with which a process may begin its next point
PATIENCE = 400.0  # seconds of its own after which a process hangs
RESERVE = 30.0  # seconds before the end in which no point begins
LINGER = 0.003  # seconds in which who was alone may go on: libraries time alternatives one after another
LIMITS, END = None, "end"  # what is measured first, the machine's own limits; and what is sent last
NO_MEMORY = ("OutOfMemory", "out of memory", "ALLOC_FAILED")
Task = tuple[str, Point] | None
Work = Callable[[Connection, Any, str], None]


def size(device: torch.device) -> int:
    """How many processes can work side by side; none on a CPU, where a call may use all cores."""
    if device.type != "cuda" or sys.platform != "linux":
        return 0
    host = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    gpu = torch.cuda.get_device_properties(device).total_memory
    most = min(len(os.sched_getaffinity(0)) - 1, gpu // GPU_MEMORY, host // HOST_MEMORY)
    return most if most > 1 else 0


# ---- in a process ---------------------------------------------------------------------------------------------------


def work(line: Connection, stopped: Any, name: str) -> None:
    """Measure what comes along the line."""
    begin()
    device = torch.device(name)
    turns = Turns(line, stopped, device)
    turns.take()
    watched = device.type != "cuda"
    with contextlib.suppress(EOFError):  # whoever started this has ended
        while (said := line.recv()) != END:
            task, machine.beside.crowded = said
            if not watched:
                with turns.turn():  # where several ask for the profiler at once, some never get it
                    method.count_kernels({"nothing": (nothing, nothing)}, device)
                watched = True
            waited = wait_for_room(device)
            found = answer(task, device)
            if isinstance(found, Found):
                found.waited = waited
            keeps = device.type == "cuda" and torch.cuda.memory_reserved(device) > KEPT
            line.send(("last" if keeps else "done", found))


def begin() -> None:
    """Be stopped with all that this process starts, end with whoever started it, and compile here."""
    os.setsid()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    torch._inductor.config.compile_threads = 1  # all cores are taken


def answer(task: Task, device: torch.device) -> Found | dict:
    if task is LIMITS:
        return runner.limits(device)
    found = runner.measured(*task, device, lambda step: None)
    synchronize(device)  # after an illegal access nothing works in this process: let it end here
    return found


def wait_for_room(device: torch.device, share: float = 0.25, patience: float = 120.0) -> float:
    """Until so much of the GPU's memory is free; in the end without. Returns the seconds."""
    began = time.monotonic()
    last = began + patience
    while device.type == "cuda" and time.monotonic() < last:
        free, total = torch.cuda.mem_get_info(device)
        if free > share * total:
            break
        time.sleep(0.1)
    return time.monotonic() - began


class Turns:
    """The turns of one process."""

    def __init__(self, line: Connection, stopped: Any, device: torch.device):
        self.line, self.stopped, self.device = line, stopped, device
        self.inside, self.waited = False, 0.0

    def take(self) -> None:
        """From here on this process takes turns with others."""
        machine.beside.turn, machine.beside.lost = self.turn, lambda: self.waited + self.stopped.value
        for owner, name in choosers():
            setattr(owner, name, self.alone(getattr(owner, name)))

    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        """Be alone; within a turn nothing changes."""
        if self.inside:
            yield
            return
        asked = time.perf_counter() - self.stopped.value
        self.line.send(("turn", None))
        if self.line.recv():
            began = time.perf_counter()
            settle(self.device)
            machine.spent["settled"] += time.perf_counter() - began
        self.waited += time.perf_counter() - self.stopped.value - asked
        self.inside, began = True, time.perf_counter()
        try:
            yield
            synchronize(self.device)
        finally:
            self.inside = False
            machine.spent["alone"] += time.perf_counter() - began
            self.line.send(("over", None))

    def alone(self, function: Callable) -> Callable:
        @functools.wraps(function)  # the compiler looks at what it takes
        def in_a_turn(*arguments: Any, **options: Any) -> Any:
            if self.inside:
                return function(*arguments, **options)
            with self.turn():
                began = time.perf_counter()
                try:
                    return function(*arguments, **options)
                finally:
                    machine.spent["choosing"] += time.perf_counter() - began

        return in_a_turn


def choosers() -> list[tuple[Any, str]]:
    """Where libraries time alternatives on a GPU: Triton's autotuner, and the compiler's."""
    found: list[tuple[Any, str]] = []
    with contextlib.suppress(ImportError):
        import triton.testing

        found.append((triton.testing, "do_bench"))
    with contextlib.suppress(ImportError):
        from torch._inductor.runtime import benchmarking

        classes = [each for each in vars(benchmarking).values() if isinstance(each, type)]
        found += [(each, "benchmark_gpu") for each in classes if "benchmark_gpu" in vars(each)]
    return found


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def settle(device: torch.device, patience: float = 3.0) -> None:
    """Until nothing that others had queued runs on the GPU any more: spins alone take equally long, twice."""
    last, in_a_row = time.monotonic() + patience, 0
    while device.type == "cuda" and in_a_row < 2 and time.monotonic() < last:
        events = [torch.cuda.Event(enable_timing=True) for _ in range(6)]
        for event in events:
            event.record()
            torch.cuda._sleep(1_000_000)
        torch.cuda.synchronize(device)
        spins = [before.elapsed_time(after) for before, after in pairwise(events)]
        in_a_row = in_a_row + 1 if max(spins) < 1.1 * min(spins) else 0


# ---- beside the processes -------------------------------------------------------------------------------------------


class Worker:
    """A process, as the others see it.

    Attributes:
        task: what it measures; `busy` says whether there is one.
        ran: seconds that it has spent on the task, without waiting and without those for which it was stopped.
    """

    def __init__(self, target: Work, device: torch.device):
        self.line, theirs = SPAWN.Pipe()
        self.stopped = SPAWN.Value("d", 0.0, lock=False)  # seconds for which it was; it reads them
        self.process = SPAWN.Process(target=target, args=(theirs, self.stopped, str(device)))
        self.process.start()
        assert self.process.pid
        self.pid = self.process.pid
        theirs.close()
        self.task: Task = None
        self.busy = self.waits = False
        self.ran = 0.0
        self.since: float | None = None  # when it was stopped

    def give(self, task: Task, crowded: bool) -> None:
        self.task, self.busy, self.ran = task, True, 0.0
        self.tell((task, crowded))

    def tell(self, what: object) -> None:
        with contextlib.suppress(OSError):  # it is dead, which the line will say
            self.line.send(what)

    def stop(self) -> None:
        if self.since is None:
            self.signal(signal.SIGSTOP)
            self.since = time.perf_counter()

    def go_on(self) -> None:
        if self.since is not None:
            self.stopped.value += time.perf_counter() - self.since
            self.since = None
            self.signal(signal.SIGCONT)

    def signal(self, number: int) -> None:
        """To the process and what it has started; it alone while it begins."""
        for send in (os.killpg, os.kill):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                send(self.pid, number)
                return

    def state(self) -> str:
        if not self.busy:
            return "idle"
        return "waited for a turn" if self.waits else "ran" if self.since is None else "stood still"

    def stands(self) -> bool:
        """Whether it has stopped, or ended."""
        try:
            state = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return True
        return state in "TtZX"

    def end(self) -> None:
        self.signal(signal.SIGKILL)
        self.process.join()
        self.line.close()


class Queue:
    """What is left to measure. What failed comes last, each time beside a quarter as many."""

    def __init__(self, tasks: Iterable[Task], most: int):
        self.tasks, self.begun = deque((task, most) for task in tasks), list[tuple[Task, int]]()

    def ready(self, busy: int) -> bool:
        """Whether the next task may begin beside so many."""
        return bool(self.tasks) and busy < self.tasks[0][1]

    def take(self) -> Task:
        self.begun.append(self.tasks.popleft())
        return self.begun[-1][0]

    def put_back(self, failed: Task) -> bool:
        """Measure a task again, unless it can only be alone now."""
        most = min(most for task, most in self.begun if task == failed) // 4
        if most > 1:
            self.tasks.append((failed, most))
        return most > 1


class Crew:
    """Workers that share the machine."""

    def __init__(self, number: int, device: torch.device, target: Work = work):
        self.begun = lambda: Worker(target, device)
        self.workers = [self.begun() for _ in range(number)]
        self.turns: deque[Worker] = deque()
        self.alone: Worker | None = None
        self.spent: dict[str, float] = defaultdict(float)  # seconds of all processes, by what they did

    def end(self) -> None:
        """Who has nothing to do ends by itself."""
        idle = [worker for worker in self.workers if not worker.busy]
        for worker in idle:
            worker.go_on()
            worker.tell(END)
        last = time.monotonic() + 5.0
        for worker in idle:
            worker.process.join(max(0.0, last - time.monotonic()))
        for worker in self.workers:  # at the same time: a driver takes a second to end each
            worker.signal(signal.SIGKILL)
        for worker in self.workers:
            worker.end()
        self.workers = []

    def outcomes(self, tasks: Queue, until: float, end: float) -> Iterator[tuple[Task, Found | dict | str]]:
        """What was measured for each task, in the order in which it was; in words why nothing was.

        Args:
            tasks: they are taken out as they begin.
            until, end: of the monotonic clock; then no task begins any more, and then all that was begun is left.
        """
        while time.monotonic() < end:
            for worker in self.workers:
                if (
                    not worker.busy
                    and time.monotonic() < until
                    and tasks.ready(sum(each.busy for each in self.workers))
                ):
                    worker.give(tasks.take(), crowded=len(self.workers) > 1)
            if not any(worker.busy for worker in self.workers):
                return
            self.next_turn()
            began = time.perf_counter()
            # who was stopped may have said half of something
            ready = wait([worker.line for worker in self.workers if worker.since is None], timeout=0.5)
            passed = time.perf_counter() - began
            for worker in list(self.workers):
                self.spent[worker.state()] += passed
                if worker.state() == "ran":
                    worker.ran += passed
                if worker.line in ready:
                    yield from self.hear(worker)
                elif worker.ran > PATIENCE:
                    yield worker.task, self.replaced(worker, f"the process that measured it hung for {PATIENCE:.0f} s")

    def hear(self, worker: Worker) -> Iterator[tuple[Task, Found | dict | str]]:
        """Take what a worker says."""
        try:
            what, found = worker.line.recv()
            while what == "over":
                what, found = self.over(worker)
        except (EOFError, OSError):
            worker.process.join(timeout=5.0)
            task, busy = worker.task, worker.busy
            reason = self.replaced(worker, f"the process that measured it died with status {worker.process.exitcode}")
            if busy:
                yield task, reason
            return
        if what == "turn":
            worker.waits = True
            self.turns.append(worker)
        elif what in ("done", "last"):
            worker.busy, task = False, worker.task
            if what == "last":
                self.replaced(worker, "it keeps memory of the GPU")
            yield task, found

    def next_turn(self) -> None:
        """If nobody is alone and somebody wants to be, the others stop."""
        if self.alone or not self.turns:
            return
        self.alone = self.turns.popleft()
        others = [worker for worker in self.workers if worker is not self.alone]
        for worker in others:
            worker.stop()
        last = time.monotonic() + 2.0
        while time.monotonic() < last and not all(worker.stands() for worker in others):
            time.sleep(0.0005)
        self.alone.go_on()
        self.let(self.alone, settle=True)

    def let(self, worker: Worker, settle: bool) -> None:
        """Let a worker be alone. Where others ran since, it waits for what they left on the GPU."""
        worker.waits = False
        worker.tell(settle)

    def over(self, worker: Worker) -> tuple[str, Any]:
        """A worker's turn is over, unless nobody waits and it asks for another at once; returns what it says next."""
        if self.turns or not worker.line.poll(LINGER):
            self.release()
            return "", None
        what, found = worker.line.recv()
        if what == "turn":
            self.let(worker, settle=False)
            return "", None
        self.release()
        return what, found

    def release(self) -> None:
        """Nobody is alone: all go on, unless the next is to be."""
        self.alone = None
        if not self.turns:
            for worker in self.workers:
                worker.go_on()

    def replaced(self, worker: Worker, reason: str) -> str:
        """End a worker and begin another in its place; returns the reason."""
        worker.end()
        with contextlib.suppress(ValueError):
            self.turns.remove(worker)
        fresh = self.workers[self.workers.index(worker)] = self.begun()
        if self.alone is worker:
            self.release()
        elif self.alone:
            fresh.stop()
        return reason


# ---- all points ------------------------------------------------------------------------------------------------------


def side_by_side(
    todo: Points, device: torch.device, record: Record, number: int, seconds: float = math.inf, target: Work = work
) -> Outcomes:
    """Measure points by so many processes, each as soon as one is free, until the seconds are used up."""
    end = time.monotonic() + seconds
    until = end - min(RESERVE, seconds / 4)
    record.content["crew"] = number
    tasks, alone = Queue([LIMITS, *runner.in_rounds(todo)], number), Queue([], 1)
    with machine.turn(device, alone=True, calls=True):  # other runs wait until this one has ended
        for many, queue in ((number, tasks), (1, alone)):
            crew = Crew(many if queue.tasks else 0, device, target)
            try:
                for task, found in crew.outcomes(queue, until, end):
                    if queue is tasks and failed(found):
                        if isinstance(found, str) or not tasks.put_back(task):
                            alone.tasks.append((task, 1))
                    elif task is not LIMITS:
                        yield *task, found if isinstance(found, Found) else nothing_of(task, str(found))
                    elif isinstance(found, dict):
                        record.content |= found
                    else:
                        raise RuntimeError(f"the ceilings of this machine: {found}")
            finally:
                if crew.workers:
                    spent = ", ".join(f"{state} {seconds:.0f} s" for state, seconds in crew.spent.items())
                    print(f"{many} processes, seconds of all: {spent}", file=sys.stderr)
                crew.end()


def failed(found: Found | dict | str) -> bool:
    """Whether it may go well without others."""
    reasons = [failure["reason"] for failure in found.failures] if isinstance(found, Found) else []
    return isinstance(found, str) or any(sign in reason for reason in reasons for sign in NO_MEMORY)


def nothing_of(task: tuple[str, Point], reason: str) -> Found:
    name, point = task
    at = method.where(runner.load(runner.discover()[name]), point)
    return Found(failures=[at | {"variant": "*", "reason": reason}])
