"""A training step as BERT's: attention both ways over rows with padding, by FlexAttention; some tokens are hidden.

Run `python -m snippets.patterns.attention_padding_bert`. On a GPU it trains for a few steps; FlexAttention has no
backward on a CPU, where the loss is compared with that of the formula.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from snippets.patterns.attention_padding import masked_loss
from snippets.patterns.attention_padding_masks import flex, formula, make_blocks, make_mask, real_tokens
from snippets.patterns.attention_padding_training import Model, collate

HIDDEN = 0  # the token that stands for a hidden one


# --8<-- [start:hide]
def hide(batch: Tensor, lengths: Tensor, share: float = 0.15) -> tuple[Tensor, Tensor]:
    """The batch with a share of its real tokens hidden, and which: both (rows, tokens)."""
    real = real_tokens(lengths, batch.shape[1])
    hidden = real & (torch.rand(batch.shape, device=batch.device) < share)
    return batch.masked_fill(hidden, HIDDEN), hidden


# --8<-- [end:hide]


# --8<-- [start:loss]
def hidden_loss(
    model: Model,
    batch: Tensor,
    lengths: Tensor,
    build: Callable = create_block_mask,
    attend: Callable = flex_attention,
) -> Tensor:
    """The mean over hidden tokens: each has to be found from those on both sides of it."""
    tokens, hidden = hide(batch, lengths)
    blocks = make_blocks(lengths, batch.shape[1], causal=False, build=build)  # once for all layers
    positions = torch.arange(batch.shape[1], device=batch.device)
    logits = model(tokens, positions, partial(flex, blocks=blocks, attend=attend))
    return masked_loss(logits, batch, hidden)


# --8<-- [end:loss]


def rows_to_learn(rows: int, vocabulary: int) -> list[Tensor]:
    """Rows that count upwards by one from somewhere: what is hidden follows from either neighbour."""
    starts = torch.randint(1, vocabulary // 2, (rows,)).tolist()
    lengths = torch.randint(20, vocabulary // 2, (rows,)).tolist()
    return [torch.arange(start, start + length) for start, length in zip(starts, lengths, strict=True)]


# --8<-- [start:train]
def train(model: Model, steps: int, device: torch.device) -> list[float]:
    """The loss of each step. Rows are padded to one length, so that both compiled functions are compiled once."""
    build = torch.compile(create_block_mask, dynamic=False)
    attend = torch.compile(flex_attention, dynamic=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for _ in range(steps):
        batch, lengths = collate([*rows_to_learn(31, 512), torch.arange(1, 257)])  # the last row is the longest
        loss = hidden_loss(model, batch.to(device), lengths.to(device), build, attend)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return torch.stack(losses).tolist()  # the only wait for the GPU


# --8<-- [end:train]


@torch.no_grad()
def compare() -> None:
    """One batch by FlexAttention and by the formula, in fp32 on the CPU."""
    torch.manual_seed(0)
    model = Model(vocabulary=512)
    batch, lengths = collate(rows_to_learn(4, 512))
    tokens, hidden = hide(batch, lengths)
    positions, length = torch.arange(batch.shape[1]), batch.shape[1]
    mask = make_mask(lengths, length, causal=False)
    ways = {
        "FlexAttention": partial(flex, blocks=make_blocks(lengths, length, causal=False)),
        "the formula": partial(formula, mask=mask),
    }
    for name, attend in ways.items():
        print(f"{name:<14}loss {masked_loss(model(tokens, positions, attend), batch, hidden).item():.3f}")


def main() -> None:
    if not torch.cuda.is_available():
        compare()
        return
    torch.manual_seed(0)
    device = torch.device("cuda")
    losses = train(Model(vocabulary=512).to(device).bfloat16(), 200, device)
    for step in (0, 49, 99, 199):
        print(f"step {step + 1:>3}  loss {losses[step]:.2f}")


if __name__ == "__main__":
    main()
