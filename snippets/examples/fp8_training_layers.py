"""The time of one linear layer by size, and of one block of an 8B Llama."""

from collections.abc import Callable

import torch
from torch import nn

from snippets.examples.fp8_training_convert import RECIPES, changed
from snippets.examples.hf_llama import LLAMA_8B
from snippets.examples.llama_model import make_model
from snippets.validation.timing import captured, seconds_per_call

SIZES = (1024, 1024), (2048, 2048), (4096, 4096), (8192, 8192), (4096, 1792)
TOKENS = 8192


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
