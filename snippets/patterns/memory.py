"""Which operations copy a tensor, in which layout a model's tensors lie, what working in place may break.

Run `python -m snippets.patterns.memory`. It counts bytes and looks at strides, so no GPU is needed.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from snippets.patterns.memory_in_place import REFUSED, SILENT, apart, compiled, in_place, refusal
from snippets.patterns.memory_kept import designs, kept
from snippets.patterns.memory_layouts import HEADS, SHAPES, Image, attentions, layouts, merged
from snippets.patterns.memory_moved import moved, passes


# --8<-- [start:growing]
def growing(steps: Tensor) -> Tensor:
    """Each step appended by making the whole anew."""
    rows = steps[:0]
    for step in steps:
        rows = torch.cat([rows, step[None]])
    return rows


def listed(steps: Tensor) -> Tensor:
    """Kept in a list, and put together once."""
    return torch.stack(list(steps))


def in_room(steps: Tensor) -> Tensor:
    """Written into room for all."""
    rows = torch.empty_like(steps)
    for place, step in enumerate(steps):
        rows[place] = step
    return rows


# --8<-- [end:growing]


@contextmanager
def section(name: str) -> Iterator[None]:
    print(f"==== {name}")
    yield


def main() -> None:
    torch.manual_seed(0)
    x = torch.randn(HEADS)
    with section("shapes"):
        for name, function in SHAPES.items():
            print(f"{name:34}{passes(function, x):5.1f}")
    with section("heads"):
        for name, y in attentions():
            print(f"{name:14}strides {y.stride()!s:26} merging: {passes(merged, y):.1f}")
    with section("layouts"):
        for format_ in (torch.contiguous_format, torch.channels_last):
            model = Image().to(memory_format=format_)
            print(f"weights {str(format_).removeprefix('torch.')}")
            for name, shown, copies in layouts(model, torch.randn(2, 3, 8, 8)):
                print(f"  {name:16}{shown:34}{', '.join(copies)}".rstrip())
    with section("in place"):
        square = torch.randn(1024, 1024)
        for function in (apart, in_place):
            names = [launch.name.split(".")[1] for launch in moved(function, square)]
            print(f"{function.__name__:12}eager     {passes(function, square):4.1f}  {', '.join(names)}")
        for name, launches in compiled().items():
            total = sum(launch.bytes for launch in launches) / square.nbytes
            print(f"{name:12}compiled  {total:4.1f}  {', '.join(launch.name for launch in launches)}")
    with section("refused"):
        for change in REFUSED:
            print(f"{change.__name__}\n  {refusal(change)}")
    with section("silent"):
        for name, changed in SILENT.items():
            print(f"{name:18}{changed(torch.zeros(2, 3, requires_grad=True)):4.1f}")
    with section("growing"):
        steps = torch.randn(64, 1024)
        for function in (growing, listed, in_room):
            print(f"{function.__name__:10}{passes(function, steps):6.1f}  {len(moved(function, steps)):3} operations")
    with section("kept"):
        for name, module in designs().items():
            print(f"{name:32}{kept(module):5.1f}")


if __name__ == "__main__":
    main()
