"""What keeps memory alive from one step to the next: sums, lists and names that hold a graph.

Run `python -m snippets.validation.memory_alive`.
"""

from collections.abc import Generator, Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import nn
from torch._subclasses import FakeTensorMode

from snippets.validation.memory import MB, Ledger, graphs_alive, peak_of, record
from snippets.validation.memory_predicted import stand_in
from snippets.validation.memory_remedies import Model
from snippets.validation.memory_step import Batch, loss_of


# --8<-- [start:kept]
def summed(model: nn.Module, batch: Batch, backward: bool, detach: bool) -> Generator[None, None, None]:
    """Sums the losses of a training, or of a validation that forgot `torch.no_grad()`."""
    losses = torch.zeros(())
    while True:
        loss = loss_of(model, *batch)
        if backward:
            loss.backward()
            model.zero_grad()
        losses = losses + (loss.detach() if detach else loss)
        del loss
        yield


def stored(model: nn.Module, batch: Batch, detach: bool) -> Generator[None, None, None]:
    """Keeps the hidden states of each step, for a metric at the end of the epoch."""
    outputs = []
    while True:
        x = model.embedding(batch[0])
        for block in model.blocks:
            x = block(x)
        outputs.append(x.detach() if detach else x)
        del x
        yield


def growth(steps: Generator[None, None, None], number: int = 4) -> list[float]:
    """MB that are alive after each step, beyond those that were after the first."""
    with Ledger() as ledger:
        alive = [(next(steps), ledger.alive)[1] for _ in range(number)]
    return [(now - alive[0]) / MB for now in alive]


# --8<-- [end:kept]


# --8<-- [start:last]
def repeated(model: nn.Module, batch: Batch, training: bool, drop: bool) -> None:
    """Two steps of a script: the first one's `logits` exist until the name is bound anew, unless they are dropped."""
    for _ in range(2):
        with torch.set_grad_enabled(training):
            logits = model.head(model.embedding(batch[0]))
            loss = F.cross_entropy(logits.flatten(0, 1), batch[1].flatten())
        if training:
            loss.backward()
            model.zero_grad()
        if drop:
            del logits, loss


# --8<-- [end:last]


def main() -> None:
    """What is alive after each step, and what the last step leaves; all but the first on a model without data."""
    print("==== graphs alive")
    tokens = torch.zeros(2, 64, dtype=torch.long)
    validation = summed(Model(layers=2, width=64, heads=2, vocabulary=512), (tokens, tokens), False, False)
    for _ in range(3):
        next(validation)
    for size, tensor in graphs_alive():
        print(f"{size / MB:.1f} MB held by a tensor of shape {tuple(tensor.shape)}, {tensor.grad_fn.name()}")
    validation.close()

    with FakeTensorMode():
        model, batch = stand_in()
        print("==== summed")
        print(f"{'MB more after steps 1 to 4':<46}")
        for backward in (True, False):
            for detach in (False, True):
                name = f"{'training' if backward else 'validation'}, {'loss.detach()' if detach else 'loss'} summed"
                print(f"{name:<40}{show(growth(summed(model, batch, backward, detach)))}")
        print("==== stored")
        for detach in (False, True):
            name = "x.detach() stored" if detach else "x stored"
            print(f"{name:<40}{show(growth(stored(model, batch, detach)))}")
        print("==== last step")
        for training in (True, False):
            for drop in (False, True):
                peak = peak_of(record(partial(repeated, model, batch, training, drop), model))
                name = f"{'training' if training else 'inference'}, logits {'dropped' if drop else 'still there'}"
                print(f"{name:<34}peak {peak.nbytes / MB:,.0f} MB")


def show(megabytes: Sequence[float]) -> str:
    return "".join(f"{value:>9,.0f}" for value in megabytes)


if __name__ == "__main__":
    main()
