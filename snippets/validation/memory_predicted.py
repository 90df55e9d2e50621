"""The peak of a training step, counted without a GPU: who holds it, and what each remedy gives back.

Run `python -m snippets.validation.memory_predicted`.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode

from snippets.validation.memory import MB, Peak, peak_of, record, report, saved, table
from snippets.validation.memory_remedies import Model, in_parts, sdpa, with_remedies
from snippets.validation.memory_step import Batch, Early, adam, loss_in_fp32, loss_of, train_step

# --8<-- [start:predict]
SIZES = {"layers": 2, "width": 2048, "heads": 16, "vocabulary": 32768}  # of the model that is measured on an H200
ROWS, LENGTH = 4, 2048
REMEDIES: dict[str, dict] = {
    "nothing": {},
    "SDPA": {"attention": sdpa},
    "loss in parts": {"loss": in_parts},
    "blocks checkpointed": {"checkpointed": True},
    "ReLU in place": {"in_place": True},
    "SDPA, loss in parts": {"attention": sdpa, "loss": in_parts},
    "the two, checkpointed": {"attention": sdpa, "loss": in_parts, "checkpointed": True},
}


def stand_in(**remedies: Any) -> tuple[Model, Batch]:
    """The large model and its batch. Under `FakeTensorMode` they have shapes and no data."""
    tokens = torch.zeros(ROWS, LENGTH, dtype=torch.long)
    return with_remedies(Model(**SIZES), **remedies), (tokens, tokens)


def predicted(remedies: dict, early: bool = False, loss_of: Callable[..., Tensor] = loss_of, **options: bool) -> Peak:
    """The peak of a step of the large model. Nothing is computed and nothing allocated."""
    with FakeTensorMode():
        model, batch = stand_in(**remedies)
        options = options or {"foreach": True}  # the default on a GPU
        optimizers = Early(model, **options) if early else adam(model.parameters(), **options)
        return peak_of(record(lambda: train_step(model, optimizers, *batch, loss_of), model, optimizers))


# --8<-- [end:predict]


def line(name: str, peak: Peak) -> str:
    beside = sum(size for who, size in peak.held.items() if who not in ("parameters", "optimizer state"))
    return f"{name:<34}{peak.nbytes / MB:>9,.0f}{beside / MB:>9,.0f}   {peak.by}"


def main() -> None:
    """Who holds memory, what is saved, and what each remedy changes: of a large model without data."""
    with FakeTensorMode():
        model, batch = stand_in()
        optimizer = adam(model.parameters(), foreach=True)
        print("==== peak")
        print(report(record(lambda: train_step(model, optimizer, *batch), model, optimizer)))
        print("==== saved")
        print(table(saved(model, lambda: loss_of(model, *batch)), 12))
        print("==== saved, SDPA")
        other, _ = stand_in(attention=sdpa)
        print(table(saved(other, lambda: loss_of(other, *batch)), 6))

    print("==== remedies")
    print(f"{'MB':<34}{'peak':>9}{'beside':>9}   reached by")
    for name in ("nothing", "SDPA"):
        print(line(f"{name}, fp32", predicted(REMEDIES[name], loss_of=loss_in_fp32)))
    for name, remedies in REMEDIES.items():
        print(line(name, predicted(remedies)))
    two = REMEDIES["SDPA, loss in parts"]
    print(line("the two, fused AdamW", predicted(two, fused=True)))
    both = {**two, "checkpointed": True}
    print(line("the two, checkpointed, fused", predicted(both, fused=True)))
    print(line("the two, checkpointed, early", predicted(both, early=True, fused=True)))

    print("==== in place")
    with FakeTensorMode():
        for in_place in (False, True):
            model, batch = stand_in(in_place=in_place)
            kept = sum(tensor.nbytes for tensor in saved(model, partial(loss_of, model, *batch)))
            print(f"ReLU {'in place' if in_place else 'as usual'}: {kept / MB:,.0f} MB kept for backward")


if __name__ == "__main__":
    main()
