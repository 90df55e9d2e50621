"""Memory of a Llama that nearly fills one GPU: each part by hand and measured, and what each way to save it costs.

It needs transformers (5.17); torchao (0.17 with torch 2.11, 0.18 with 2.13) adds optimizer states of 8 bits. Run
`python -m snippets.examples.large_models`: Llamas of 1B, 3B and 8B on a GPU of 80 GB, a tiny one without.
"""

import sys
from collections.abc import Mapping, Sequence
from functools import partial
from importlib.util import find_spec

import torch

from snippets.examples.hf_llama import LLAMA_1B, LLAMA_8B
from snippets.examples.large_models_change import EACH, NO_TORCHAO, Change, available, on_gpu_only
from snippets.examples.large_models_counted import parts
from snippets.examples.large_models_measure import (
    GIB,
    emptied,
    error,
    line,
    or_why,
    progress,
    ran_or_why,
    section,
    size,
    tried,
)
from snippets.examples.large_models_moments import predicted
from snippets.examples.large_models_packing import packing
from snippets.examples.large_models_seconds import each, rates
from snippets.examples.large_models_shape import LLAMA_3B, SMALL, Shape, Sizes, shape_of
from snippets.examples.llama_model import make_model

BATCHES = {  # rows of tokens, and what is done: a 3B that nearly fits, and an 8B whose state alone is too large
    "3B": [
        (3, "as it comes"),
        (4, "as it comes"),
        (4, "blocks compiled"),
        (4, "bf16 states"),
        (4, "selective checkpoints"),
        (4, "blocks checkpointed"),
        (4, "and gradients released"),
    ],
    "8B": [(4, "and 8-bit states")],
}


# --8<-- [start:largest]
def largest(s: Shape, room: float, change: Change, length: int) -> int:
    """The most rows of `length` tokens whose step fits, by hand."""
    rows = 0
    while rows < 1024 and predicted(s, (rows + 1) * length, change)[1] <= room:
        rows += 1
    return rows


# --8<-- [end:largest]


def large(
    device: torch.device, models: Mapping[str, Sizes], length: int, batches: Mapping[str, Sequence[tuple[int, str]]]
) -> None:
    """What fits: by hand the most rows, then the steps themselves."""
    gpu = device.type == "cuda"
    room = torch.cuda.get_device_properties(device).total_memory - 1.0 * GIB if gpu else 2.0**26
    together = available(EACH["and 8-bit states"])
    print(f"room: {size(room)}; rows of {length} tokens that fit by hand: as it comes, and together")
    for name, sizes in models.items():
        line(name, *(f"{largest(shape_of(sizes), room, change, length)}" for change in (Change(), together)))
    line("", "by hand", "peak", "error", "step", "tokens/s")
    for name, runs in batches.items():
        s = shape_of(models[name])
        model = ran_or_why(partial(make_model, models[name], device, torch.float32))
        if isinstance(model, str):
            line(name, model)
            continue
        for rows, way in runs:
            change = available(EACH[way])
            tokens = torch.randint(s.words, (rows, length), device=device)
            title = f"{name}, {rows} rows: {way}"
            progress(title)
            peak, ran = predicted(s, tokens.numel(), change)[1], tried(model, tokens, change)
            if isinstance(ran, str):
                line(title, size(peak), ran)
                continue
            speed = f"{tokens.numel() / ran.seconds:.0f}"
            line(title, size(peak), size(ran.peak), error(peak, ran.peak), f"{ran.seconds * 1e3:.0f} ms", speed)
        del model
        emptied()


def main() -> None:
    """On a GPU of 80 GB about three minutes; on a CPU what needs no compiler, of a tiny model, in seconds."""
    torch.manual_seed(0)
    gpu = torch.cuda.is_available()
    device = torch.device("cuda" if gpu else "cpu")
    if find_spec("torchao") is None:
        print(NO_TORCHAO, file=sys.stderr)
    models = {"1B": LLAMA_1B, "3B": LLAMA_3B, "8B": LLAMA_8B} if gpu else {"tiny": SMALL}
    length, first = (2048, "1B") if gpu else (48, "tiny")
    section("rates")
    rate = rates(device)
    for name, found in rate.items():
        line(name, f"{found / 1e12:.1f} TFLOP/s" if name == "matmul" else f"{found / 1e9:.1f} GB/s")
    s = shape_of(models[first])
    tokens = torch.randint(s.words, (4, length), device=device)
    model = make_model(models[first], device, torch.float32)
    section(f"parts {first}")
    or_why(partial(parts, model, s, tokens))
    section("each")
    each(model, s, tokens, rate, [name for name, change in EACH.items() if gpu or not on_gpu_only(change)])
    section("packing")
    or_why(partial(packing, model, s.words, length, 32 if gpu else 8, device))
    del model
    emptied()
    if gpu:
        section("parts 3B")
        or_why(lambda: parts(make_model(LLAMA_3B, device, torch.float32), shape_of(LLAMA_3B), tokens[:2]))
    section("large")
    large(device, models, length, BATCHES if gpu else {"tiny": [(2, "as it comes"), (2, "and 8-bit states")]})
    progress("done")


if __name__ == "__main__":
    main()
