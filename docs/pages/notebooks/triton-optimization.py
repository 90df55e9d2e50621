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
#     title: Four fusions
#     description: Four chains of operations, each plain, compiled and as a Triton kernel, checked and timed.
#     level: intermediate
# ---

# %% [markdown]
# # Four fusions
#
# **Do this.** Compare four chains of operations, each as plain PyTorch, compiled, and as a Triton kernel. Start the
# notebook in the root of a clone, with or without a GPU.
#
# **Expect this.** Each small operation reads its input from memory and writes its output back. Fusing a chain removes
# the traffic between its operations. `torch.compile` fuses by itself; a kernel by hand can fuse what the compiler
# leaves apart.
#
# The outputs below are from the machine that built this page. On a CPU the compiler generates C++, which is timed.
# Triton kernels run in the interpreter there, and are checked but not timed.
#
# The bars show milliseconds per call, the shortest first. Plain PyTorch is grey, compiled code blue, and the kernel
# by hand red. A variant without a bar was not timed.

# %%
import os
from pathlib import Path

import torch
import torch.nn.functional as F

GPU = torch.cuda.is_available()
if not GPU:
    os.environ["TRITON_INTERPRET"] = "1"  # before triton is imported

import triton
import triton.language as tl

from kernels.layer_norm_gelu import layer_norm_gelu
from kernels.rms_norm import rms_norm
from kernels.softmax_dropout import softmax_dropout
from snippets.notebooks.triton_optimization import run
from snippets.notebooks.triton_optimization_experiment import Experiment
from snippets.notebooks.triton_optimization_report import listing

device = torch.device("cuda" if GPU else "cpu")
dtype = torch.bfloat16 if GPU else torch.float32
rows, columns = (32768, 4096) if GPU else (512, 1024)
folder = Path("docs/measurements/local/experiments")
torch.manual_seed(0)


def randn(*shape):
    return torch.randn(*shape, device=device).to(dtype)


print(torch.__version__, torch.cuda.get_device_name() if GPU else f"CPU, {torch.get_num_threads()} threads")

# %% [markdown]
# ## LayerNorm and GELU
#
# Eager PyTorch runs two operations. It writes the normalized tensor to memory, and reads it again for the GELU. The
# compiler makes one kernel of both. The Triton kernel has [a page of its own](../../kernels/layer-norm-gelu/).

# %%
x, weight, bias = randn(rows, columns), randn(columns), randn(columns)


def layer_norm_then_gelu(x, weight, bias):
    return F.gelu(F.layer_norm(x, weight.shape, weight, bias))


fused_norm = run(
    Experiment(
        "layer-norm-gelu",
        {"x": x, "weight": weight, "bias": bias},
        {"eager": layer_norm_then_gelu, "compiled": layer_norm_then_gelu, "triton": layer_norm_gelu},
        compiled=("compiled",),
        ours=("triton",),
    ),
    folder,
)
fused_norm

# %% [markdown]
# The compiler generated this kernel. In C++, we omit the casts of indices.

# %%
print(fused_norm.code("compiled"))

# %% [markdown]
# Before timing, we compare each result with float64. The error may be at most twice that of the first variant, plus a
# few units in the last place.

# %%
for name, agreement in fused_norm.agreements.items():
    print(f"{name:10} {agreement}")

# %% [markdown]
# ## Softmax and dropout
#
# Dropout needs random numbers, and eager keeps a mask in memory for the backward. A fused kernel computes the random
# numbers from a seed and the element's position. The backward can compute the same numbers again.
#
# Random results cannot be compared with each other. So the check has two parts. Each element must be zero, or the
# softmax divided by the keep probability. The share of kept elements must be right.

# %%
p = 0.1


def softmax_then_dropout(x):
    return F.dropout(F.softmax(x, -1), p)


def is_a_dropped_softmax(result, inputs):
    expected = F.softmax(inputs["x"].double(), -1) / (1 - p)
    kept = result != 0
    torch.testing.assert_close(result.double()[kept], expected[kept], rtol=2e-2, atol=1e-6)
    share, spread = kept.double().mean().item(), (p * (1 - p) / kept.numel()) ** 0.5
    assert abs(share - (1 - p)) < 6 * spread + 1e-4, f"expected {1 - p} of the elements to be kept, got {share}"


dropped = run(
    Experiment(
        "softmax-dropout",
        {"x": x},
        {"eager": softmax_then_dropout, "compiled": softmax_then_dropout, "triton": lambda x: softmax_dropout(x, p)},
        compiled=("compiled",),
        ours=("triton",),
        check=is_a_dropped_softmax,
    ),
    folder,
)
dropped

# %%
print(dropped.code("compiled"))

# %% [markdown]
# ## RMSNorm
#
# Written out, RMSNorm takes at least four operations, and eager PyTorch passes over memory for each. `F.rms_norm` is
# one call. Compiled, both become the same kernel, up to the rounding of `eps`.
# [The page on RMSNorm](../../kernels/rms-norm/) has the backward,
# where our Triton kernel is faster.


# %%
def written_out(x, weight):
    wide = x.double() if x.dtype == torch.float64 else x.float()
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6) * weight).to(x.dtype)


def plain(x, weight):
    return F.rms_norm(x, weight.shape, weight, 1e-6)


normed = run(
    Experiment(
        "rms-norm",
        {"x": x, "weight": weight},
        {
            "F.rms_norm": plain,
            "written out": written_out,
            "written out, compiled": written_out,
            "F.rms_norm, compiled": plain,
            "triton": rms_norm,
        },
        compiled=("written out, compiled", "F.rms_norm, compiled"),
        ours=("triton",),
    ),
    folder,
)
normed

# %%
print(normed.code("F.rms_norm, compiled"))

# %% [markdown]
# ## SiLU, five ways
#
# SiLU is x · sigmoid(x), element by element. Written out it takes two operations; `F.silu` is one. In place, `F.silu`
# needs no memory for an output, but still reads and writes each element once.
#
# The compiler makes one kernel of the two operations, so a kernel by hand has no traffic left to save. The kernel
# below is here because it is short.


# %%
@triton.jit
def _silu_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n, other=0.0).to(tl.float32)
    tl.store(y_ptr + at, x * tl.sigmoid(x), mask=at < n)


def silu(x):
    y = torch.empty_like(x)
    _silu_kernel[(triton.cdiv(x.numel(), 4096),)](x, y, x.numel(), BLOCK=4096, num_warps=8)
    return y


def silu_written_out(x):
    return x * torch.sigmoid(x)


silus = run(
    Experiment(
        "silu",
        {"x": x},
        {
            "written out": silu_written_out,
            "F.silu": F.silu,
            "in place, on a copy": lambda x: F.silu(x.clone(), inplace=True),
            "written out, compiled": silu_written_out,
            "triton": silu,
        },
        compiled=("written out, compiled",),
        ours=("triton",),
    ),
    folder,
)
silus

# %%
print(silus.code("written out, compiled"))

# %% [markdown]
# The in-place time includes a copy, because a call that overwrites its input cannot be timed twice on the same input.
# Without the copy, the in-place variant moves as many bytes as `F.silu`.
#
# ## Each experiment leaves a folder
#
# The folder holds the compared source, the generated kernels with the code around them, times, errors and
# environment. Running the notebook again replaces the folder, so copy it first. `diff -r` then compares two
# machines or two versions of PyTorch.

# %%
listing(folder)

# %% [markdown]
# `diff` compares two kernels line by line. Written out or called as `F.rms_norm`, the kernels differ at most in the
# rounding of `eps`:

# %%
print(normed.diff("written out, compiled", normed, "F.rms_norm, compiled"))
