"""Is fp8 worth it in training? One block of an 8B Llama, single layers by size, and the step of a 1B with its loss.

It needs transformers (5.17) and torchao (0.17 with torch 2.11, 0.18 with 2.13). Run
`python -m snippets.examples.fp8_training`: without fp8 tensor cores it trains a small model in emulated fp8.
"""

import sys
import sysconfig
import time
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor

from snippets.examples.fp8_training_convert import RECIPES, changed, has_fp8
from snippets.examples.fp8_training_layers import TOKENS, block, by_size
from snippets.examples.hf_llama import LLAMA_1B, RUNGS
from snippets.examples.llama_model import TINY, make_model, make_optimizer, train_step

ADVICE = "fp8_training: torchao is missing. Install it: pip install torchao"


def text(steps: int, batch: int, length: int) -> Tensor:
    """Python's standard library as bytes, from files in an order drawn once: (steps, batch, length) tokens."""
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    order = torch.randperm(len(files), generator=torch.Generator().manual_seed(0)).tolist()
    found = b"".join(files[place].read_bytes() for place in order)
    needed = steps * batch * length
    if len(found) < needed:
        raise ValueError(
            f"steps: expected at most {len(found) // batch // length} of {batch * length} bytes, got {steps}"
        )
    return torch.frombuffer(bytearray(found[:needed]), dtype=torch.uint8).long().view(steps, batch, length)


# --8<-- [start:train]
def train(name: str, sizes: dict, batches: Tensor, seed: int = 0) -> tuple[list[float], float, float]:
    """The loss of each step from the same weights on the same data, milliseconds of a step, and the peak in GB."""
    torch.manual_seed(seed)
    on_gpu = batches.is_cuda
    model = changed(make_model(sizes, batches.device, torch.bfloat16 if on_gpu else torch.float32), name)
    loss_of, optimizer = RUNGS["all" if on_gpu else "eager"](model), make_optimizer(model, lr=3e-4)
    losses, warm = [], len(batches) // 4
    wait = torch.cuda.synchronize if on_gpu else lambda: None
    for step, tokens in enumerate(batches):
        if step == warm:  # compiled, and the clock has come down to what the power allows
            wait()
            start = time.perf_counter()
        losses.append(train_step(loss_of, optimizer, tokens))
    wait()
    taken = (time.perf_counter() - start) / (len(batches) - warm) * 1e3
    return torch.stack(losses).tolist(), taken, torch.cuda.max_memory_allocated() / 1e9 if on_gpu else 0.0


# --8<-- [end:train]


def step_and_loss(names: tuple[str, ...], sizes: dict, batches: Tensor) -> None:
    """What a step takes, and the loss beside that of bf16; bf16 from other weights says which distance is chance."""
    curves = {}
    print(f"{'':28}{'step':>12}{'peak':>12}{'last ten losses':>18}{'from bf16':>12}")
    for name in ("bf16", "other weights", *names):
        if name in names:
            torch.compiler.reset()
        if batches.is_cuda:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        other = name == "other weights"
        losses, taken, peak = train("bf16" if other else name, sizes, batches, seed=int(other))
        curves[name] = losses
        end, plain = (torch.tensor(curve[-10:]) for curve in (losses, curves["bf16"]))
        apart = (end - plain).abs().mean()
        shown = f"{peak:.1f} GB" if batches.is_cuda else "not known"
        print(f"{name:28}{taken:9.1f} ms{shown:>12}{end.mean():18.4f}{apart:12.4f}", flush=True)
    print("==== curve")
    print(f"{'step':28}" + "".join(f"{step:>9}" for step in marks(len(batches))))
    for name, losses in curves.items():
        print(f"{name:28}" + "".join(f"{losses[step - 1]:9.4f}" for step in marks(len(batches))))


def marks(steps: int) -> list[int]:
    return sorted({1, *(steps * part // 6 for part in range(1, 7))} - {0})


def main() -> None:
    """On a GPU with fp8 all three; elsewhere what is converted, and a small model in emulated fp8."""
    if find_spec("torchao") is None:
        sys.exit(ADVICE)
    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda" if on_gpu else "cpu")
    if on_gpu and not has_fp8(device):
        sys.exit("fp8_training: expected a GPU with fp8 tensor cores (Ada, Hopper or newer)")
    if on_gpu:
        print("==== block")
        block()
        print("==== sizes")
        by_size()
    print("==== step")
    if on_gpu:
        batches = text(40, 4, TOKENS // 4).to(device)
        step_and_loss(("tensorwise", "rowwise"), LLAMA_1B, batches)
    else:
        step_and_loss(RECIPES, TINY, text(8, 2, 64))


if __name__ == "__main__":
    main()
