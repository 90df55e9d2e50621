"""What would Inductor write for a GPU that is not here? A function's Triton kernels, on any machine.

    python -m snippets.compiler.reading_the_output_triton

The function is traced with tensors that have no data, its graphs are moved to a device that exists only as a list of
properties, and Inductor generates code for them. Nothing is compiled and nothing runs. None of this is a public API.
"""

import math
import re

import torch
import torch._inductor.config
import torch._inductor.debug
import torch.nn.functional as F
from torch import Tensor

from snippets.compiler.inductor_code_standalone import standalone
from snippets.compiler.reading_the_output_candidates import candidates
from snippets.compiler.reading_the_output_generated import generate


# --8<-- [start:function]
def block(x: Tensor, up: Tensor, scale: Tensor, down: Tensor) -> Tensor:
    """Two products, with a gate between them and a softmax behind."""
    hidden = F.silu(x @ up) * scale
    return F.softmax(hidden @ down, dim=-1)


SHAPES = (65536, 1024), (1024, 4096), (4096,), (4096, 1024)
# --8<-- [end:function]


def main() -> None:
    """Print the Triton of both directions, piece by piece."""
    graphs = generate(block, SHAPES, torch.bfloat16)
    kernels = {name: source for graph in graphs for name, source in graph.kernels.items()}
    for graph in graphs:
        print(f"==== {graph.direction}, calls")
        print("\n".join(graph.calls))
    print("==== lines")
    for graph in graphs:
        print(graph.direction)
        for name, lines in graph.lines.items():
            print(f"    {name:<54} {' | '.join(lines)}")
    for name, source in kernels.items():
        print(f"==== {name}")
        print(body(source))
    print("==== settings")
    print(settings(kernels["triton_poi_fused_mul_silu_0"]))
    print("==== candidates")
    for name, source in kernels.items():
        rule, configurations = candidates(source)
        numel = int(re.search(r"xnumel = (\d+)", source)[1])
        print(f"{name}: {rule}, xnumel {numel}")
        for constants, warps in configurations:
            blocks = ", ".join(f"{constant} {value}" for constant, value in constants.items())
            print(f"    {blocks:<30} num_warps {warps:2}   grid {math.ceil(numel / constants['XBLOCK'])}")


def body(source: str) -> str:
    """A kernel alone, without the settings in front of it."""
    text = standalone({"kernel": source})
    return text[text.index("@triton.jit") :].strip()


def settings(source: str) -> str:
    """The decorator of a kernel, without what describes the GPU."""
    text = source[source.index("@triton_heuristics") : source.index("@triton.jit")].strip()
    return re.sub(r"'backend_hash': '\w+', ", "", re.sub(r"DeviceProperties\(.*?\)", "…", text))


if __name__ == "__main__":
    main()
