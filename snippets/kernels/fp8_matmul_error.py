"""What fp8 loses of a matmul, by the number of its terms, by how they are scaled and by how they are added up.

Run `python -m snippets.kernels.fp8_matmul_error`. On a GPU without fp8, and on a CPU, PyTorch emulates fp8, with sums
in fp32.
"""

import torch
from torch import Tensor

from kernels.fp8_matmul import fp8_matmul, quantised

TERMS = 512, 4096, 32768
FP8 = torch.cuda.is_available() and torch.version.hip is None and torch.cuda.get_device_capability() >= (8, 9)


def emulated(x: Tensor, scales: str, squares: bool = False) -> Tensor:
    """What fp8 leaves of a matrix, in fp32. Its sizes are multiples of 128."""
    down, across = (1, x.shape[1]) if scales == "rows" else (128, 128) if squares else (1, 128)
    tiles = x.float().unflatten(1, (-1, across)).unflatten(0, (-1, down))
    scale = tiles.abs().amax((1, 3), keepdim=True).clamp(min=1e-30) / torch.finfo(torch.float8_e4m3fn).max
    return ((tiles / scale).to(torch.float8_e4m3fn).float() * scale).view(x.shape)


# --8<-- [start:error]
def products(a: Tensor, b: Tensor) -> dict[str, Tensor]:
    """a @ b.T of matrices in bf16, by what multiplies them."""
    results = {"bf16": a @ b.t()}
    if not FP8:
        return results | {scales: emulated(a, scales) @ emulated(b, scales, True).t() for scales in ("rows", "blocks")}
    rows, blocks = (*quantised(a), *quantised(b)), (*quantised(a, "blocks"), *quantised(b, "blocks", squares=True))
    for how, fast in (("rows, fast", True), ("rows", False)):
        results[how] = fp8_matmul(*rows, dtype=torch.float32, fast_accumulation=fast)
        qa, scale_a, qb, scale_b = rows
        results[f"scaled_mm{how[4:]}"] = torch._scaled_mm(
            qa, qb.t(), scale_a[:, None], scale_b[None], out_dtype=torch.bfloat16, use_fast_accum=fast
        )
    return results | {"blocks": fp8_matmul(*blocks, dtype=torch.float32)}


def error(result: Tensor, exact: Tensor) -> float:
    """The root mean square of the differences, as a part of that of the results."""
    return ((result.double() - exact).norm() / exact.norm()).item()


# --8<-- [end:error]


def operands(terms: int, device: str, large: float) -> tuple[Tensor, Tensor]:
    """Normal numbers; one in 1,000 of the first matrix is `large` times as large."""
    generator = torch.Generator().manual_seed(0)
    a, b, share = (torch.randn(256, terms, generator=generator) for _ in range(3))
    a = torch.where(share > 3.09, large * a, a)
    return a.to(device, torch.bfloat16), b.to(device, torch.bfloat16)


def main() -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    for section, large in (("error", 1.0), ("outliers", 3000.0)):
        print(f"==== {section}")
        for terms in TERMS:
            a, b = operands(terms, device, large)
            exact = a.double() @ b.double().t()
            results = {name: error(result, exact) for name, result in products(a, b).items()}
            if terms == TERMS[0]:
                print(f"{'terms':>6}" + "".join(f"{name:>16}" for name in results))
            print(f"{terms:>6}" + "".join(f"{100 * e:15.2f}%" for e in results.values()))
    print("==== sums")
    for terms in TERMS:
        a, b = operands(terms, device, 1.0)
        results = {}
        for name, result in products(a, b).items():
            if name in ("bf16", "scaled_mm", "scaled_mm, fast"):  # in bf16, whose rounding hides the sum's error
                continue
            scales = name.partition(",")[0]
            if FP8:
                qa, qb = quantised(a, scales), quantised(b, scales, squares=scales == "blocks")
                left, right = (spread(*q).double() for q in (qa, qb))
            else:
                left, right = emulated(a, scales).double(), emulated(b, scales, scales == "blocks").double()
            results[name] = error(result, left @ right.t())
        if terms == TERMS[0]:
            print(f"{'terms':>6}" + "".join(f"{name:>16}" for name in results))
        print(f"{terms:>6}" + "".join(f"{100 * e:15.4f}%" for e in results.values()))


def spread(q: Tensor, scale: Tensor) -> Tensor:
    """q * scale in float64: each scale for as many rows and columns as it has."""
    scale = scale.view(scale.shape[0], -1)
    down, across = -(-q.shape[0] // scale.shape[0]), -(-q.shape[1] // scale.shape[1])
    return q.double() * scale.double().repeat_interleave(down, 0).repeat_interleave(across, 1)


if __name__ == "__main__":
    main()
