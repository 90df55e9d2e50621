"""Traces to read: real timelines of an H100 that pages show, and small ones made by hand, with round times."""

import json
from pathlib import Path

from snippets.validation.assistant.traces import Trace, read_trace
from tests.benchmarks.captures import contents

LANES = {
    "named by record_function": "user_annotation",
    "operations": "cpu_op",
    "CUDA calls": "cuda_runtime",
    "GPU": "kernel",
}


def recorded(name: str, folder: Path) -> Path:
    """A step that an H100 ran, back from the timeline on the profiling page into the profiler's form."""
    timeline = json.loads(contents("validation/profiling_programs", "cuda")[f"{name}, timeline"])
    numbers = {start: number for number, (start, _) in enumerate(timeline["arrows"])}
    numbers |= {("GPU", kernel): numbers[start] for start, kernel in timeline["arrows"]}
    events = []
    for lane in timeline["lanes"]:
        for start, length, called, _ in lane["bars"]:
            category = "gpu_memcpy" if called.startswith("Memcpy") and lane["name"] == "GPU" else LANES[lane["name"]]
            number = numbers.get(("GPU", start) if lane["name"] == "GPU" else start)
            args = {} if number is None or lane["name"] not in ("GPU", "CUDA calls") else {"correlation": number}
            thread = 7 if lane["name"] == "GPU" else 1
            events.append(
                {"ph": "X", "cat": category, "name": called, "ts": start, "dur": length, "tid": thread, "args": args}
            )
    path = folder / f"{name}.json"
    path.write_text(json.dumps({"traceEvents": events}))
    return path


class Made:
    """A synthetic trace in the profiler's form; times in microseconds, and what a frame calls lies in its time."""

    def __init__(self, source: Path | None = None, rank: int | None = None):
        self.source, self.events, self.number = source, [], 0
        self.about = {} if rank is None else {"distributedInfo": {"backend": "nccl", "rank": rank, "world_size": 2}}

    def add(self, name: str, category: str, start: float, length: float, thread: int = 1, **args: object) -> "Made":
        self.events.append(
            {"ph": "X", "cat": category, "name": name, "ts": start, "dur": length, "tid": thread, "args": args}
        )
        return self

    def step(self, start: float, length: float, number: int = 0) -> "Made":
        return self.add(f"ProfilerStep#{number}", "user_annotation", start, length)

    def frame(self, function: str, line: int, start: float, length: float) -> "Made":
        """A function of the source's."""
        return self.add(f"{self.source}({line}): {function}", "python_function", start, length)

    def launch(self, op: str, at: float, *kernels: tuple[str, float, float], call: str = "cudaLaunchKernel", **args):
        """An operation of 10 us with a launch in it, and what it starts on the GPU: (name, start, length)."""
        self.number += 1
        self.add(op, "cpu_op", at, 10, **args)
        self.add(call, "cuda_runtime", at + 2, 5, correlation=self.number)
        for name, start, length in kernels:
            category = "gpu_memcpy" if name.startswith("Memcpy") else "kernel"
            self.add(name, category, start, length, 7, correlation=self.number, **{"Process Group Name": "0"})
        return self

    def write(self, path: Path) -> Path:
        path.write_text(json.dumps({"traceEvents": self.events, **self.about}))
        return path

    def trace(self, folder: Path) -> Trace:
        found = read_trace(self.write(folder / "made.json"))
        assert found is not None
        return found
