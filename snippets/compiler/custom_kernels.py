"""A Triton kernel inside a compiled model, registered in four ways: what each costs, and what opcheck says of mistakes.

Run `python -m snippets.compiler.custom_kernels`; without a GPU it shows what opcheck says, with Triton's interpreter.
"""

# mypy: disable-error-code="index"

import os
import re
from collections.abc import Callable

import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # before triton is imported

import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor
from torch.library import Library, custom_op, opcheck, register_autograd, register_fake, triton_op, wrap_triton

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
EPS = 1e-6


# --8<-- [start:kernel]
@triton.jit
def _rms_kernel(x_ptr, w_ptr, y_ptr, columns, eps, BLOCK: tl.constexpr):
    """A row for each program: y = x / sqrt(mean(x²) + eps) * w."""
    at = tl.arange(0, BLOCK)
    start = tl.program_id(0).to(tl.int64) * columns
    x = tl.load(x_ptr + start + at, mask=at < columns, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(x * x, 0) / columns + eps)
    w = tl.load(w_ptr + at, mask=at < columns, other=0.0).to(tl.float32)
    tl.store(y_ptr + start + at, x * scale * w, mask=at < columns)


def launched(kernel: object, x: Tensor, w: Tensor, eps: float) -> Tensor:
    """x (rows, columns) and w (columns), both contiguous."""
    y = torch.empty_like(x)
    kernel[(x.shape[0],)](x, w, y, x.shape[1], eps, BLOCK=triton.next_power_of_2(x.shape[1]), num_warps=8)
    return y


# --8<-- [end:kernel]


# --8<-- [start:plain]
def rms_plain(x: Tensor, w: Tensor, eps: float) -> Tensor:
    """Registered nowhere: torch.compile follows the launch. It has no gradient."""
    return launched(_rms_kernel, x, w, eps)


# --8<-- [end:plain]


# --8<-- [start:triton-op]
@triton_op("ridgepoint::rms_triton", mutates_args=())
def rms_triton(x: Tensor, w: Tensor, eps: float) -> Tensor:
    """An operator whose inside the compiler may look at: wrap_triton shows it the launch."""
    return launched(wrap_triton(_rms_kernel), x, w, eps)


# --8<-- [end:triton-op]


# --8<-- [start:custom-op]
@custom_op("ridgepoint::rms_custom", mutates_args=())
def rms_custom(x: Tensor, w: Tensor, eps: float) -> Tensor:
    """An operator that the compiler calls and never looks into."""
    return launched(_rms_kernel, x, w, eps)


@rms_custom.register_fake
def _(x: Tensor, w: Tensor, eps: float) -> Tensor:
    return torch.empty_like(x)  # shape, dtype and layout of the result, for tracing


# --8<-- [end:custom-op]


# --8<-- [start:library]
library = Library("ridgepoint_lib", "FRAGMENT")  # keep it: what it registers is gone with it
library.define("rms(Tensor x, Tensor w, float eps) -> Tensor")
library.impl("rms", rms_plain, "CUDA")
library.impl("rms", rms_plain, "CPU")  # interpreted
register_fake("ridgepoint_lib::rms", lambda x, w, eps: torch.empty_like(x), lib=library)
rms_library = torch.ops.ridgepoint_lib.rms.default
# --8<-- [end:library]


# --8<-- [start:autograd]
def save(ctx, inputs: tuple, output: Tensor) -> None:
    x, w, ctx.eps = inputs
    ctx.save_for_backward(x, w)


def gradients(ctx, dy: Tensor) -> tuple[Tensor, Tensor, None]:
    """In PyTorch's operations, so that the compiler fuses them; a second kernel would be registered in the same way."""
    x, w = (t.float() for t in ctx.saved_tensors)
    scale = torch.rsqrt(x.square().mean(-1, keepdim=True) + ctx.eps)
    weighed = dy.float() * w
    dx = scale * (weighed - x * scale.square() * (weighed * x).mean(-1, keepdim=True))
    dw = (dy.float() * x * scale).sum(0)
    return dx.to(dy.dtype), dw.to(dy.dtype), None


rms_triton.register_autograd(gradients, setup_context=save)
rms_custom.register_autograd(gradients, setup_context=save)
register_autograd("ridgepoint_lib::rms", gradients, setup_context=save, lib=library)
# --8<-- [end:autograd]

WAYS: dict[str, Callable[[Tensor, Tensor, float], Tensor]] = {
    "plain": rms_plain,
    "triton-op": rms_triton,
    "custom-op": rms_custom,
    "library": rms_library,
}


# --8<-- [start:block]
def written_out(x: Tensor, w: Tensor, eps: float) -> Tensor:
    """What the compiler may fuse with everything around it."""
    return (x.float() * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + eps) * w.float()).to(x.dtype)


def block(x: Tensor, residual: Tensor, w: Tensor, norm: Callable[[Tensor, Tensor, float], Tensor]) -> Tensor:
    """Something pointwise before the norm, and something pointwise after it."""
    return F.silu(norm(x + residual, w, EPS))


# --8<-- [end:block]


# --8<-- [start:cast]
@triton.jit
def _rms_cast_kernel(x_ptr, w_ptr, y_ptr, columns, eps, BLOCK: tl.constexpr):
    """The same, whatever the dtype in which `eps` comes."""
    at = tl.arange(0, BLOCK)
    start = tl.program_id(0).to(tl.int64) * columns
    x = tl.load(x_ptr + start + at, mask=at < columns, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(x * x, 0) / columns + tl.cast(eps, tl.float32))
    w = tl.load(w_ptr + at, mask=at < columns, other=0.0).to(tl.float32)
    tl.store(y_ptr + start + at, x * scale * w, mask=at < columns)


# --8<-- [end:cast]


@triton_op("ridgepoint::rms_cast", mutates_args=())
def rms_cast(x: Tensor, w: Tensor, eps: float) -> Tensor:
    return launched(wrap_triton(_rms_cast_kernel), x, w, eps)


# ---- mistakes, and who finds them -----------------------------------------------------------------------------------


# --8<-- [start:mistakes]
@custom_op("ridgepoint::rms_no_fake", mutates_args=())
def rms_no_fake(x: Tensor, w: Tensor, eps: float) -> Tensor:
    return launched(_rms_kernel, x, w, eps)


@custom_op("ridgepoint::rms_false_fake", mutates_args=())
def rms_false_fake(x: Tensor, w: Tensor, eps: float) -> Tensor:
    return launched(_rms_kernel, x, w, eps)


@rms_false_fake.register_fake
def _(x: Tensor, w: Tensor, eps: float) -> Tensor:
    return x.new_empty(x.shape, dtype=torch.float64)  # not what the operator returns


@custom_op("ridgepoint::scale_quietly", mutates_args=())
def scale_quietly(x: Tensor, factor: float) -> Tensor:
    x.mul_(factor)  # mutates_args does not say so
    return x.clone()


@scale_quietly.register_fake
def _(x: Tensor, factor: float) -> Tensor:
    return torch.empty_like(x)


@custom_op("ridgepoint::same", mutates_args=())
def same(x: Tensor) -> Tensor:
    return x  # an operator may not return its input


@same.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


# --8<-- [end:mistakes]


def verdict(operator: object, *arguments: object) -> list[str]:
    """What opcheck says, test by test: "passes", or the first sentence of what is wrong."""
    said = opcheck(operator, arguments, raise_exception=False)  # type: ignore[arg-type]
    return [f"{name:34} {outcome(result)}" for name, result in said.items()]


def outcome(result: object) -> str:
    if not isinstance(result, BaseException):
        return "passes"
    cause: BaseException = result
    while cause.__cause__ is not None:
        cause = cause.__cause__
    line = next((line.strip() for line in str(cause).splitlines() if line.strip()), type(cause).__name__)
    return f"{type(cause).__name__}: {line}"


def inputs(rows: int, columns: int, grad: bool = False) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    x, w = torch.randn(rows, columns, device=DEVICE), torch.rand(columns, device=DEVICE) + 0.5
    return x.requires_grad_(grad), w.requires_grad_(grad)


# --8<-- [start:generated]
def signature(norm: Callable[[Tensor, Tensor, float], Tensor]) -> list[str]:
    """How Inductor types the arguments of our kernel in the code that it generates for the block."""
    from torch._inductor.utils import run_and_get_code

    x, w = inputs(64, 1024)
    torch._dynamo.reset()
    with torch._inductor.config.patch(fx_graph_cache=False):
        _, (code, *_) = run_and_get_code(torch.compile(block), x, x, w, norm)
    return re.findall(r"'signature': (\{[^}]*'eps'[^}]*\})", code)


# --8<-- [end:generated]


def main() -> None:
    """Print each section."""
    print("==== opcheck")
    x, w = inputs(4, 128, grad=True)
    operators = {"custom_op": rms_custom, "Library": rms_library}
    if DEVICE.type == "cuda":  # the interpreter's launches do not pass through what opcheck replaces
        operators = {"triton_op": rms_triton, **operators}
    for name, operator in operators.items():
        print(name)
        print("\n".join(f"  {line}" for line in verdict(operator, x, w, EPS)))
    print("==== mistakes")
    x, w = inputs(4, 128)
    for name, operator, arguments in (
        ("no fake", rms_no_fake, (x, w, EPS)),
        ("a fake with another dtype", rms_false_fake, (x, w, EPS)),
        ("an argument changed, and not declared", scale_quietly, (x, 2.0)),
        ("the input returned", same, (x,)),
    ):
        print(name)
        print("\n".join(f"  {line}" for line in verdict(operator, *arguments)))
    if DEVICE.type == "cuda":
        print("==== signature")
        for name, norm in (("plain", rms_plain), ("triton_op", rms_triton), ("triton_op, cast", rms_cast)):
            print(name)
            print("\n".join(f"  {line}" for line in signature(norm)))


if __name__ == "__main__":
    main()
