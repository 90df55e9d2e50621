"""Where the rest of the bandwidth goes: each kind of kernel of the Triton step, timed apart. It needs a GPU.

Run `python -m snippets.examples.generation_missing`.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from snippets.examples.generation import LLAMA_1B, LLAMA_8B, make_model
from snippets.examples.generation_kernels import TritonDecoder, matvec
from snippets.validation.roofline import bandwidth
from snippets.validation.timing import ColdCache, captured

PLACES = 513  # of the cache: the token that is decoded and 512 before it


# --8<-- [start:kinds]
def kinds(decoder: TritonDecoder) -> dict[str, tuple[Callable[[], object], int]]:
    """The calls of one kind for all layers, and the bytes that they read."""
    layers, h, eps = decoder.layers, decoder.h, decoder.eps
    position = torch.full((1,), PLACES - 1, device=h.device)

    def attention() -> None:
        for keys, values in decoder.cache:
            decoder.attention(decoder.qkv, decoder.cos, decoder.sin, keys[0], values[0], position, decoder.mixed)

    def of(name: str, x: Tensor, out: Tensor, **options: object) -> tuple[Callable[[], object], int]:
        def call() -> None:
            for layer in layers:
                matvec(getattr(layer, name), x, out, **options)

        return call, sum(getattr(layer, name)[0].nbytes for layer in layers)

    norm = {"norm": layers[0].before, "eps": eps}
    return {
        "query, key, value": of("qkv", h, decoder.qkv, **norm),
        "attention": (attention, sum(2 * keys[0, :, :PLACES].nbytes for keys, _ in decoder.cache)),
        "output": of("out", decoder.mixed, h, residual=h),
        "gate and up": of("gate_up", h, decoder.gated, **norm, gated=True),
        "down": of("down", decoder.gated, h, residual=h),
        "last matrix": (lambda: matvec(decoder.head, h, decoder.logits, **norm), decoder.head[0].nbytes),
    }


# --8<-- [end:kinds]


def whole_step(decoder: TritonDecoder) -> Callable[[], object]:
    tokens = torch.zeros(1, dtype=torch.long, device=decoder.h.device)
    return partial(decoder, tokens, torch.full_like(tokens, PLACES - 1))


def seconds(call: Callable[[], object], device: torch.device) -> float:
    """The median of 21 replays, each after a flush of the L2 cache."""
    replay, cache = captured(call), ColdCache(device)
    times = []
    for _ in range(21):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        cache.flush()
        start.record()
        replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / 1e3)
    return sorted(times)[10]


@torch.no_grad()
def main() -> None:
    """Each kind's time, and what reading its bytes takes at the bandwidth of a long read."""
    if not torch.cuda.is_available():
        print("expected a GPU, found none")
        return
    device = torch.device("cuda")
    rate = bandwidth(device, 2**28)["read"].rate
    for name, sizes in (("1B", LLAMA_1B), ("8B", LLAMA_8B)):
        decoder = TritonDecoder(make_model(sizes, device, torch.bfloat16), 2048)
        for tensor in (decoder.h, decoder.qkv, decoder.mixed, decoder.gated):
            tensor.normal_()
        print(f"==== missing {name}")
        print(f"{'':18} {'kernels':>7} {'time':>8} {'bytes / rate':>13} {'missing':>8}")
        whole, least = 0.0, 0.0
        for kind, (call, read) in kinds(decoder).items():
            took, floor = seconds(call, device) * 1e6, read / rate * 1e6
            whole, least = whole + took, least + floor
            count = 1 if kind == "last matrix" else len(decoder.layers)
            print(f"{kind:18} {count:7} {took:5.0f} us {floor:10.0f} us {took - floor:5.0f} us")
        step = seconds(whole_step(decoder), device) * 1e6
        print(f"{'sum':18} {'':7} {whole:5.0f} us {least:10.0f} us {whole - least:5.0f} us")
        print(f"{'one step':18} {'':7} {step:5.0f} us {least:10.0f} us {step - least:5.0f} us")
        del decoder


if __name__ == "__main__":
    main()
