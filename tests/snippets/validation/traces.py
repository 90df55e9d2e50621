"""Synthetic traces in the form of torch.profiler's.

They are made by hand: names and arguments are such as a GPU's traces have, and times are round numbers.
"""

import json

from snippets.validation.profiling import read, steps_of

ADD = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<c10::BFloat16>, "
    "std::array<char*, 3ul> >(int, at::native::CUDAFunctor_add<c10::BFloat16>, std::array<char*, 3ul>)"
)


class Trace:
    """A synthetic trace of two steps of 1000 us; times count from the first step."""

    def __init__(self):
        self.events = [{"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "python"}}]
        self.number = 0
        for number in range(2):
            self.add(f"ProfilerStep#{number + 2}", "user_annotation", 1000 * number, 1000)

    def add(self, name, category, start, length, tid=1, **args):
        event = {"ph": "X", "cat": category, "name": name, "pid": 1, "tid": tid, "dur": length, "args": args}
        self.events.append(event | {"ts": 5e9 + start})

    def launch(self, op, at, *kernels, call="cudaLaunchKernel"):
        """An operation of 10 us with one launch in it, and what it starts: (name, start, length)."""
        self.number += 1
        self.add(op, "cpu_op", at, 10)
        self.add(call, "cuda_runtime", at + 2, 5, correlation=self.number)
        for name, start, length in kernels:
            self.add(name, "kernel", start, length, 7, correlation=self.number, stream=7)

    def steps(self, path):
        path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": self.events}))
        return steps_of(read(path))


def launching() -> Trace:
    """The second step: three launches, each of a kernel that is shorter than the way to the next."""
    trace = Trace()
    trace.add("forward", "user_annotation", 1000, 600)
    for at, after in ((1100, 3), (1200, 4), (1500, 5)):
        trace.launch("aten::add", at, (ADD, at + 2 + after, 20))
    return trace


def waiting() -> Trace:
    """The second step: a long kernel, a look at its result, and a short one."""
    trace = Trace()
    trace.launch("aten::mm", 1000, ("nvjet_tst", 1010, 500))
    trace.add("aten::item", "cpu_op", 1020, 500)
    trace.add("aten::_local_scalar_dense", "cpu_op", 1021, 498)
    trace.add("cudaStreamSynchronize", "cuda_runtime", 1030, 485)
    trace.launch("aten::add", 1600, (ADD, 1610, 20))
    return trace


def replayed() -> Trace:
    """The second step: one launch of a CUDA graph of three kernels, from a compiled region."""
    trace = Trace()
    kernels = [("triton_poi_fused_add_0", 1020, 10), ("nvjet_tst", 1031, 10), ("triton_red_fused_sum_1", 1042, 10)]
    trace.launch("Torch-Compiled Region: 0/0", 1010, *kernels, call="cudaGraphLaunch")
    return trace


def ahead() -> Trace:
    """Kernels of the first step still run in the second, and those of the second after it."""
    trace = Trace()
    trace.launch("aten::mm", 10, ("nvjet_first", 20, 1500))
    trace.launch("aten::mm", 1010, ("nvjet_second", 1520, 1000))
    return trace
