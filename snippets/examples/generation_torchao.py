"""A decoding step of an 8B Llama with weights by torchao: int8, int4, fp8 and bf16, and from which batch each loses.

It needs transformers (5.17) and torchao (0.17 with torch 2.11, 0.18 with 2.13). Run
`python -m snippets.examples.generation_torchao`: without a GPU it compares a small model's int8 weights with bf16.
"""

import copy
import sys
from collections.abc import Callable
from importlib.util import find_spec

import torch
import torch.nn.functional as F
from torch import Tensor

from snippets.examples.generation import LLAMA_8B, TINY, make_model
from snippets.examples.generation_step import Decoder
from snippets.examples.generation_torchao_weights import KINDS, bytes_of, matrices, quantized, with_weights
from snippets.validation.timing import captured, seconds_per_call

ROWS = 1, 16, 64, 2048
TUNED = {"coordinate_descent_tuning": True}  # as torchao's set_inductor_config sets it for the whole process
ADVICE = "generation_torchao: torchao is missing. Install it: pip install torchao"


# --8<-- [start:step]
def compiled(decoder: Decoder, **options: bool) -> Decoder:
    """One layer and the last matmul, with options of torch.compile: TUNED writes a matvec that reads int8 itself."""
    fast = copy.copy(decoder)
    for name in ("through", "last"):
        setattr(fast, name, torch.compile(getattr(decoder, name), dynamic=False, options=options or None))
    return fast


# --8<-- [end:step]


def batched(decoder: Decoder, batch: int) -> Decoder:
    """The same weights with caches for `batch` sequences, of random keys and values."""
    like = decoder.norm
    made = torch.Generator(like.device).manual_seed(0)
    shape = batch, decoder.shared, len(decoder.places), decoder.size

    def numbers() -> Tensor:
        return torch.randn(shape, generator=made, device=like.device, dtype=like.dtype)

    decoder = copy.copy(decoder)
    decoder.slots = torch.arange(batch, device=like.device)
    decoder.cache = [(numbers(), numbers()) for _ in decoder.layers]
    return decoder


def milliseconds(call: Callable[[], object], calls: int = 1) -> float:
    """Of a call, in a CUDA graph of some on a GPU; the graph holds addresses, so `call` must keep its tensors."""
    if not torch.cuda.is_available():
        return seconds_per_call(call, torch.device("cpu")) * 1e3
    return seconds_per_call(captured(call, calls), torch.device("cuda"), at_least=0.1) / calls * 1e3


@torch.no_grad()
def steps(decoders: dict[str, Decoder], batch: int, names: tuple[str, ...]) -> None:
    """Time, tokens a second and bytes of each; and how far its logits are from those of bf16."""
    device, length = decoders["bf16"].norm.device, len(decoders["bf16"].places)
    tokens = torch.arange(batch, device=device)
    positions = torch.full((batch,), length - 12, device=device)
    print(f"{'':14}{'step':>12}{'tokens a second':>18}{'weights':>12}{'logits off by':>16}")
    plain = batched(decoders["bf16"], batch)(tokens, positions).float()
    for name in names:
        torch.compiler.reset()
        kind, _, tuned = name.partition(", ")
        decoder = batched(decoders[kind], batch)
        if device.type == "cuda":
            decoder = compiled(decoder, **(TUNED if tuned else {}))
        logits = decoder(tokens, positions).float()
        off = (logits - plain).square().mean().sqrt() / plain.square().mean().sqrt()
        taken = milliseconds(lambda decoder=decoder: decoder(tokens, positions))
        size = sum(map(bytes_of, matrices(decoder))) / 1e9
        print(f"{name:14}{taken:9.2f} ms{batch / taken * 1e3:18.0f}{size:9.4g} GB{off * 100:14.2f} %", flush=True)


@torch.no_grad()
def layers(eager: bool) -> None:
    """The widest matmul of a layer by rows of its input, four sets of weights in turn: the cache does not hold them."""
    print(f"{'rows':12}" + "".join(f"{name:>14}" for name in ("bf16", *KINDS)))
    weights = {kind: [] for kind in ("bf16", *KINDS)}
    for _ in range(4):
        plain = torch.randn(28672, 4096, device="cuda", dtype=torch.bfloat16) / 64
        for kind, kept in weights.items():
            kept.append(plain if kind == "bf16" else quantized(plain, kind))
    for rows in (1, 64) if eager else ROWS:
        torch.compiler.reset()
        x = torch.randn(rows, 4096, device="cuda", dtype=torch.bfloat16)
        cells = [one_layer(x, weights[kind], eager) if fits(kind, rows) else None for kind in weights]
        shown = "".join(f"{'not possible' if cell is None else f'{cell:.3f} ms':>14}" for cell in cells)
        print(f"{f'{rows}':12}{shown}", flush=True)


def fits(kind: str, rows: int) -> bool:
    """PyTorch's matmul of int8 by int8 takes more than 16 rows."""
    return kind != "int8 both" or rows > 16


def one_layer(x: Tensor, weights: list[Tensor], eager: bool) -> float:
    if eager:  # launched by the host, as eager code is
        return seconds_per_call(lambda: [F.linear(x, weight) for weight in weights], x.device, at_least=0.1) / 4 * 1e3
    fast = product if type(weights[0]) is Tensor else torch.compile(product, dynamic=False)
    return milliseconds(lambda: [fast(x, weight) for weight in weights]) / 4


def product(x: Tensor, weight: Tensor) -> Tensor:
    return F.linear(x, weight)


def main() -> None:
    if find_spec("torchao") is None:
        sys.exit(ADVICE)
    torch.manual_seed(0)
    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda" if on_gpu else "cpu")
    if not on_gpu:
        print("==== small")
        steps(of_kinds(TINY, device, ("int8",), 64), 2, ("bf16", "int8"))
        return
    print("==== layer")
    layers(eager=False)
    print("==== layer, eager")
    layers(eager=True)
    torch.cuda.empty_cache()
    decoders = of_kinds(LLAMA_8B, device, ("int8", "int4", "fp8"), 512)
    for batch in (1, 64):
        print(f"==== batch {batch}")
        tuned = ("bf16, tuned", "int8, tuned") if batch == 1 else ()  # the matvec exists for one row only
        steps(decoders, batch, ("bf16", "int8", *tuned, "int4", "fp8"))


def of_kinds(sizes: dict[str, float], device: torch.device, kinds: tuple[str, ...], length: int) -> dict[str, Decoder]:
    plain = Decoder(make_model(sizes, device, torch.bfloat16), 1, length)
    return {kind: with_weights(plain, kind) for kind in ("bf16", *kinds)}


if __name__ == "__main__":
    main()
