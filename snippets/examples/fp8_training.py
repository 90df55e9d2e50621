"""Is fp8 worth it in training? One block of an 8B Llama, single layers by size, and the step of a 1B with its loss.

It needs transformers (5.17) and torchao (0.17 with torch 2.11, 0.18 with 2.13). Run
`python -m snippets.examples.fp8_training`: without fp8 tensor cores it trains a small model in emulated fp8.
"""

import sys
import sysconfig
import time
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor, nn

from snippets.examples.hf_llama import LLAMA_1B, LLAMA_8B, RUNGS
from snippets.examples.llama_model import TINY, make_model, make_optimizer, train_step
from snippets.validation.timing import captured, seconds_per_call

RECIPES = "tensorwise", "rowwise", "rowwise_with_gw_hp"
SIZES = (1024, 1024), (2048, 2048), (4096, 4096), (8192, 8192), (4096, 1792)
TOKENS = 8192
ADVICE = "fp8_training: torchao is missing. Install it: pip install torchao"


# --8<-- [start:convert]
def in_fp8(model: nn.Module, recipe: str, smallest: int = 16) -> nn.Module:
    """The matmuls of linear layers in fp8; a layer named lm_head, and those narrower than `smallest`, stay as they are.

    fp8 tensor cores want sizes in multiples of 16. Weights, gradients and the optimizer keep their dtype.
    """
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training

    if recipe not in RECIPES:
        raise ValueError(f"recipe: expected one of {', '.join(RECIPES)}, got {recipe!r}")

    def gains(layer: nn.Linear, name: str) -> bool:
        sizes = layer.in_features, layer.out_features
        return not name.endswith("lm_head") and min(sizes) >= smallest and not any(size % 16 for size in sizes)

    config = Float8LinearConfig.from_recipe_name(recipe)
    config = replace(config, emulate=not has_fp8(next(model.parameters()).device))
    return convert_to_float8_training(model, config=config, module_filter_fn=gains)


def has_fp8(device: torch.device) -> bool:
    """From Ada and Hopper on. Elsewhere torchao can emulate fp8's rounding, which is slow."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 9)


# --8<-- [end:convert]


def converted(model: nn.Module) -> list[str]:
    return [name for name, module in model.named_modules() if type(module).__name__ == "Float8Linear"]


def changed(model: nn.Module, name: str) -> nn.Module:
    """A column's name as the conversion: "bf16" or a recipe."""
    return model if name == "bf16" else in_fp8(model, name)


def milliseconds(call: Callable[[], object]) -> float:
    """Wall clock of one call, back to back, after three that compile and warm up."""
    for _ in range(3):
        call()
    return seconds_per_call(call, torch.device("cuda"), at_least=0.1) * 1e3


# --8<-- [start:sizes]
def forward_and_backward(columns: int, rows: int, name: str) -> Callable[[], object]:
    """One linear layer of 8,192 tokens, compiled."""
    x = torch.randn(TOKENS, columns, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    layer = nn.Sequential(nn.Linear(columns, rows, bias=False, device="cuda", dtype=torch.bfloat16))
    dy = torch.randn(TOKENS, rows, device="cuda", dtype=torch.bfloat16)
    fast = layer if name == "bf16" else torch.compile(changed(layer, name), dynamic=False)  # a matmul has no casts
    return lambda: torch.autograd.grad(fast(x), (x, *layer.parameters()), dy)


# --8<-- [end:sizes]


def by_size(names: tuple[str, ...] = ("bf16", "tensorwise", "rowwise")) -> None:
    """Four calls are one CUDA graph: GPU time, whatever the host takes."""
    print(f"{'columns, rows':16}" + "".join(f"{name:>14}" for name in names))
    for columns, rows in SIZES:
        torch.compiler.reset()  # each size is a graph of its own: no limit on how many
        steps = [forward_and_backward(columns, rows, name) for name in names]
        times = [milliseconds(captured(step, calls=4)) / 4 for step in steps]
        print(f"{f'{columns}, {rows}':16}" + "".join(f"{each:11.3f} ms" for each in times), flush=True)


# --8<-- [start:block]
def block_step(name: str, compiled: bool) -> Callable[[], None]:
    """Forward and backward of one layer of an 8B Llama, 4 x 2,048 tokens."""
    sizes = LLAMA_8B | {"num_hidden_layers": 1, "vocab_size": 256}
    model = make_model(sizes, torch.device("cuda"), torch.bfloat16)
    layer = changed(model, name).model.layers[0]
    if compiled:
        layer.compile(dynamic=False)
    x = torch.randn(4, TOKENS // 4, LLAMA_8B["hidden_size"], device="cuda", dtype=torch.bfloat16, requires_grad=True)
    places = torch.arange(x.shape[1], device="cuda")[None]
    cos_sin, dy = model.model.rotary_emb(x, position_ids=places), torch.randn_like(x)

    def step() -> None:
        torch.autograd.grad(layer(x, position_embeddings=cos_sin), (x, *layer.parameters()), dy)

    return step


# --8<-- [end:block]


def block() -> None:
    print(f"{'':28}{'compiled':>12}{'eager':>12}")
    for name in ("bf16", *RECIPES):
        torch.compiler.reset()
        times = [milliseconds(block_step(name, compiled)) for compiled in (True, False)]
        print(f"{name:28}" + "".join(f"{each:9.2f} ms" for each in times), flush=True)


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
