# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
#   ridgepoint:
#     title: PyTorch and Triton, the basics
#     description: One function through the compiler, what that costs and when it pays, a first kernel, and how to ship.
#     level: beginner
# ---

# %% [markdown]
# # PyTorch and Triton, the basics
#
# **Do this.** Compile one small function, write it as a Triton kernel, check both, and export a file that runs
# without the source. Start the notebook in the root of a clone, with or without a GPU.
#
# **Expect this.** Each cell prints something to read, or a time of your machine. The outputs below are from the
# machine that built this page. Without a GPU, the compiler generates C++ and Triton kernels run in the interpreter.
# Interpreted times mean nothing, so none is shown.
#
# ## Choose the device, and check that nothing is missing
#
# The first lines choose the device once. `TRITON_INTERPRET` must be set before `triton` is imported. `torch.compile`
# needs a C++ compiler and Python's headers, also on a GPU; the check names what is missing.

# %%
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.nn.functional as F

GPU = torch.cuda.is_available()
if not GPU:
    os.environ["TRITON_INTERPRET"] = "1"

import triton
import triton.language as tl

from snippets import environment
from snippets.validation.equivalence import compare
from snippets.validation.timing import measure

device = torch.device("cuda" if GPU else "cpu")
MODE = "device" if GPU else "calls"  # what is timed: the GPU's work, or whole calls
rows, columns = (16384, 4096) if GPU else (1024, 1024)
torch.manual_seed(0)
x, gate = (torch.randn(rows, columns, device=device) for _ in range(2))

print("torch", torch.__version__, "triton", triton.__version__)
print(torch.cuda.get_device_name() if GPU else f"CPU, {torch.get_num_threads()} threads")
print("to compile:", environment.compiler_problem() or "all is there")


def microseconds(**calls):
    """The median of each, timed in turns on the same inputs."""
    for name, timing in measure(calls, device, MODE).items():
        print(f"{name:14} {timing.p50 * 1e6:8.1f} us   most between {timing.p20 * 1e6:.1f} and {timing.p80 * 1e6:.1f}")


# %% [markdown]
# ## The compiler works in stages that you can print
#
# The function is the gate of a transformer's MLP. Eager PyTorch runs three operations. Each reads its inputs from
# memory and writes its result back.


# %%
def gated(x, gate):
    return x * gate * torch.sigmoid(gate)


# %% [markdown]
# **Dynamo** reads the function's bytecode and records the operations as a graph. A backend is a function that
# receives this graph. So a backend that only prints is one line:


# %%
def show(graph, example_inputs):
    print(graph.graph)
    return graph.forward


_ = torch.compile(gated, backend=show)(x, gate)

# %% [markdown]
# **Inductor** turns the graph into kernels, here a single one. The kernel reads `x` and `gate` once and never writes
# the intermediate results. This machine runs this code:

# %%
from torch._inductor.utils import run_and_get_code

from snippets.notebooks.triton_optimization import kernels_in

torch._dynamo.reset()
with torch._inductor.config.patch(fx_graph_cache=False), torch._functorch.config.patch(enable_autograd_cache=False):
    compiled = torch.compile(gated, dynamic=False)
    _, generated = run_and_get_code(compiled, x, gate)
kernels = [kernel for source in generated for kernel in kernels_in(source)]
print(len(kernels), "kernel")
print(kernels[0])

# %% [markdown]
# ## Environment variables show what happens
#
# `TORCH_LOGS` prints what each stage decides, without a change to the code. Here a child process runs a function that
# prints in the middle, which breaks the graph in two. `graph_breaks` names the line and the reason. `recompiles`
# names the guard that failed when a second length came.

# %%
CHILD = """
import torch

@torch.compile(backend="eager")
def noisy(x):
    y = x.sin()
    print("half way")
    return y.cos()

noisy(torch.ones(4))

@torch.compile(backend="eager", dynamic=False)
def plain(x):
    return x.sin()

plain(torch.ones(4))
plain(torch.ones(5))
"""


def run_child(code, **variables):
    """What a fresh Python prints, on both of its streams."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "child.py")
        file.write_text(code)
        done = subprocess.run([sys.executable, file], env=os.environ | variables, capture_output=True, text=True)
        return (done.stdout + done.stderr).replace(folder + "/", "")


def brief(log):
    """Its lines without the date, the thread and the place in PyTorch."""
    plain = re.sub(r"^[VIWE]\d{4} .*?\] (?:\[\d+/\d+\] )?\[__\w+\] ?", "", log, flags=re.M)
    return "\n".join(line for line in plain.splitlines() if line.strip())


print(brief(run_child(CHILD, TORCH_LOGS="graph_breaks,recompiles")))

# %% [markdown]
# Other variables are worth knowing:
#
# - `TORCH_LOGS=output_code` prints the generated kernels, and `TORCH_COMPILE_DEBUG=1` leaves a folder with every
#   stage.
# - `TORCHINDUCTOR_CACHE_DIR` names the folder that keeps compiled code.
# - `TORCH_COMPILE_DISABLE=1` turns the compiler off without touching the program.
#
# [Environment variables](../../reference/environment-variables/) explains all that this site uses.
#
# ## Compiling pays after enough calls
#
# The first call compiles. Each later call saves the difference between eager and compiled. Divide the time of the
# first call by this saving: the result is the number of calls after which compiling has paid. Nothing comes from a
# cache here, as on a machine that sees the function for the first time.


# %%
def scaled(x, gate):
    return gated(x, gate) * 1.01  # a new function, so no cache has its code


torch._dynamo.reset()
with torch._inductor.utils.fresh_cache():
    begin = time.perf_counter()
    compiled = torch.compile(scaled, dynamic=False)
    compiled(x, gate)
    if GPU:
        torch.cuda.synchronize()
    first = time.perf_counter() - begin

times = measure({"eager": lambda: scaled(x, gate), "compiled": lambda: compiled(x, gate)}, device, MODE)
saved = times["eager"].p50 - times["compiled"].p50
print(f"first call     {first:8.2f} s")
for name, timing in times.items():
    print(f"{name:14} {timing.p50 * 1e6:8.1f} us a call")
print(f"paid back after {first / saved:,.0f} calls" if saved > 0 else "never pays back on this machine")

# %% [markdown]
# A training run makes these calls in minutes; a script that runs once may never. [Compile
# time](../../compiler/compile-time/) says what shortens the first call.
#
# ## Four habits decide the speed
#
# **Fuse what is small.** The gate above is such a function. At best, a fused function takes the
# time to read its inputs and write its output once.
#
# **Do not ask the GPU for a number in the loop.** `item()` waits until the GPU has finished all launched work. Then
# the GPU is idle until the host launches again. Keep the sum on the device and ask once:

# %%
parts = [torch.randn(256, 256, device=device) for _ in range(50)]


def asks_every_time():
    return sum((part @ part).sum().item() for part in parts)


def asks_once():
    return sum((part @ part).sum() for part in parts).item()


for name, timing in measure({"50 x item()": asks_every_time, "once": asks_once}, device, "calls").items():
    print(f"{name:14} {timing.p50 * 1e6:8.1f} us")

# %% [markdown]
# On a CPU, the host computes everything itself, so both versions take equally long.
#
# **Say which sizes change.** When a dimension gets a second size, PyTorch compiles a new graph,
# in which this dimension is dynamic. With `mark_dynamic` before the first call, one graph serves all lengths:

# %%
from torch._dynamo.testing import CompileCounter


def graphs(marked):
    """How many graphs four lengths need."""
    torch._dynamo.reset()
    counter = CompileCounter()
    function = torch.compile(gated, backend=counter)
    for length in (16, 24, 32, 40):
        a, b = torch.randn(length, 8), torch.randn(length, 8)
        if marked:
            torch._dynamo.mark_dynamic(a, 0)
            torch._dynamo.mark_dynamic(b, 0)
        function(a, b)
    return counter.frame_count


print("graphs for four lengths:", graphs(marked=False), "unmarked,", graphs(marked=True), "marked")

# %% [markdown]
# **Call a fused operation of PyTorch.** It replaces a chain of small operations, without a compiler:


# %%
def softmax_written_out(x):
    e = torch.exp(x - x.amax(-1, keepdim=True))
    return e / e.sum(-1, keepdim=True)


microseconds(**{"written out": lambda: softmax_written_out(x), "F.softmax": lambda: F.softmax(x, -1)})

# %% [markdown]
# ## A Triton kernel computes one block
#
# A Triton kernel is a program for one *block* of the work. The program finds its elements, loads them, computes on
# all of them at once, and stores the results. The launch says how many programs run. The mask keeps the last program
# from reading past the end.


# %%
@triton.jit
def _gated_kernel(x_ptr, gate_ptr, y_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    x = tl.load(x_ptr + at, mask=inside)
    gate = tl.load(gate_ptr + at, mask=inside)
    tl.store(y_ptr + at, x * gate * tl.sigmoid(gate), mask=inside)


def gated_triton(x, gate):
    """The kernel counts elements in the order of memory, so its inputs have to be contiguous."""
    x, gate = x.contiguous(), gate.contiguous()
    y = torch.empty_like(x)
    _gated_kernel[(triton.cdiv(x.numel(), 4096),)](x, gate, y, x.numel(), BLOCK=4096)
    return y


# %% [markdown]
# **Check the result before the time.** The bound is twice the error of PyTorch's own operations in the same dtype,
# plus a few units in the last place. Errors are differences from float64:

# %%
odd = x[:7, :77], gate[:7, :77]  # sizes that no block divides, and rows that do not follow each other in memory
for name, function in {"compiled": torch.compile(gated), "triton": gated_triton}.items():
    print(f"{name:10}", compare(function(*odd), gated(*odd), gated(*(t.double() for t in odd))))

# %%
if GPU:
    microseconds(eager=lambda: gated(x, gate), compiled=lambda: compiled(x, gate), triton=lambda: gated_triton(x, gate))
else:
    print("interpreted here: not timed")

# %% [markdown]
# The compiler already writes this kernel. A kernel by hand pays where the compiler's plan is poor: [the table of all
# kernels](../../kernels/) shows where.
#
# ## Find the wrong stage, then the wrong element
#
# Two questions find most bugs.
#
# *Which stage is wrong?* Run the same call with three backends: `eager` (only Dynamo), `aot_eager` (adds the backward
# graph) and `inductor` (adds generated code). The first backend with a wrong result has the fault.
#
# *Which element is wrong?* Compare a kernel's result element by element. This kernel has lost its mask, and rows
# whose length is no power of two are wrong:


# %%
@triton.jit
def _row_sum(x_ptr, y_ptr, columns, BLOCK: tl.constexpr, MASKED: tl.constexpr):
    at = tl.arange(0, BLOCK)
    inside = at < columns if MASKED else at < BLOCK
    row = tl.load(x_ptr + tl.program_id(0) * columns + at, mask=inside, other=0.0)
    tl.store(y_ptr + tl.program_id(0), tl.sum(row, 0))


ones = torch.ones(4, 100, device=device)[:3]  # a fourth row, so that what is read past the third is there
for masked in (True, False):
    sums = torch.empty(3, device=device)
    _row_sum[(3,)](ones, sums, 100, BLOCK=128, MASKED=masked)
    print("masked  " if masked else "unmasked", sums.tolist())

for backend in ("eager", "aot_eager", "inductor"):
    torch._dynamo.reset()
    error = (torch.compile(gated, backend=backend)(x, gate) - gated(x, gate)).abs().max().item()
    print(f"{backend:10} {error:.1e}")

# %% [markdown]
# [Debugging](../../compiler/debugging/) has a tool that searches for the stage, and explains the error messages.
#
# ## Ship a file that needs no source
#
# `torch.export` saves the graph of a module with its weights. The process that loads the file needs PyTorch, but not
# the module's source. Name each dimension that may change:


# %%
class Gate(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up = torch.nn.Linear(32, 64)
        self.gate = torch.nn.Linear(32, 64)

    def forward(self, x):
        return gated(self.up(x), self.gate(x))


module, sample = Gate().eval(), torch.randn(8, 32)
exported = torch.export.export(module, (sample,), dynamic_shapes=({0: torch.export.Dim("batch")},))

SERVER = """
import torch

program = torch.export.load("gate.pt2").module()
print("batch of 8:", tuple(program(torch.zeros(8, 32)).shape))
print("batch of 3:", tuple(program(torch.zeros(3, 32)).shape))
"""
with tempfile.TemporaryDirectory() as folder:
    torch.export.save(exported, Path(folder, "gate.pt2"))
    print(f"gate.pt2 has {Path(folder, 'gate.pt2').stat().st_size / 1024:.0f} KB")
    Path(folder, "server.py").write_text(SERVER)
    done = subprocess.run([sys.executable, "server.py"], cwd=folder, capture_output=True, text=True)
    print(done.stdout or done.stderr)

# %% [markdown]
# An exported program runs its graph operation by operation, so it is not faster than eager. Compiled [ahead of
# time](../../compiler/ahead-of-time/), it becomes a package of machine code that starts without a compiler.
#
# Before you ship compiled code:
#
# - Compile before the first request: call the module once for each shape that will come.
# - Keep the compiled code: let `TORCHINDUCTOR_CACHE_DIR` name a folder that outlives the process.
# - Fail early where a graph would break: `torch.compile(..., fullgraph=True)`.
# - Compare the compiled module with the eager one, on the machine that will serve:
#   [Equivalence](../../validation/equivalence/).
