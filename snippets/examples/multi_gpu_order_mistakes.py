"""Mistakes when a model is wrapped: what each gives, an error or silence."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from tempfile import TemporaryDirectory
from textwrap import wrap

import torch
import torch.distributed as dist
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from snippets.examples.multi_gpu_order_wraps import ddp, loss, sharded, tiny
from snippets.examples.multi_gpu_strategies import tensor_parallel
from snippets.examples.multi_gpu_trace import collectives, events_of


# --8<-- [start:mistakes]
def optimizer_first(tokens: Tensor) -> str:
    model = tiny()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    sharded(model)
    before = [p.full_tensor() for p in model.parameters()]
    loss(model, tokens).backward()
    optimizer.step()
    changed = sum(not torch.equal(a, p.full_tensor()) for a, p in zip(before, model.parameters(), strict=True))
    return f"no error; parameters that the step changed: {changed}"


def forward_outside(tokens: Tensor) -> str:
    model = ddp(tiny())
    result = loss(model, tokens)
    with counted() as messages, model.no_sync():
        result.backward()
    return f"no error; all-reduces in the backward: {len(messages)}"


def tensor_parallel_last(tokens: Tensor) -> str:
    loss(tensor_parallel(sharded(tiny())), tokens)
    return "no error"


def ddp_last(tokens: Tensor) -> str:
    loss(ddp(sharded(tiny())), tokens)
    return "no error"


MISTAKES = {
    "optimizer before fully_shard": optimizer_first,
    "only the backward in no_sync": forward_outside,
    "fully_shard, then parallelize_module": tensor_parallel_last,
    "fully_shard, then DDP": ddp_last,
}
# --8<-- [end:mistakes]


@contextmanager
def counted() -> Iterator[list[tuple[str, int]]]:
    """Messages of the block in the first process, complete at its end."""
    messages: list[tuple[str, int]] = []
    with TemporaryDirectory() as folder:
        with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
            yield messages
        if not dist.get_rank():  # which prints
            profiler.export_chrome_trace(f"{folder}/trace.json")
            messages += collectives(events_of(f"{folder}/trace.json"))


def say_outcome(name: str, call: Callable[[], str]) -> None:
    """What a call says, or its error, from the first process."""
    try:
        seen = call()
    except RuntimeError as error:
        seen = f"{type(error).__name__}: {str(error).splitlines()[0]}"
    if not dist.get_rank():
        print(*wrap(f"{name}: {seen}", 100, subsequent_indent="    "), sep="\n", flush=True)
