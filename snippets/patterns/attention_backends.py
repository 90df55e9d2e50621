"""Choose SDPA's backend for a whole model, prove which kernel ran, and see where results of cuDNN are wrong.

Run `python -m snippets.patterns.attention_backends`. A CPU has one fused backend, and its results are right.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.profiler import profile

from snippets.patterns.attention_choose import BACKENDS, only
from snippets.patterns.transformer_block_refused import ORDERS, apart, shown

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
CUDA = DEVICE.type == "cuda"

# --8<-- [start:prefer]
ORDER = [SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


def prefer(model: nn.Module, order: list[SDPBackend] = ORDER) -> nn.Module:
    """Each call of the model takes the first of these backends that accepts its tensors. Call it before compiling."""
    model.forward = sdpa_kernel(order, set_priority=True)(model.forward)  # type: ignore[method-assign]
    return model


# --8<-- [end:prefer]


# --8<-- [start:ran]
def ran(call: Callable[[], object]) -> tuple[list[str], str]:
    """The operations by which SDPA ran in a call, and the GPU kernel that took longest."""
    call()  # compiles what has to be compiled
    with profile() as trace:
        call()
    events = trace.key_averages()
    kernels = {event.key: event.self_device_time_total for event in events if event.device_type.name == "CUDA"}
    operations = [event.key for event in events if event.key.startswith("aten::_scaled_dot_product")]
    return operations, max(kernels, key=kernels.__getitem__, default="")


# --8<-- [end:ran]


# --8<-- [start:nan]
def not_finite(tokens: int, backend: SDPBackend | None = None, as_mask: bool = True, size: int = 64) -> int:
    """How many numbers of q's gradient are NaN or infinite, where each score is about -120; no backend is any."""
    q, k, v = 0.1 * torch.randn(3, 1, 1, tokens, size, device=DEVICE)
    q[..., 0], k[..., 0] = 1, -120 * size**0.5
    q, k, v = (t.bfloat16().requires_grad_() for t in (q, k, v))
    before = torch.ones(tokens, tokens, dtype=torch.bool, device=DEVICE).tril()
    how: dict[str, object] = {"attn_mask": before} if as_mask else {"is_causal": True}
    output = F.scaled_dot_product_attention(q, k, v, **how) if backend is None else only(backend, q, k, v, **how)
    (gradient,) = torch.autograd.grad(output, q, torch.randn_like(output))
    return int((~gradient.isfinite()).sum())


# --8<-- [end:nan]


def inputs(size: int, tokens: int = 1024, width: int = 1024) -> list[Tensor]:
    """q, k and v as projections leave them: heads within a token."""
    drawn = torch.randn(3, 1, tokens, width // size, size, device=DEVICE).bfloat16().transpose(2, 3)
    return [t.requires_grad_() for t in drawn]


def show_ran() -> None:
    """By head size, what computes causal attention in training if nothing was chosen."""
    for size in (64, 128, 256):
        qkv = inputs(size, tokens=1024 if CUDA else 64)
        operations, kernel = ran(lambda: F.scaled_dot_product_attention(*qkv, is_causal=True).sum().backward())  # noqa: B023
        print(f"head size {size}: {', '.join(operations)} {kernel}".rstrip())


def show_not_finite() -> None:
    """By backend and by number of tokens: the numbers of q's gradient that are not finite."""
    for name, backend in {"default": None, **(BACKENDS if CUDA else {})}.items():
        for tokens in (640, 704):
            for as_mask in (True, False):
                how = "as attn_mask" if as_mask else "is_causal"
                try:
                    print(f"{name}, {tokens} tokens, {how}: {not_finite(tokens, backend, as_mask)} not finite")
                except RuntimeError as refused:
                    print(f"{name}, {tokens} tokens, {how}: {refused}")


def main() -> None:
    torch.manual_seed(0)
    print("==== ran")
    show_ran()
    print("==== not-finite")
    if CUDA:
        print(f"cuDNN {torch.backends.cudnn.version()}")
    show_not_finite()
    print("==== orders")
    for order in ORDERS:
        print((apart if CUDA else shown)(order, False))


if __name__ == "__main__":
    main()
