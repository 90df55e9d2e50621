"""In which order to checkpoint, compile and wrap: graphs, messages and gradients of each order, with gloo on CPUs.

It needs transformers (5.17). `python -m snippets.examples.multi_gpu_order` starts torchrun itself.
"""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from snippets.examples.multi_gpu_order_mistakes import MISTAKES, counted, say_outcome
from snippets.examples.multi_gpu_order_wraps import GRAPHS, ORDERS, SIZES, loss, tiny
from snippets.examples.multi_gpu_ranks import start


def gradients(model: nn.Module) -> list[Tensor]:
    return [p.grad.full_tensor() if isinstance(p.grad, DTensor) else p.grad for p in model.parameters()]


def distance(these: Sequence[Tensor], those: Sequence[Tensor]) -> float:
    """The largest relative one of any parameter's gradient."""
    return max(float((a - b).norm() / b.norm()) for a, b in zip(these, those, strict=True))


# --8<-- [start:observe]
def observe(make: Callable[[nn.Module], nn.Module], tokens: Tensor) -> dict:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    torch._dynamo.utils.clear_compilation_metrics()
    GRAPHS.clear()
    model = tiny()
    wrapped = make(model)
    saved: dict[int, int] = {}

    def pack(t: Tensor) -> Tensor:
        if not isinstance(t, (nn.Parameter, DTensor)):
            saved[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
        return t

    for again in (False, True):  # compiling is behind us in the second
        model.zero_grad()
        saved.clear()
        with counted() if again else nullcontext([]) as messages:
            with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
                result = loss(wrapped, tokens)
            result.backward()
    breaks = sum(torch._dynamo.utils.counters["graph_break"].values())
    counts = {"graphs": len(GRAPHS), "breaks": breaks, "saved": sum(saved.values())}
    return counts | {"messages": messages, "recompiled": recompiled(), "gradients": gradients(model)}


def recompiled() -> int:
    """Compilations since the metrics were cleared that only a failed guard of an earlier one asked for."""
    return sum(one.recompile_reason is not None for one in torch._dynamo.utils.get_compilation_metrics())


# --8<-- [end:observe]


def work() -> None:
    rank = dist.get_rank()
    torch.manual_seed(1)
    tokens = torch.randint(SIZES["vocab_size"], (2 * dist.get_world_size(), 32))
    whole = tiny()
    loss(whole, tokens).backward()
    right = gradients(whole)
    mine = tokens[2 * rank : 2 * rank + 2]
    say = print if not rank else lambda *_, **__: None
    heads = f"{'graphs':>6} {'breaks':>6} {'saved KiB':>9} {'messages':>8} {'recompiled':>10}"
    say(f"==== orders\n{'':28} {heads} {'gradients off by':>16}")
    for name, make in ORDERS.items():
        seen = observe(make, mine)
        counts = f"{seen['graphs']:6} {seen['breaks']:6} {seen['saved'] / 1024:9.0f} {len(seen['messages']):8}"
        counts += f" {seen['recompiled']:10}"
        say(f"{name:28} {counts} {distance(seen['gradients'], right):16.0e}", flush=True)
    say("==== mistakes")
    for name, make in MISTAKES.items():
        say_outcome(name, partial(make, mine))


def main() -> None:
    start("snippets.examples.multi_gpu_order", work, 2, "gloo")


if __name__ == "__main__":
    main()
