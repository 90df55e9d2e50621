"""Every strategy computes the loss of the model as it is."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

pytest.importorskip("transformers", reason="a development dependency: constraints.txt names its version")

from snippets.examples.llama_causal import say_causal
from snippets.examples.llama_model import TINY, make_model
from snippets.examples.multi_gpu_strategies import ddp, kept, sharded, tensor_parallel
from tests.snippets.reference.ranks import on_ranks

SIZES = TINY | {"num_key_value_heads": 4, "tie_word_embeddings": True}
WAYS = {"ddp": ddp, "sharded": sharded, "kept": kept, "tensor_parallel": tensor_parallel}


def loss_of(wrap: Callable[[nn.Module], nn.Module]) -> float:
    torch.manual_seed(0)
    model = wrap(say_causal(make_model(SIZES, torch.device("cpu"), torch.float32)))
    tokens = torch.arange(64).view(2, 32)
    logits = model(input_ids=tokens, position_ids=torch.arange(32)[None]).logits
    whole = logits.full_tensor() if hasattr(logits, "full_tensor") else logits
    return float(nn.functional.cross_entropy(whole[:, :-1].flatten(0, 1).float(), tokens[:, 1:].flatten()))


def losses() -> dict[str, float]:
    torch.set_num_threads(1)
    return {"alone": loss_of(lambda model: model)} | {name: loss_of(way) for name, way in WAYS.items()}


def test_each_strategy_has_the_loss_of_the_model_alone(tmp_path: Path) -> None:
    """Sharded ones compute in bf16."""
    for found in on_ranks(losses, 2, tmp_path):
        alone = found.pop("alone")
        assert found.keys() == WAYS.keys()
        for name, loss in found.items():
            assert loss == pytest.approx(alone, rel=1e-5 if name in ("ddp", "tensor_parallel") else 1e-2), name
