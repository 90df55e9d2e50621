"""Documents padded or packed into rows, and the tokens a second of each."""

from collections.abc import Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from snippets.examples.large_models_activations import changed
from snippets.examples.large_models_change import Change
from snippets.examples.large_models_measure import line, seconds


# --8<-- [start:packing]
def padded(documents: Sequence[Tensor]) -> dict[str, Tensor]:
    """A row for each document, right padding: no token sees what is after it, so no mask is needed."""
    pad = partial(nn.utils.rnn.pad_sequence, batch_first=True)
    return {"tokens": pad(documents), "labels": pad(documents, padding_value=-100)}


def packed(documents: Sequence[Tensor], length: int) -> dict[str, Tensor]:
    """Documents in rows of at most `length` tokens, the longest first, each in the first row that has room for it."""
    if (longest := max(map(len, documents))) > length:
        raise ValueError(f"length: expected at least {longest}, the longest document, got {length}")
    rows: list[list[Tensor]] = []
    for document in sorted(documents, key=len, reverse=True):
        row = next((row for row in rows if sum(map(len, row)) + len(document) <= length), None)
        if row is None:
            rows.append(row := [])
        row.append(document)
    places = [torch.cat([torch.arange(len(each), device=each.device) for each in row]) for row in rows]
    labels = [torch.cat([F.pad(each[1:], (1, 0), value=-100) for each in row]) for row in rows]
    pad = partial(nn.utils.rnn.pad_sequence, batch_first=True)
    # positions start again at 0 in each document: by them the library knows where one ends
    return {
        "tokens": pad([torch.cat(row) for row in rows]),
        "labels": pad(labels, padding_value=-100),
        "position_ids": pad(places),
    }


# --8<-- [end:packing]


def packing(model: nn.Module, words: int, length: int, count: int, device: torch.device) -> None:
    """Real tokens a second of the same documents, forward and backward, four rows in a step."""
    lengths = (torch.rand(count, generator=torch.Generator().manual_seed(0)) ** 2 * (length - 8) + 8).int().tolist()
    documents = [torch.randint(words, (each,), device=device) for each in lengths]
    loss_of = changed(model, Change())
    together = packed(documents, length)
    ways = {
        "padded": [padded(documents[at : at + 4]) for at in range(0, count, 4)],
        "sorted, then padded": [padded(sorted(documents, key=len)[at : at + 4]) for at in range(0, count, 4)],
        "packed": [
            {name: t[at : at + 4] for name, t in together.items()} for at in range(0, len(together["tokens"]), 4)
        ],
    }
    print(f"{count} documents of {min(lengths)} to {max(lengths)} tokens, {sum(lengths)} in all")
    line("", "steps", "real tokens", "time", "tokens/s")
    for name, batches in ways.items():

        def run(batches: list = batches) -> None:
            for batch in batches:
                loss_of(**batch).backward()
                model.zero_grad()

        run()
        taken, given = seconds(run), sum(batch["tokens"].numel() for batch in batches)
        share = f"{100 * sum(lengths) / given:.0f} %"
        line(name, f"{len(batches)}", share, f"{taken * 1e3:.0f} ms", f"{sum(lengths) / taken:.0f}")
