"""How far eager and compiled results are from float64, and what assert_close allows."""

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._inductor import config


def compiled(function: Callable, *inputs: object, backend: str = "inductor", **options: object) -> Tensor:
    """What the function returns when it is compiled anew, under these options of Inductor."""
    torch.compiler.reset()
    with config.patch(fx_graph_cache=False, **options), torch._functorch.config.patch(enable_autograd_cache=False):
        return torch.compile(function, backend=backend)(*inputs)


# --8<-- [start:precision]
def gate(x: Tensor) -> Tensor:
    """Six steps, and eager rounds each of them to the dtype of x."""
    return (x * 1.1 - x * x) * F.relu(x) * x


def precision(dtype: torch.dtype) -> str:
    """Errors against float64: of eager, compiled, and compiled so that it rounds where eager does."""
    x = torch.linspace(-2, 2, 4096).to(dtype)
    exact, eager, fused = gate(x.double()), gate(x), compiled(gate, x)
    rounding = compiled(gate, x, emulate_precision_casts=True)
    errors = [f"{(result - exact).abs().max():>10.0e}" for result in (eager, fused, rounding)]
    close = "close" if torch.allclose(fused, eager) else "not close"
    same = "eager's bits" if torch.equal(rounding, eager) else "other bits"
    return f"{str(dtype)[6:]:<10}{''.join(errors)}  {close:<11}{same}"


# --8<-- [end:precision]
def tolerances() -> Iterator[str]:
    """What `torch.testing.assert_close` allows, beside the step of the dtype."""
    yield f"{'dtype':<10}{'eps':>10}{'rtol':>10}{'atol':>10}"
    for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16):
        rtol, atol = torch.testing._comparison.default_tolerances(dtype)
        yield f"{str(dtype)[6:]:<10}{torch.finfo(dtype).eps:>10.1e}{rtol:>10.1e}{atol:>10.1e}"
