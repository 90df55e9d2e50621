"""What a GPU did with the generated code: the grid and the configuration of each launch, what else was tried, and what
a profiler calls the kernels, with the line of source of each.

    python -m snippets.compiler.reading_the_output_launched

Needs a GPU.
"""

from collections.abc import Callable, Iterable, Mapping

import torch

from snippets.compiler.reading_the_output_noted import Configuration, noted
from snippets.compiler.reading_the_output_profiled import Ran, profiled
from snippets.compiler.reading_the_output_provenance import lines_of_kernels
from snippets.compiler.reading_the_output_triton import SHAPES, block


def launch_table(launches: Iterable[tuple[str, Configuration]], ran: Iterable[Ran]) -> str:
    """What Inductor chose beside what the GPU got, for each launch of a generated kernel."""
    lines = [f"{'kernel':<52}{'grid':>8}{'threads':>9}{'registers':>11}"]
    generated = [kernel for kernel in ran if kernel.name.startswith("triton_")]
    for (name, chosen), kernel in zip(launches, generated, strict=True):
        if name != kernel.name:
            raise RuntimeError(f"expected {name} to be launched, the profiler saw {kernel.name}")
        lines.append(f"{name:<52}{across(kernel.grid):>8}{across(kernel.threads):>9}{kernel.registers:>11}")
        lines.append(f"    {chosen}")
    return "\n".join(lines)


def across(sizes: tuple[int, ...]) -> str:
    """A grid or a block, without the directions in which it is 1 wide: `64x2`."""
    width = max((index + 1 for index, size in enumerate(sizes) if size > 1), default=1)
    return "x".join(map(str, sizes[:width]))


def trial_table(tried: Mapping[str, Mapping[Configuration, float]]) -> str:
    """The configurations that were timed, the fastest of each kernel with a star."""
    lines = []
    for name, seconds in tried.items():
        lines.append(name)
        for each, time in seconds.items():
            lines.append(f"  {'*' if time == min(seconds.values()) else ' '} {each}   {time * 1e6:8.1f} us")
    return "\n".join(lines)


# --8<-- [start:lines]
def profile_table(ran: Iterable[Ran], graphs: Iterable[Mapping[str, list[str]]]) -> str:
    """The kernels in order, with the line of source of each, where each launch of the code became one kernel."""
    ran = list(ran)
    launches = [(launch.partition(":")[0], lines) for graph in graphs for launch, lines in graph.items()]
    named = {name: lines for name, lines in launches if name.startswith("triton_")}
    in_order = [lines for _, lines in launches] if len(launches) == len(ran) else None
    total = sum(kernel.seconds for kernel in ran)
    rows = [f"{'GPU time':>10} {'share':>6}  {'the name that the profiler shows':<53} line of source"]
    for index, kernel in enumerate(ran):
        lines = named.get(kernel.name, in_order[index] if in_order else [])
        text = " | ".join(line.partition(".py:")[2].partition(": ")[2] for line in lines)
        name = kernel.name if len(kernel.name) <= 52 else f"{kernel.name[:51]}…"
        rows.append(f"{kernel.seconds * 1e6:7.1f} us {kernel.seconds / total:6.1%}  {name:<53} {text}".rstrip())
    return "\n".join(rows)


# --8<-- [end:lines]


def main() -> None:
    """Compile the function and its backward, and print what was tried, launched and profiled; then eager's kernels."""
    if not torch.cuda.is_available():
        print("needs a GPU: on a CPU nothing has a grid, and a profiler sees the C++ kernels as calls")
        return
    inputs = [torch.randn(shape, device="cuda").bfloat16().requires_grad_() for shape in SHAPES]
    gradient = torch.randn(SHAPES[0][0], SHAPES[-1][-1], device="cuda").bfloat16()
    compiled = torch.compile(block, dynamic=False)

    def step(function: Callable = compiled) -> None:
        torch.autograd.grad(function(*inputs), inputs, gradient)

    with noted() as (_, tried):
        graphs = lines_of_kernels(step)
    step()
    with noted() as (launches, _):
        ran = profiled(step)
    print("==== tried")
    print(trial_table(tried))
    print("==== launched")
    print(launch_table(launches, ran))
    print("==== profile")
    print(profile_table(ran, graphs))
    step(block)
    print("==== eager")
    for kernel in profiled(lambda: step(block)):
        print(f"{kernel.seconds * 1e6:7.1f} us  {kernel.name[:98]}")


if __name__ == "__main__":
    main()
