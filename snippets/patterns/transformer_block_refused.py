"""Gradients of SDPA called compiled and uncompiled in one process: does one call spoil the other?

Run `python -m snippets.patterns.transformer_block_refused`. On a GPU each order runs in a process of its own, since
what goes wrong is kept in the process. A CPU keeps nothing: there both are right.
"""

import subprocess
import sys

import torch
import torch._functorch.config
from torch import Tensor

from snippets.patterns.transformer_block import attend_inputs
from snippets.patterns.transformer_block_eager import attend_native, attend_written

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
SHAPE, DTYPE = ((4, 2048, 2048), torch.bfloat16) if DEVICE.type == "cuda" else ((1, 64, 256), torch.float32)
BACKEND = "inductor" if DEVICE.type == "cuda" else "aot_eager"  # the same graphs, sooner
ORDERS = ("uncompiled, compiled", "compiled, uncompiled")


# --8<-- [start:errors]
def errors(order: str, as_outputs: bool) -> list[tuple[str, float]]:
    """For each call in the order: its largest RMS error among the gradients of q, k and v, in units of their RMS."""
    if hasattr(torch._functorch.config, "guess_tangent_strides_as_outputs"):
        torch._functorch.config.guess_tangent_strides_as_outputs = as_outputs
    torch.manual_seed(0)
    leaves = [t.detach().requires_grad_() for t in attend_inputs(SHAPE, DTYPE, DEVICE).values()]
    grad = torch.randn_like(leaves[0])  # lies as q does, and as SDPA's output does
    exact = [t.detach().float().requires_grad_() for t in leaves]
    right = torch.autograd.grad(attend_written(*exact), exact, grad.float())
    calls = {"uncompiled": attend_native, "compiled": torch.compile(attend_native, dynamic=False, backend=BACKEND)}
    found = []
    for name in order.split(", "):
        gradients = torch.autograd.grad(calls[name](*leaves), leaves, grad)
        found.append((name, max(rms(g - r) / rms(r) for g, r in zip(gradients, right, strict=True))))
    return found


def rms(t: Tensor) -> float:
    return t.float().square().mean().sqrt().item()


# --8<-- [end:errors]


def shown(order: str, as_outputs: bool) -> str:
    return ", then ".join(
        f"{name}: {'right' if error < 0.05 else 'wrong'}" for name, error in errors(order, as_outputs)
    )


def apart(order: str, as_outputs: bool) -> str:
    """The same, in a process of its own."""
    command = [sys.executable, "-m", "snippets.patterns.transformer_block_refused", order, *["set"] * as_outputs]
    done = subprocess.run(command, capture_output=True, text=True)
    return (done.stderr if done.returncode else done.stdout).strip().splitlines()[-1]


def main() -> None:
    if len(sys.argv) > 1:
        print(shown(sys.argv[1], sys.argv[2:] == ["set"]))
        return
    for as_outputs in (False, True):
        print(f"guess_tangent_strides_as_outputs = {as_outputs}")
        for order in ORDERS:
            print(f"  {(apart if DEVICE.type == 'cuda' else shown)(order, as_outputs)}")


if __name__ == "__main__":
    main()
