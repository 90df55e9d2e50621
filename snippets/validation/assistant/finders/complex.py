"""Complex numbers, for which Inductor generates no code, and spectra of real signals."""

import re
from collections.abc import Iterator

from ..findings import Finding, size
from ..graphs import Captured
from ..trace import Trace


def complex_numbers(trace: Trace, captured: Captured) -> Iterator[Finding]:
    """Lines that compute complex numbers: worth knowing for who compiles. A full spectrum of a real signal: a fault."""
    for call in trace.eager:
        ops = [op for op in call.forward if op.runs and op.dtype is not None and op.dtype.is_complex]
        name = re.fullmatch(r"fft_(fft[2n]?)", call.name)
        if name and call.inputs and not call.inputs[0].dtype.is_complex and call.out is not None:
            yield Finding(
                "complex",
                "A full spectrum of a real signal",
                (call.line,),
                f"half of the {size(call.out.bytes)} are the other half's conjugates",
                f"torch.fft.r{name[1]} computes one half, and torch.fft.ir{name[1]} takes it back; filters then have "
                "half of their columns, and must be symmetric before",
                "compiler/fusion.md#a-kernel-ends-where-a-value-is-not-there-yet",
                saves=call.out.bytes // 2,
                kernels=0,
            )
        elif ops and not call.name.startswith("view_as"):
            yield Finding(
                "complex",
                "Complex numbers",
                (call.line,),
                f"{call.name} computes complex numbers, for which Inductor generates no code: torch.compile fuses "
                "nothing here",
                "compute with real and imaginary parts, or leave the part eager",
                "compiler/fusion.md#a-kernel-ends-where-a-value-is-not-there-yet",
                weight="note",
            )
