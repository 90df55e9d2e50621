"""What fp8 loses of a layer's output and gradients, by how it is scaled and by what gradients are rounded to.

Run `python -m snippets.kernels.fp8_matmul_gradients` on a GPU with fp8.
"""

# --8<-- [start:layers]
import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.fp8_matmul import fp8_linear

LAYERS = {
    "bf16": F.linear,
    "rows": fp8_linear,
    "rows, fp32 sums": lambda x, weight: fp8_linear(x, weight, fast_accumulation=False),
    "rows, e5m2": lambda x, weight: fp8_linear(x, weight, gradients=torch.float8_e5m2),
    "blocks": lambda x, weight: fp8_linear(x, weight, "blocks"),
}
# --8<-- [end:layers]
FP8 = torch.cuda.is_available() and torch.version.hip is None and torch.cuda.get_device_capability() >= (8, 9)


def errors(name: str, x: Tensor, weight: Tensor, dy: Tensor) -> dict[str, float]:
    """The root mean square of the differences to fp64, as a part of that of the results."""
    results, exact = (
        output_and_gradients(layer, *(t.to(dtype, copy=True) for t in (x, weight, dy)))
        for layer, dtype in ((LAYERS[name], x.dtype), (F.linear, torch.float64))
    )
    return {what: ((results[what] - t).norm() / t.norm()).item() for what, t in exact.items()}


def output_and_gradients(layer, x: Tensor, weight: Tensor, dy: Tensor) -> dict[str, Tensor]:
    x, weight = x.requires_grad_(), weight.requires_grad_()
    y = layer(x, weight)
    dx, dweight = torch.autograd.grad(y, (x, weight), dy)
    return {"output": y.detach(), "gradient of x": dx, "of the weight": dweight}


def operands(tokens: int, inner: int, columns: int, device: str) -> tuple[Tensor, Tensor, Tensor]:
    """x, the weight and the incoming gradient: normal numbers."""
    generator = torch.Generator().manual_seed(0)
    sizes = (tokens, inner), (columns, inner), (tokens, columns)
    x, weight, dy = (torch.randn(size, generator=generator).to(device, torch.bfloat16) for size in sizes)
    return x, weight, dy


def main() -> None:
    if not FP8:
        print("expected an NVIDIA GPU with fp8 (Ada, Hopper or later), got none")
        return
    print("==== layer")
    tensors = operands(8192, 4096, 4096, "cuda")
    for name in LAYERS:
        found = errors(name, *tensors)
        if name == "bf16":
            print(" " * 16 + "".join(f"{what:>16}" for what in found))
        print(f"{name:<16}" + "".join(f"{100 * e:15.2f}%" for e in found.values()))


if __name__ == "__main__":
    main()
