"""Which kernel each way of leaving padding out runs on a GPU, which of SDPA's kernels take a mask, and what it costs to
make what each way needs.

    python -m snippets.patterns.attention_padding_backends

A CPU has none of these kernels, so there this prints nothing but that.
"""

import re
from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

from snippets.patterns.attention_padding_masks import (
    as_float,
    causal_only,
    flex,
    make_blocks,
    make_mask,
    with_mask,
)
from snippets.patterns.attention_padding_takes import HEADS, ROWS, SIZE, TOKENS, Batch, make_batch, show_takes
from snippets.patterns.attention_padding_varlen import (
    make_packing,
    pack,
    unpack,
    variable_length,
)
from snippets.validation.timing import measure

Way = Callable[..., Tensor]


# ---- which kernel runs ----------------------------------------------------------------------------------------------


# --8<-- [start:kernels]
def kernels(call: Callable[[], object]) -> list[str]:
    """Names of the kernels that a call launches on the GPU, the one that takes longest first."""
    from torch.profiler import ProfilerActivity, profile

    call()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as trace:
        call()
        torch.cuda.synchronize()
    ran = [event for event in trace.events() if event.device_type.name == "CUDA"]
    ran = [event for event in ran if not event.name.startswith(("Memcpy", "Memset"))]
    return [short(event.name) for event in sorted(ran, key=lambda event: -event.time_range.elapsed_us())]


def short(name: str) -> str:
    """A kernel's name without what it returns, its template's arguments, its parameters and its tiles."""
    return re.sub(r"^(void|static) |[<(].*|_knob_.*", "", name)


# --8<-- [end:kernels]


def ways(batch: Batch, causal: bool) -> Iterator[tuple[str, Way, list[Tensor]]]:
    """Each way by its name, and what it takes. Without causality the masks differ, and nothing else."""
    mask = make_mask(batch.lengths, TOKENS, causal)
    yield "SDPA, boolean mask", partial(with_mask, mask=mask), batch.inputs
    yield "SDPA, float mask", partial(with_mask, mask=as_float(mask, batch.inputs[0].dtype)), batch.inputs
    if causal:
        yield "SDPA, is_causal alone", causal_only, batch.inputs
        attend, blocks = torch.compile(flex_attention, dynamic=False), make_blocks(batch.lengths, TOKENS, causal)
        yield "FlexAttention, block mask", partial(flex, blocks=blocks, attend=attend), batch.inputs
        packed = [pack(t, batch.packing) for t in batch.inputs]
        yield "varlen_attn, packed rows", partial(variable_length, packing=batch.packing, causal=causal), packed


def show_backends(batch: Batch) -> None:
    for causal in (True, False):
        print("causal" if causal else "not causal")
        for name, way, inputs in ways(batch, causal):
            print(f"  {name}")
            for direction, ran in directions(way, inputs):
                print(f"    {direction:<9}{len(ran):>3} kernel{'s' if len(ran) > 1 else ' '}  {ran[0]}")


def directions(way: Way, inputs: list[Tensor]) -> Iterator[tuple[str, list[str]]]:
    """The kernels of the forward, and of the backward."""
    leaves = [t.detach().requires_grad_() for t in inputs]
    try:
        yield "forward", kernels(lambda: way(*leaves))
        output = way(*leaves)
        grad = torch.randn_like(output)
        yield "backward", kernels(lambda: torch.autograd.grad(output, leaves, grad, retain_graph=True))
    except RuntimeError as error:
        yield "fails", [str(error).splitlines()[0]]


# ---- what it costs to make ------------------------------------------------------------------------------------------


def made(batch: Batch) -> dict[str, Callable[[], object]]:
    """What is made once for a batch, and what is done at each layer whose neighbours are padded."""
    lengths, packing, device = batch.lengths, batch.packing, batch.lengths.device
    mask, packed = make_mask(lengths, TOKENS, True), pack(batch.inputs[0], batch.packing)
    compiled = torch.compile(create_block_mask, dynamic=False)
    return {
        "boolean mask": lambda: make_mask(lengths, TOKENS, False),
        "boolean mask, causal": lambda: make_mask(lengths, TOKENS, True),
        "float mask of it": lambda: as_float(mask, torch.bfloat16),
        "block mask, causal": lambda: make_blocks(lengths, TOKENS, True),
        "block mask, compiled": lambda: make_blocks(lengths, TOKENS, True, compiled),
        "index and offsets": lambda: make_packing(batch.on_the_host, TOKENS, device),
        "q, k and v packed": lambda: [pack(t, packing) for t in batch.inputs],
        "result unpacked": lambda: unpack(packed, packing, ROWS, TOKENS),
    }


def show_made(batch: Batch) -> None:
    calls = made(batch)
    timings = measure(calls, batch.lengths.device, "calls", rounds=10, patience=4.0)
    for name, timing in timings.items():
        print(f"{name:<24}{timing.p50 * 1e6:>9.0f} us{size_of(calls[name]()) / 2**20:>10.1f} MiB")


def size_of(result: object) -> int:
    """Bytes of the tensors in it."""
    if isinstance(result, BlockMask):
        result = [t for t in result.as_tuple() if isinstance(t, Tensor)]
    if isinstance(result, Tensor):
        return result.nbytes
    return sum(size_of(each) for each in result) if isinstance(result, list | tuple) else 0


def main() -> None:
    if not torch.cuda.is_available():
        print("a CPU has none of these kernels: run this on a GPU")
        return
    torch.manual_seed(0)
    batch = make_batch(ROWS, TOKENS, HEADS, SIZE, torch.device("cuda"))
    print("==== backends")
    show_backends(batch)
    print("==== takes")
    show_takes(batch)
    print("==== making")
    show_made(batch)


if __name__ == "__main__":
    main()
