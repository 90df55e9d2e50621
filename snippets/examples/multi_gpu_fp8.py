"""What fp8 gathers of FSDP2 save, with torchao's linear layers: bytes, messages and gradients, with gloo on two CPUs.

It needs transformers (5.17) and torchao (0.17 with torch 2.11, 0.18 with 2.13). `python -m
snippets.examples.multi_gpu_fp8` starts torchrun itself. The CPU computes fp8 products in fp32 (`emulate`).
"""

from collections.abc import Callable
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import MixedPrecisionPolicy

from snippets.examples.llama_causal import say_causal
from snippets.examples.llama_model import TINY, make_model
from snippets.examples.multi_gpu_order import distance, gradients
from snippets.examples.multi_gpu_order_mistakes import counted
from snippets.examples.multi_gpu_ranks import start
from snippets.examples.multi_gpu_strategies import sharded

SIZES = TINY | {"num_key_value_heads": 4, "tie_word_embeddings": True}


# --8<-- [start:fp8]
def sharded_fp8(model: nn.Module, gathered: bool = True) -> nn.Module:
    """All linear layers but lm_head multiply in fp8; each GPU casts its part of a weight before the gather."""
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training

    on_gpu = next(model.parameters()).is_cuda
    config = Float8LinearConfig(enable_fsdp_float8_all_gather=gathered, emulate=not on_gpu)
    convert_to_float8_training(model.model, config=config)
    return sharded(model)


# --8<-- [end:fp8]


def in_fp32(model: nn.Module) -> nn.Module:
    return sharded(model, policy=MixedPrecisionPolicy())


CASES: dict[str, tuple[Callable[[nn.Module], nn.Module], bool]] = {  # how it is made; all scales in one all-reduce
    "bf16 products, bf16 gathers": (sharded, False),
    "fp8 products, bf16 gathers": (partial(sharded_fp8, gathered=False), False),
    "fp8 products, fp8 gathers": (sharded_fp8, False),
    "the same, scales at once": (sharded_fp8, True),
}


def observe(make: Callable[[nn.Module], nn.Module], at_once: bool, tokens: Tensor) -> dict:
    torch.manual_seed(0)
    model = make(say_causal(make_model(SIZES, tokens.device, torch.float32)))
    with counted() as messages:
        if at_once:
            from torchao.float8 import precompute_float8_dynamic_scale_for_fsdp

            precompute_float8_dynamic_scale_for_fsdp(model)  # in training: after each optimizer.step()
        model(input_ids=tokens, labels=tokens).loss.backward()
    sizes = [size for operation, size in messages if operation == "all-gather"]
    reduces = sum(operation == "all-reduce" for operation, _ in messages)
    return {"gathered": sum(sizes), "all-reduces": reduces, "gradients": gradients(model)}


def work() -> None:
    rank = dist.get_rank()
    torch.manual_seed(1 + rank)
    tokens = torch.randint(SIZES["vocab_size"], (2, 32))
    right = observe(in_fp32, False, tokens)["gradients"]
    found = {name: observe(make, at_once, tokens) for name, (make, at_once) in CASES.items()}
    if not rank:
        print(f"==== fp8\n{'':28} {'bytes gathered':>14} {'all-reduces':>11} {'gradients off by':>16}")
        for name, seen in found.items():
            off = distance(seen["gradients"], right)
            print(f"{name:28} {seen['gathered']:14} {seen['all-reduces']:11} {off:16.0e}")


def main() -> None:
    start("snippets.examples.multi_gpu_fp8", work, 2, "gloo")


if __name__ == "__main__":
    main()
