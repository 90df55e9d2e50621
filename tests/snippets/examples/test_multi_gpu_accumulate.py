"""A module that torch.compile returned reduces once, too."""

import functools
from pathlib import Path

import torch

from snippets.examples import multi_gpu_accumulate
from snippets.examples.multi_gpu_order_mistakes import counted
from snippets.examples.multi_gpu_overlap import MICRO, root_only
from snippets.examples.multi_gpu_strategies import ddp
from tests.snippets.reference.ranks import on_ranks


def compiled_as_a_whole() -> dict[str, int]:
    """Messages of several micro-steps, of which one reduces, with a module that torch.compile returned."""
    found = {}
    x = torch.ones(2, 8)
    for name, wrap in (("DDP", ddp), ("FSDP2", root_only)):
        wrapped = torch.compile(wrap(torch.nn.Linear(8, 8)), backend="eager")
        loss_of = functools.partial(loss_of_rows, wrapped)
        multi_gpu_accumulate.accumulate(wrapped, loss_of, [x])
        with counted() as messages:
            multi_gpu_accumulate.accumulate(wrapped, loss_of, [x] * MICRO)
        found[name] = sum(operation != "all-gather" for operation, _ in messages)
    return found


def loss_of_rows(model: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    return model(x).sum()


def test_a_module_that_was_compiled_reduces_once_too(tmp_path: Path) -> None:
    assert on_ranks(compiled_as_a_whole, 2, tmp_path)[0] == {"DDP": 1, "FSDP2": 1}
