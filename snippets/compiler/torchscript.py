"""TorchScript as history: what it makes of a function, what it gets wrong or refuses, and how to move off it.

Run `python -m snippets.compiler.torchscript`.
"""

import time
import warnings
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from snippets.compiler.torchscript_refused import refusals, scripted, warned

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


# --8<-- [start:components]
def norm(x: Tensor, weight: Tensor) -> Tensor:
    """RMSNorm as it is written out: x (..., columns), weight (columns)."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * weight


def gated(a: Tensor, b: Tensor) -> Tensor:
    """The middle of a gated MLP."""
    return F.silu(a) * b


def masked_softmax(x: Tensor, mask: Tensor) -> Tensor:
    """Softmax over the last dimension where the mask allows."""
    return torch.softmax(x.masked_fill(mask.logical_not(), float("-inf")), dim=-1)


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding: x (batch, heads, length, width), tables (length, width)."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


def block(x: Tensor, qkv: Tensor, out: Tensor, up: Tensor, down: Tensor, heads: int) -> Tensor:
    """A transformer block without its norms' weights: x (batch, length, width)."""
    q, k, v = (
        F.linear(F.layer_norm(x, x.shape[-1:]), qkv).unflatten(-1, (3, heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
    )
    x = x + F.linear(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2), out)
    return x + F.linear(F.gelu(F.linear(F.layer_norm(x, x.shape[-1:]), up)), down)


# --8<-- [end:components]

COMPONENTS: dict[str, Callable[..., Tensor]] = {
    "norm": norm, "gated": gated, "masked-softmax": masked_softmax, "rotated": rotated, "block": block,
}  # fmt: skip


# --8<-- [start:traced]
def halved_if_large(x: Tensor) -> Tensor:
    if x.sum() > 10:
        return x / 2
    return x


# --8<-- [end:traced]


# --8<-- [start:first]
def first_calls(function: Callable[..., Tensor], *inputs: Tensor, calls: int = 5) -> list[float]:
    """Seconds of the first calls: the executor watches shapes in the first, and generates code after it."""
    seconds = []
    for _ in range(calls):
        start = time.perf_counter()
        function(*inputs)
        if inputs[0].is_cuda:
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    return seconds


# --8<-- [end:first]


def main() -> None:
    """Print each section."""
    print("==== warning")
    for what, said in (
        ("torch.jit.script(gated)", warned(torch.jit.script, gated)),
        ("torch.jit.trace(gated, ...)", warned(torch.jit.trace, gated, (torch.ones(2), torch.ones(2)))),
    ):
        print(what)
        print("\n".join(f"  {line}" for line in said))
    print("==== ir")
    print(scripted(norm).graph)
    x = torch.randn(1024, 1024, device=DEVICE)
    print("==== executed")
    function = scripted(norm)
    for _ in range(3):
        function(x, x[0])
    print(torch.jit.last_executed_optimized_graph())
    print("==== first calls")
    print(f"{'ms':24}" + "".join(f"{f'call {number}':>12}" for number in range(1, 6)))
    norm(x, x[0])  # starts what starts once a process
    torch._dynamo.reset()
    for name, call in (("eager", norm), ("script", scripted(norm)), ("torch.compile", torch.compile(norm))):
        print(f"{name:24}" + "".join(f"{seconds * 1e3:>12.3f}" for seconds in first_calls(call, x, x[0])))
    print("==== traced")
    small, large = torch.ones(4), torch.full((4,), 8.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a TracerWarning, which is easily missed
        traced = torch.jit.trace(halved_if_large, small)
    for name, call in (
        ("eager", halved_if_large),
        ("script", scripted(halved_if_large)),
        ("trace, of the small one", traced),
        ("torch.compile", torch.compile(halved_if_large, backend="eager")),
    ):
        print(f"{name:26} small {call(small).tolist()}  large {call(large).tolist()}")
    print("==== refused")
    for name, said_of in refusals():
        print(f"{name}\n  {said_of}")


if __name__ == "__main__":
    main()
