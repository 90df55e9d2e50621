"""A module that torch.compile returned reduces once, too."""

import functools
from pathlib import Path

import torch

from snippets.examples import multi_gpu_accumulate
from snippets.examples.llama_causal import say_causal
from snippets.examples.llama_model import make_model
from snippets.examples.multi_gpu_bytes import SIZES
from snippets.examples.multi_gpu_order_mistakes import counted
from snippets.examples.multi_gpu_overlap import MICRO, root_only
from snippets.examples.multi_gpu_strategies import ddp
from tests.snippets.reference.ranks import on_ranks


def compiled_as_a_whole() -> dict[str, int]:
    """Messages of several micro-steps, of which one reduces, with a module that torch.compile returned."""
    found = {}
    tokens = torch.ones(1, 8, dtype=torch.long)
    for name, wrap in (("DDP", ddp), ("FSDP2", root_only)):
        torch.manual_seed(0)
        wrapped = torch.compile(
            wrap(say_causal(make_model(SIZES, torch.device("cpu"), torch.float32))), backend="eager"
        )
        loss_of = functools.partial(loss_of_ids, wrapped)
        multi_gpu_accumulate.accumulate(wrapped, loss_of, [tokens])
        with counted() as messages:
            multi_gpu_accumulate.accumulate(wrapped, loss_of, [tokens] * MICRO)
        found[name] = sum(operation != "all-gather" for operation, _ in messages)
    return found


def loss_of_ids(model: torch.nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    return model(input_ids=tokens, labels=tokens).loss


def test_a_module_that_was_compiled_reduces_once_too(tmp_path: Path) -> None:
    assert on_ranks(compiled_as_a_whole, 2, tmp_path)[0] == {"DDP": 1, "FSDP2": 1}
