"""This site's kernels in a model that is split: their gradients against those of the whole model, or the refusal.

It needs transformers (5.17). `python -m snippets.examples.multi_gpu_kernels` starts torchrun itself, on all GPUs, or
with gloo on two CPU processes, where Triton interprets the kernels.
"""

import os
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from types import MethodType

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import MixedPrecisionPolicy
from torch.distributed.tensor.parallel import loss_parallel

from kernels.rms_norm import rms_norm
from snippets.examples.llama_causal import say_causal
from snippets.examples.llama_kernels import attention, gated, mean_loss, shifted
from snippets.examples.llama_model import TINY, make_model
from snippets.examples.multi_gpu_order import distance, gradients
from snippets.examples.multi_gpu_order_mistakes import say_outcome
from snippets.examples.multi_gpu_ranks import GPU, start
from snippets.examples.multi_gpu_strategies import HALF, sharded, tensor_parallel
from snippets.reference.communication import device, worlds

SIZES = TINY | {"tie_word_embeddings": True, "num_key_value_heads": 4}


# --8<-- [start:swap]
def norm(self: nn.Module, x: Tensor) -> Tensor:
    return rms_norm(x, self.weight, self.variance_epsilon)  # read at each call: FSDP2 replaces the parameter


def swap(model: nn.Module, parts: Sequence[str] = ("LlamaRMSNorm", "LlamaMLP", "LlamaAttention", "loss")) -> nn.Module:
    """Before fully_shard or parallelize_module."""
    forward = {"LlamaRMSNorm": norm, "LlamaMLP": gated, "LlamaAttention": attention}
    for module in model.modules():
        if type(module).__name__ in parts:
            module.forward = MethodType(forward[type(module).__name__], module)
    if "loss" in parts:
        model.loss_function = lambda logits, labels, **_: mean_loss(logits.flatten(0, 1), shifted(labels))
    return model


# --8<-- [end:swap]


def library(model: nn.Module) -> nn.Module:
    return model


def whole(model: nn.Module) -> nn.Module:
    return sharded(swap(model), policy=MixedPrecisionPolicy())


CASES: dict[str, Callable[[nn.Module], nn.Module]] = {
    "FSDP2 in fp32, kernels": whole,
    "FSDP2 in bf16, library": lambda model: sharded(model, policy=HALF),
    "FSDP2 in bf16, kernels": lambda model: sharded(swap(model), policy=HALF),
    "tensor parallel, MLP and attention": lambda model: tensor_parallel(swap(model, ("LlamaMLP", "LlamaAttention"))),
    "tensor parallel, norm": lambda model: tensor_parallel(swap(model, ("LlamaRMSNorm",))),
    "tensor parallel, loss": lambda model: tensor_parallel(swap(model, ("loss",))),
}


def gradients_of(make: Callable[[nn.Module], nn.Module], tokens: Tensor, split: bool) -> list[Tensor]:
    torch.manual_seed(0)
    model = make(say_causal(make_model(SIZES, tokens.device, torch.float32)))
    positions = torch.arange(tokens.shape[1], device=tokens.device)[None]
    with loss_parallel() if split else nullcontext():
        model(input_ids=tokens, labels=tokens, position_ids=positions).loss.backward()
    return gradients(model)


def compared(make: Callable[[nn.Module], nn.Module], tokens: Tensor, split: bool, right: list[Tensor]) -> str:
    return f"gradients off by {distance(gradients_of(make, tokens, split), right):.0e}"


def work() -> None:
    rank = dist.get_rank()
    torch.manual_seed(1)
    tokens = torch.randint(SIZES["vocab_size"], (2 * dist.get_world_size(), 32)).to(device())
    right = gradients_of(library, tokens, split=False)
    if not rank:
        print("==== kernels", flush=True)
    for name, make in CASES.items():
        split = name.startswith("tensor")
        mine = tokens if split else tokens[2 * rank : 2 * rank + 2]
        say_outcome(name, partial(compared, make, mine, split, right))


def main() -> None:
    if not GPU:
        os.environ["TRITON_INTERPRET"] = "1"  # for the processes, which read it before Triton does
    start("snippets.examples.multi_gpu_kernels", work, worlds()[0])


if __name__ == "__main__":
    main()
