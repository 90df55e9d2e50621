"""A training step on rows of unequal length, padded and packed: the same loss, and the same gradients.

python -m snippets.patterns.attention_padding_training
"""

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from snippets.patterns.attention_padding import masked_loss
from snippets.patterns.attention_padding_masks import causal_only, real_tokens
from snippets.patterns.attention_padding_varlen import make_packing, pack, variable_length


# --8<-- [start:model]
class Model(nn.Module):
    """Takes (rows, tokens) or (tokens,), whichever layout `attend` wants: nothing else looks at other tokens."""

    def __init__(self, width: int = 256, heads: int = 4, vocabulary: int = 1000, longest: int = 512):
        super().__init__()
        self.heads = heads
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(longest, width)
        self.norm, self.qkv, self.out = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens: Tensor, positions: Tensor, attend: Callable[..., Tensor]) -> Tensor:
        x = self.tokens(tokens) + self.positions(positions)
        q, k, v = (t.unflatten(-1, (self.heads, -1)) for t in self.qkv(self.norm(x)).chunk(3, -1))
        return self.head(x + self.out(attend(q, k, v).flatten(-2)))


# --8<-- [end:model]


# --8<-- [start:collate]
def collate(rows: list[Tensor]) -> tuple[Tensor, Tensor]:
    """The batch with its padding behind the tokens, and how long each row is; both still on the CPU."""
    return pad_sequence(rows, batch_first=True), torch.tensor([len(row) for row in rows])


# --8<-- [end:collate]


# --8<-- [start:padded]
def padded_loss(model: Model, batch: Tensor, lengths: Tensor, device: torch.device) -> Tensor:
    """Attention without a mask, and a loss that leaves padding out."""
    batch, lengths = batch.to(device), lengths.to(device)
    tokens, targets = batch[:, :-1], batch[:, 1:]  # each token's target is the next one
    real = real_tokens(lengths - 1, tokens.shape[1])
    logits = model(tokens, torch.arange(tokens.shape[1], device=device), causal_only)
    return masked_loss(logits, targets, real)


# --8<-- [end:padded]


# --8<-- [start:packed]
def packed_loss(model: Model, batch: Tensor, lengths: Tensor, device: torch.device) -> Tensor:
    """No layer sees padding, so that the loss has nothing to leave out. Positions begin at 0 in each row."""
    longest = batch.shape[1] - 1
    packing = make_packing(lengths - 1, longest, device)  # from lengths on the CPU
    tokens, targets = (pack(t.to(device), packing) for t in (batch[:, :-1], batch[:, 1:]))
    logits = model(tokens, packing.index % longest, partial(variable_length, packing=packing, causal=True))
    return F.cross_entropy(logits, targets)


# --8<-- [end:packed]


def gradients(model: Model, loss: Tensor) -> Tensor:
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))])


def main() -> None:
    if not torch.cuda.is_available():
        print("varlen_attn needs a GPU")
        return
    torch.manual_seed(0)
    device = torch.device("cuda")
    model = Model().to(device).bfloat16()
    batch, lengths = collate([torch.randint(1000, (length,)) for length in (500, 20, 130, 260)])
    losses = [of(model, batch, lengths, device) for of in (padded_loss, packed_loss)]
    padded, packed = (gradients(model, loss) for loss in losses)
    for name, loss in zip(("padded", "packed"), losses, strict=True):
        print(f"{name}  loss {loss.item():.3f}")
    print(f"their gradients are apart by {((padded - packed).norm() / padded.norm()).item():.0e} of their norm")


if __name__ == "__main__":
    main()
