"""Does cuBLAS choose its fastest kernel? Each candidate of cuBLASLt's heuristic, timed on the same matrices.

Run `python -m snippets.validation.tflops_cublas` on an NVIDIA GPU. torch has no function for this, so the script calls
the library that torch has loaded; the constants are those of cublasLt.h.
"""

import ctypes
import re
from pathlib import Path

import torch
from torch import Tensor

from snippets.validation.timing import Call, measure

BF16, FP32, IN_FP32 = 14, 0, 68  # the types of elements and scale, and of the sums
TRANSPOSE_A, WORKSPACE_BYTES = 3, 1  # attributes of a matmul, and of a preference
WORKSPACE = 32 * 2**20


# --8<-- [start:candidates]
class Candidate(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t: a kernel with its settings, and what cuBLASLt thinks of it."""

    _fields_ = [
        ("algorithm", ctypes.c_uint64 * 8),
        ("workspace", ctypes.c_size_t),
        ("status", ctypes.c_int),
        ("waves", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    ]


class Matmul:
    """out = a @ b, or a @ b.T, through cuBLASLt: contiguous square bf16 matrices, added in fp32."""

    def __init__(self, a: Tensor, b: Tensor, out: Tensor, transposed: bool):
        loaded = re.search(r"\S*/libcublasLt\.so\S*", Path("/proc/self/maps").read_text())
        if not loaded:
            raise RuntimeError("libcublasLt: expected it loaded by torch, found none; is this torch a CUDA build?")
        self.library, self.size = ctypes.CDLL(loaded[0]), len(a)
        self.a, self.b, self.out = a, b, out
        self.workspace = torch.empty(WORKSPACE, dtype=torch.uint8, device=a.device)
        self.handle, self.matmul, self.layout, self.preference = (ctypes.c_void_p() for _ in range(4))
        self("Create", ctypes.byref(self.handle))
        self("MatmulDescCreate", ctypes.byref(self.matmul), IN_FP32, FP32)
        if transposed:  # cuBLAS counts by columns: it computes out.T = b.T @ a.T, and sees b.T where b lies
            self._set("MatmulDesc", self.matmul, TRANSPOSE_A, ctypes.c_int(1))
        size = ctypes.c_uint64(self.size)
        self("MatrixLayoutCreate", ctypes.byref(self.layout), BF16, size, size, ctypes.c_int64(self.size))
        self("MatmulPreferenceCreate", ctypes.byref(self.preference))
        self._set("MatmulPreference", self.preference, WORKSPACE_BYTES, ctypes.c_size_t(WORKSPACE))

    def __call__(self, function: str, *arguments: object) -> None:
        """Call a function of cuBLASLt; raises a RuntimeError where it returns a status."""
        if status := getattr(self.library, f"cublasLt{function}")(*arguments):
            raise RuntimeError(f"cublasLt{function}: expected status 0, got {status}")

    def _set(self, kind: str, of: ctypes.c_void_p, attribute: int, value: ctypes._SimpleCData) -> None:
        self(f"{kind}SetAttribute", of, attribute, ctypes.byref(value), ctypes.c_size_t(ctypes.sizeof(value)))

    def candidates(self, most: int = 100) -> list[Candidate]:
        """The heuristic's choices, best guess first."""
        found, count = (Candidate * most)(), ctypes.c_int()
        layouts = [self.layout] * 4
        self("MatmulAlgoGetHeuristic", self.handle, self.matmul, *layouts, self.preference, most, found,
             ctypes.byref(count))  # fmt: skip
        return [candidate for candidate in found[: count.value] if candidate.status == 0]

    def run(self, candidate: Candidate) -> None:
        """Launch one on torch's stream."""
        one, zero = ctypes.c_float(1), ctypes.c_float(0)
        a, b, out = (ctypes.c_void_p(t.data_ptr()) for t in (self.a, self.b, self.out))
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        self("Matmul", self.handle, self.matmul, ctypes.byref(one), b, self.layout, a, self.layout, ctypes.byref(zero),
             out, self.layout, out, self.layout, ctypes.byref(candidate.algorithm),
             ctypes.c_void_p(self.workspace.data_ptr()), ctypes.c_size_t(WORKSPACE), stream)  # fmt: skip


# --8<-- [end:candidates]


def rates(size: int, transposed: bool) -> list[float]:
    """TFLOP/s of each candidate in bursts, after its result was compared with torch's; torch's own rate last."""
    device = torch.device("cuda")
    a, b = (torch.randn(size, size, device=device).bfloat16() for _ in range(2))
    right, out = a @ (b.T if transposed else b), torch.empty_like(a)
    matmul = Matmul(a, b, out, transposed)
    calls: list[Call] = []
    for candidate in matmul.candidates():
        out.fill_(float("nan"))
        matmul.run(candidate)
        if (out - right).float().norm() < 0.01 * right.float().norm():
            calls.append(lambda candidate=candidate: matmul.run(candidate))
    calls.append(lambda: torch.mm(a, b.T if transposed else b, out=out))
    timings = measure({str(n): call for n, call in enumerate(calls)}, device, "burst", rounds=9)
    return [2 * size**3 / timing.p50 / 1e12 for timing in timings.values()]


def main() -> None:
    """Print, for each size and layout, the default, the best candidate, and torch."""
    if not torch.cuda.is_available() or torch.version.hip:
        print("cuBLASLt: expected an NVIDIA GPU, found none")
        return
    for size in (4096, 8192):
        for transposed, product in ((False, "a @ b"), (True, "a @ b.T")):
            *candidates, torchs = rates(size, transposed)
            best = max(candidates)
            print(f"{size} {product:8} torch {torchs:.1f} TFLOP/s   first candidate {candidates[0]:.1f} TFLOP/s   "
                  f"best {best:.1f} TFLOP/s, candidate {candidates.index(best) + 1} of {len(candidates)}")  # fmt: skip


if __name__ == "__main__":
    main()
