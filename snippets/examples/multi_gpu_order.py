"""In which order to checkpoint, compile and wrap: graphs, messages and gradients of each order, with gloo on CPUs.

It needs transformers (5.17). `python -m snippets.examples.multi_gpu_order` starts torchrun itself.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from tempfile import TemporaryDirectory
from textwrap import wrap

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile

from snippets.examples.llama import TINY, make_model, say_causal
from snippets.examples.multi_gpu_measure import start
from snippets.examples.multi_gpu_strategies import tensor_parallel
from snippets.examples.multi_gpu_trace import collectives, events_of

WIDE = {"hidden_size": 128, "intermediate_size": 1024}  # several buckets of 1 MiB, the smallest that DDP compiles with
SIZES = TINY | WIDE | {"tie_word_embeddings": True, "num_key_value_heads": 4, "initializer_range": 0.02}
GRAPHS: list[torch.fx.GraphModule] = []


def counting(graph: torch.fx.GraphModule, inputs: Sequence[Tensor]) -> Callable:
    """A backend that counts, and then leaves the code to PyTorch's operators."""
    from torch._dynamo.backends.debugging import aot_eager_decomp_partition

    GRAPHS.append(graph)
    return aot_eager_decomp_partition(graph, inputs)


def tiny() -> nn.Module:
    torch.manual_seed(0)
    return say_causal(make_model(SIZES, torch.device("cpu"), torch.float32))


def compiled(module: nn.Module) -> nn.Module:
    return torch.compile(module, backend=counting, dynamic=False)


def each(model: nn.Module, change: Callable[[nn.Module], object]) -> nn.Module:
    """What the change returns takes the layer's place; if it returns nothing, it has changed the layer."""
    layers = model.model.layers
    for i, layer in enumerate(layers):
        layers[i] = change(layer) or layer
    return model


def layer_compiled(layer: nn.Module) -> None:
    layer.compile(backend=counting, dynamic=False)


# --8<-- [start:orders]
def ddp(model: nn.Module) -> nn.Module:
    return DistributedDataParallel(model, gradient_as_bucket_view=True, bucket_cap_mb=1)


def sharded(model: nn.Module) -> nn.Module:
    return fully_shard(each(model, fully_shard))


ORDERS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "DDP, compile": lambda model: compiled(ddp(model)),
    "compile, DDP": lambda model: ddp(compiled(model)),
    "checkpoint, DDP, compile": lambda model: compiled(ddp(each(model, checkpoint_wrapper))),
    "compile blocks, DDP": lambda model: ddp(each(model, layer_compiled)),
    "compile blocks, FSDP2": lambda model: sharded(each(model, layer_compiled)),
    "FSDP2, compile blocks": lambda model: each(sharded(model), layer_compiled),
    "FSDP2, compile whole": lambda model: compiled(sharded(model)),
    "compile whole, FSDP2": lambda model: sharded(compiled(model)),
    "checkpoint, compile, FSDP2": lambda model: sharded(each(each(model, checkpoint_wrapper), layer_compiled)),
    "compile, checkpoint, FSDP2": lambda model: sharded(each(each(model, layer_compiled), checkpoint_wrapper)),
    "compile, FSDP2, checkpoint": lambda model: each(sharded(each(model, layer_compiled)), checkpoint_wrapper),
}
# --8<-- [end:orders]


def gradients(model: nn.Module) -> list[Tensor]:
    return [p.grad.full_tensor() if isinstance(p.grad, DTensor) else p.grad for p in model.parameters()]


def distance(these: Sequence[Tensor], those: Sequence[Tensor]) -> float:
    """The largest relative one of any parameter's gradient."""
    return max(float((a - b).norm() / b.norm()) for a, b in zip(these, those, strict=True))


def loss(wrapped: nn.Module, tokens: Tensor) -> Tensor:
    return wrapped(input_ids=tokens, labels=tokens).loss


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
