"""Which operations copy, and in which layout an attention's or a convolution's tensors lie."""

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from snippets.patterns.memory_moved import Traffic

HEADS = (4, 128, 8, 64)  # batch, tokens, heads, size of a head


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
