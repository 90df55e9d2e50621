"""Two modules as people write them, for the assistant to look at: a GPT from a tutorial, and a forecaster.

Run `python -m snippets.validation.assistant_examples` to see its reports. Each factory works on the command line, too:
`python -m snippets.validation.assistant snippets.validation.assistant_examples:gpt`.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from snippets.validation.assistant import analyze, validate

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


# --8<-- [start:attention]
class Attention(nn.Module):
    """Causal attention, step by step as the paper has it."""

    def __init__(self, width: int, heads: int, length: int):
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.register_buffer("mask", torch.tril(torch.ones(length, length)))

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = (
            project(x).view(batch, length, self.heads, -1).transpose(1, 2)
            for project in (self.query, self.key, self.value)
        )
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
        scores = scores.masked_fill(self.mask[:length, :length] == 0, float("-inf"))
        y = F.softmax(scores, dim=-1) @ v
        return self.out(y.transpose(1, 2).reshape(batch, length, width))


# --8<-- [end:attention]


class Block(nn.Module):
    """Attention and a small MLP, each added to what came in."""

    attention = Attention

    def __init__(self, width: int, heads: int, length: int):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attend = self.attention(width, heads, length)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attend(self.norm1(x))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    """A language model that returns its loss."""

    block = Block

    def __init__(self, width: int, heads: int, layers: int, length: int, vocabulary: int):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(self.block(width, heads, length) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    # --8<-- [start:loss]
    def forward(self, ids: Tensor, targets: Tensor) -> Tensor:
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1]).to(ids.device))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())

    # --8<-- [end:loss]


# --8<-- [start:mended]
class FusedAttention(Attention):
    """The same parameters, one projection and one kernel."""

    def forward(self, x: Tensor) -> Tensor:
        parts = (self.query, self.key, self.value)
        weight, bias = torch.cat([part.weight for part in parts]), torch.cat([part.bias for part in parts])
        q, k, v = F.linear(x, weight, bias).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).flatten(2))


# --8<-- [end:mended]


class FusedBlock(Block):
    attention = FusedAttention


class FusedGPT(GPT):
    block = FusedBlock


# --8<-- [start:forecaster]
class Forecaster(nn.Module):
    """A recurrent model of sales, with what its author wanted to see while it trains."""

    def __init__(self, features: int = 32, width: int = 128):
        super().__init__()
        self.cell, self.head = nn.GRUCell(features, width), nn.Linear(width, 1)
        self.steps, self.spread = 0, []

    def forward(self, x: Tensor, known: Tensor) -> Tensor:
        self.steps += 1
        x = (x - x.mean(1, keepdim=True)) / (x.std(1, keepdim=True) + 1e-5)
        h, states = x.new_zeros(len(x), self.cell.hidden_size), []
        for t in range(x.shape[1]):
            h = self.cell(x[:, t], h)
            states.append(h)
        y = self.head(torch.stack(states, dim=1))[..., 0]
        self.spread.append(y.std())
        if y.abs().max() > 100:
            print("step", self.steps, "diverges")
        return y[known]


# --8<-- [end:forecaster]


def gpt(model: type[GPT] = GPT) -> tuple[nn.Module, Tensor, Tensor]:
    """A model and the inputs of one call: four layers of the size of GPT-2 on a GPU, tiny elsewhere."""
    torch.manual_seed(0)
    sizes, batch = ((768, 12, 4, 1024, 50257), 8) if DEVICE.type == "cuda" else ((64, 4, 2, 64, 8193), 2)
    ids = torch.randint(0, sizes[4], (batch, sizes[3] + 1), device=DEVICE)
    return model(*sizes).to(DEVICE), ids[:, :-1], ids[:, 1:]


def forecaster(steps: int = 48) -> tuple[nn.Module, Tensor, Tensor]:
    """Sales of a day in each step, some of them unknown."""
    torch.manual_seed(0)
    batch = 256 if DEVICE.type == "cuda" else 8
    known = torch.arange(batch * steps, device=DEVICE).view(batch, steps) % 5 > 0
    return Forecaster().to(DEVICE), torch.randn(batch, steps, 32, device=DEVICE), known


def main() -> None:
    """Print what the assistant says about both, and about the GPT before and after."""
    for factory in (gpt, forecaster):
        module, *inputs = factory()
        print(f"==== {factory.__name__}")
        print(analyze(module, *inputs), flush=True)
    module, *inputs = gpt()
    fused, *_ = gpt(FusedGPT)
    print("==== validate")
    for row in str(validate(module, fused, *inputs)).split("; "):
        print(row)


if __name__ == "__main__":
    main()
