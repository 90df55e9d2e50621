"""Which operations copy a tensor, in which layout a model's tensors lie, what working in place may break.

Run `python -m snippets.patterns.memory`. It counts bytes and looks at strides, so no GPU is needed.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from snippets.compiler.inductor_code import made
from snippets.compiler.inductor_code_launches import Launch
from snippets.compiler.what_compile_does_traffic import nbytes
from snippets.validation.memory import saved

HEADS = (4, 128, 8, 64)  # batch, tokens, heads, size of a head


# --8<-- [start:moved]
class Traffic(TorchDispatchMode):
    """Notes each operation that reads or writes memory, with the bytes. A view is none, and neither is `empty`."""

    def __init__(self) -> None:
        super().__init__()
        self.launches: list[Launch] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        given, written = ([leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)] for tree in (args, result))
        shared = {tensor.untyped_storage()._cdata for tensor in given}
        view = not func._schema.is_mutable and all(each.untyped_storage()._cdata in shared for each in written)
        if not view and "empty" not in func._schema.name:
            read = given[1:] if func is torch.ops.aten.copy_.default else given  # what it overwrites is not read
            self.launches.append(Launch(str(func), nbytes([*read, *written])))
        return result


def moved(function: Callable, *inputs: Tensor) -> list[Launch]:
    """The operations of a call that read or write memory, in order."""
    with Traffic() as traffic:
        function(*inputs)
    return traffic.launches


def passes(function: Callable, x: Tensor) -> float:
    """How many times the size of x a call reads and writes: 0 for a view, 2 for a copy."""
    return sum(launch.bytes for launch in moved(function, x)) / x.nbytes


# --8<-- [end:moved]


# --8<-- [start:shapes]
SHAPES: dict[str, Callable[[Tensor], object]] = {
    "x.transpose(1, 2)": lambda x: x.transpose(1, 2),
    "x[:, ::2]": lambda x: x[:, ::2],
    "x.expand(3, *x.shape)": lambda x: x.expand(3, *x.shape),
    "x.chunk(2, -1)": lambda x: x.chunk(2, -1),
    "x.flatten(2)": lambda x: x.flatten(2),
    "x.transpose(1, 2).flatten(2)": lambda x: x.transpose(1, 2).flatten(2),
    "x.contiguous()": lambda x: x.contiguous(),
    "x.transpose(1, 2).contiguous()": lambda x: x.transpose(1, 2).contiguous(),
    "x.repeat(2, 1, 1, 1)": lambda x: x.repeat(2, 1, 1, 1),
    "x[torch.arange(len(x))]": lambda x: x[torch.arange(len(x))],
    "torch.cat(x.chunk(2, -1), -1)": lambda x: torch.cat(x.chunk(2, -1), -1),
    "x.float()": lambda x: x.float(),
    "x.bfloat16()": lambda x: x.bfloat16(),
    "x.clone()": lambda x: x.clone(),
}
# --8<-- [end:shapes]


# --8<-- [start:attention]
def merged(y: Tensor) -> Tensor:
    """(batch, heads, tokens, size) -> (batch, tokens, width): what stands behind every attention."""
    return y.transpose(1, 2).flatten(2)


def written_out(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5).softmax(-1) @ v


def attentions() -> Iterator[tuple[str, Tensor]]:
    """The result of an attention, written out and fused, of q, k and v as a projection leaves them."""
    q, k, v = (torch.randn(HEADS).transpose(1, 2) for _ in range(3))
    yield "written out", written_out(q, k, v)
    yield "SDPA", F.scaled_dot_product_attention(q, k, v)


# --8<-- [end:attention]


# --8<-- [start:layouts]
def layout(x: Tensor) -> str:
    """Of a tensor (batch, channels, height, width): which dimension lies without gaps."""
    if x.is_contiguous(memory_format=torch.channels_last):
        return "channels last"
    return "contiguous" if x.is_contiguous() else f"strides {x.stride()}"


class Image(nn.Module):
    """Two convolutions, a position for each pixel, and a head."""

    def __init__(self, channels: int = 16, size: int = 8) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, channels, 3, padding=1)
        self.second = nn.Conv2d(2 * channels, channels, 3, padding=1)
        self.norm = nn.BatchNorm2d(channels)
        self.position = nn.Parameter(torch.zeros(1, channels, size, size))
        self.head = nn.Linear(channels * size * size, 10)

    def forward(self, x: Tensor) -> Iterator[tuple[str, Tensor]]:
        """Each step with its result."""
        yield "input", x
        yield "first", (x := F.relu(self.norm(self.first(x))))
        yield "position + x", self.position + x
        yield "x + position", (x := x + self.position)
        yield "cat", (x := torch.cat([x, x], 1))
        yield "second", (x := self.second(x))
        yield "tokens", x.flatten(2).transpose(1, 2)
        yield "head", self.head(x.flatten(1))


def layouts(model: nn.Module, x: Tensor) -> Iterator[tuple[str, str, list[str]]]:
    """Of each step: its name, the layout of its result, and the copies that were made for it."""
    steps = model(x)
    while True:
        with Traffic() as traffic:
            name, result = next(steps, ("", None))
        if result is None:
            return
        copies = [launch.name for launch in traffic.launches if launch.name.startswith(("aten.clone", "aten._to_copy"))]
        shown = layout(result) if result.dim() == 4 else f"{tuple(result.shape)} {tuple(result.stride())}"
        yield name, shown, copies


# --8<-- [end:layouts]


# --8<-- [start:in-place]
def apart(x: Tensor) -> Tensor:
    y = x * 2
    y = y + 1
    return y.relu()


def in_place(x: Tensor) -> Tensor:
    y = x * 2
    y += 1
    return y.relu_()


# --8<-- [end:in-place]


# --8<-- [start:dangers]
def saved_output(x: Tensor) -> None:
    """exp keeps its output for backward."""
    y = x.exp()
    y += 1
    y.sum().backward()


def leaf(x: Tensor) -> None:
    x += 1


def expanded(x: Tensor) -> None:
    """Three rows that are one in memory."""
    x.detach()[:1].expand(3, -1).add_(1)


def one_of_several(x: Tensor) -> None:
    """unbind returns several views at once."""
    first, *_ = (x * 1).unbind()
    first += 1


def on_the_way_to_a_gradient(x: Tensor) -> None:
    """As saved_output, through a second tensor that shares the memory."""
    y = x.exp()
    y.detach().add_(1)
    y.sum().backward()


REFUSED = (saved_output, leaf, expanded, one_of_several, on_the_way_to_a_gradient)


def by_data(x: Tensor) -> float:
    """The gradient of exp at 0, which is 1, where `.data` changed what backward reads."""
    y = x.exp()
    y.data.add_(1)
    (gradient,) = torch.autograd.grad(y.sum(), x)
    return float(gradient[0, 0])


def of_the_callers_tensor(x: Tensor) -> float:
    """What is left of the caller's 0 behind a function that scales its own view of it."""
    view = x.detach()[0]
    view += 5
    return float(x.detach()[0, 0])


SILENT: dict[str, Callable[[Tensor], float]] = {"by .data": by_data, "through a view": of_the_callers_tensor}
# --8<-- [end:dangers]


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


# --8<-- [start:kept]
class Gated(nn.Module):
    """silu(a(x)) * b(x), and back to the width."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.a, self.b, self.back = (
            nn.Linear(width, 4 * width),
            nn.Linear(width, 4 * width),
            nn.Linear(4 * width, width),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.back(F.silu(self.a(x)) * self.b(x))


class Again(nn.Module):
    """A module that is computed again in backward, and keeps its input only."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: Tensor) -> Tensor:
        return torch.utils.checkpoint.checkpoint(self.module, x, use_reentrant=False)


def mlp(width: int, activation: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(width, 4 * width), activation, nn.Linear(4 * width, width))


def designs(width: int = 64) -> dict[str, nn.Module]:
    return {
        "GELU": mlp(width, nn.GELU()),
        "ReLU": mlp(width, nn.ReLU()),
        "ReLU in place": mlp(width, nn.ReLU(inplace=True)),
        "gated SiLU": Gated(width),
        "gated SiLU, again in backward": Again(Gated(width)),
    }


def kept(module: nn.Module, tokens: int = 256, width: int = 64) -> float:
    """What a forward keeps for backward, in tensors of the input's size."""
    x = torch.randn(tokens, width, requires_grad=True)
    return sum(each.nbytes for each in saved(module, lambda: module(x))) / x.nbytes


# --8<-- [end:kept]


@contextmanager
def section(name: str) -> Iterator[None]:
    print(f"==== {name}")
    yield


def words(error: BaseException) -> str:
    """The first sentence of an error."""
    return f"{type(error).__name__}: {str(error).splitlines()[0].split('. ')[0].removesuffix('.')}"


def refusal(change: Callable[[Tensor], None]) -> str:
    x = torch.zeros(2, 3, requires_grad=True)
    try:
        change(x)
    except RuntimeError as error:
        return words(error)
    return "nothing"


def compiled() -> Mapping[str, list[Launch]]:
    """What Inductor makes of both sides of `in_place`."""
    x = torch.randn(1024, 1024)
    return {function.__name__: made(function, x)[0].launches for function in (apart, in_place)}


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
