"""Gradients of several batches, reduced once; and such a step, measured."""

import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel

from snippets.examples.llama_causal import say_causal
from snippets.examples.llama_model import make_model
from snippets.examples.multi_gpu_bytes import BATCH, LENGTH, SIZES
from snippets.examples.multi_gpu_measured import STEPS, WARM
from snippets.examples.multi_gpu_ranks import GPU, allocated, nothing_left, synchronize
from snippets.examples.multi_gpu_trace import traced
from snippets.reference.communication import device

Loss = Callable[[Tensor], Tensor]


# --8<-- [start:accumulate]
def accumulate(model: nn.Module, loss_of: Loss, batches: Sequence[Tensor], sync_last_only: bool = True) -> None:
    """Gradients of several batches. Only the last backward reduces them over the GPUs."""
    wrapped = getattr(model, "_orig_mod", model)  # torch.compile returns a module around the wrapped one
    for i, tokens in enumerate(batches):
        sync = not sync_last_only or i == len(batches) - 1
        if isinstance(wrapped, FSDPModule):
            wrapped.set_requires_gradient_sync(sync)
        # the forward belongs inside: there DDP decides whether its backward will reduce
        with wrapped.no_sync() if isinstance(wrapped, DistributedDataParallel) and not sync else nullcontext():
            (loss_of(tokens) / len(batches)).backward()


# --8<-- [end:accumulate]


Case = tuple[Callable[[nn.Module], nn.Module], int, bool]  # how it is made; micro-steps; only the last one reduces


def measure(case: Case, rank: int, device: torch.device, path: Path) -> tuple[dict, list[Tensor]]:
    """Times, bytes and peak of a step, and a copy in the CPU's memory of this process's first gradients."""
    make, micro, last_only = case
    nothing_left()
    torch.manual_seed(0)
    before = allocated()
    model = make(say_causal(make_model(SIZES, device, torch.float32)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    torch.manual_seed(1 + rank)
    batches = [torch.randint(SIZES["vocab_size"], (BATCH, LENGTH), device=device) for _ in range(micro)]

    def loss_of(tokens: Tensor) -> Tensor:
        with torch.autocast(device.type, torch.bfloat16, enabled=not isinstance(model, FSDPModule)):
            return model(input_ids=tokens, labels=tokens).loss

    def step() -> None:
        accumulate(model, loss_of, batches, last_only)
        optimizer.step()
        optimizer.zero_grad()

    accumulate(model, loss_of, batches, last_only)
    local = [p.grad.to_local() for p in model.parameters()] if isinstance(model, FSDPModule) else []
    gradients = [gradient.to("cpu", copy=True) for gradient in local]
    del local
    optimizer.zero_grad()
    for _ in range(WARM):
        step()
    synchronize()
    if GPU:
        torch.cuda.reset_peak_memory_stats()
    dist.barrier()
    began = time.perf_counter()
    steps = max(2, STEPS // micro) if GPU else 1
    for _ in range(steps):
        step()
    synchronize()
    result = {"step": (time.perf_counter() - began) / steps}
    result["peak"] = torch.cuda.max_memory_allocated() - before if GPU else 0
    return result | traced(step, path), gradients


def distance(these: Sequence[Tensor], those: Sequence[Tensor]) -> float:
    """Of all gradients of all processes, relative to those."""
    sums = torch.stack(
        [
            torch.stack([(a - b).double().square().sum() for a, b in zip(these, those, strict=True)]).sum(),
            torch.stack([b.double().square().sum() for b in those]).sum(),
        ]
    ).to(device())
    dist.all_reduce(sums)
    return (sums[0] / sums[1]).sqrt().item()
