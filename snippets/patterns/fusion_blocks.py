"""Three blocks to look for fusions in: of a ResNet, of a vision transformer, and of a diffusion U-Net.

Run `python -m snippets.patterns.fusion_blocks` to list, for each at the shape of a GPU, which operations one kernel
could compute and the bytes that it would save. Nothing is computed: the activations have shapes and no data.
"""

import copy

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode
from torch.nn.utils.fusion import fuse_conv_bn_eval

from snippets.patterns.fusion_candidates import find, report


# --8<-- [start:resnet]
class ResNetBlock(nn.Module):
    """The bottleneck of a ResNet. (batch, channels, side, side) in and out."""

    def __init__(self, channels: int = 256):
        super().__init__()
        inner = channels // 4
        self.conv1 = nn.Conv2d(channels, inner, 1, bias=False)
        self.conv2 = nn.Conv2d(inner, inner, 3, padding=1, bias=False)
        self.conv3 = nn.Conv2d(inner, channels, 1, bias=False)
        self.norm1, self.norm2, self.norm3 = (nn.BatchNorm2d(size) for size in (inner, inner, channels))

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.norm1(self.conv1(x)))
        h = F.relu(self.norm2(self.conv2(h)))
        return F.relu(self.norm3(self.conv3(h)) + x)


# --8<-- [end:resnet]


# --8<-- [start:folded]
def folded(model: ResNetBlock) -> ResNetBlock:
    """The same block for inference, with each norm in the weights and the bias of the convolution before it."""
    made = copy.deepcopy(model).eval()
    for number in "123":
        convolution, norm = getattr(made, f"conv{number}"), getattr(made, f"norm{number}")
        fused = fuse_conv_bn_eval(convolution.float(), norm.float())  # computed in fp32, rounded once
        setattr(made, f"conv{number}", fused.to(model.conv1.weight))
        setattr(made, f"norm{number}", nn.Identity())
    return made


# --8<-- [end:folded]


# --8<-- [start:vit]
class ViTBlock(nn.Module):
    """A block of a vision transformer, with a learned scale on each branch. (batch, tokens, width) in and out."""

    def __init__(self, width: int = 768, heads: int = 12):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.scale1, self.scale2 = (nn.Parameter(torch.full((width,), 0.5)) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm1(x)
        q, k, v = (
            part(h).unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in (self.query, self.key, self.value)
        )
        h = self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        x = x + self.scale1 * h
        return x + self.scale2 * self.down(F.gelu(self.up(self.norm2(x))))


# --8<-- [end:vit]


# --8<-- [start:unet]
class UNetBlock(nn.Module):
    """A residual block of a diffusion U-Net, which gets (batch, channels) of the time step besides the image."""

    def __init__(self, channels: int = 320):
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(32, channels), nn.GroupNorm(32, channels)
        self.conv1, self.conv2 = (nn.Conv2d(channels, channels, 3, padding=1) for _ in range(2))
        self.of_time = nn.Linear(channels, channels)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        h = self.conv1(F.silu(self.norm1(x)))
        h = h + self.of_time(F.silu(time))[:, :, None, None]
        return x + self.conv2(F.silu(self.norm2(h)))


# --8<-- [end:unet]

BLOCKS: dict[str, tuple[type[nn.Module], tuple[tuple[int, ...], ...]]] = {  # and the shapes of what it gets
    "ResNet": (ResNetBlock, ((128, 256, 56, 56),)),
    "ViT": (ViTBlock, ((128, 197, 768),)),
    "U-Net": (UNetBlock, ((16, 320, 64, 64), (16, 320))),
}


def main() -> None:
    """Look at each block in bf16: the ResNet's in training, in inference, and with its norms folded."""
    for name, (block, shapes) in BLOCKS.items():
        model = block().bfloat16().eval()
        models = {name: model}
        if isinstance(model, ResNetBlock):
            models = {f"{name}, training": copy.deepcopy(model).train(), **models, f"{name}, folded": folded(model)}
        with FakeTensorMode():
            inputs = [torch.empty(shape, dtype=torch.bfloat16) for shape in shapes]
        for title, one in models.items():
            print(f"==== {title}")
            print(report(find(one, *inputs)))


if __name__ == "__main__":
    main()
