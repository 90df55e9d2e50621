"""What there is to know of a compiled kernel: each fact with its title, why it matters, and the way it is shown.

And the binary that was timed, beside the one that was compiled for the same point when the site was built.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from docs.publish import units
from docs.publish.compiled.build import Compiled
from docs.publish.compiled.compilation import TIMED
from docs.publish.compiled.subjects import Point
from docs.publish.records.measured import Coordinates, Measured
from docs.publish.records.schema import Binary
from docs.publish.records.store import Store


def _widths(counts: Mapping[str, int]) -> str:
    """ "12 of 128 bits, 1 of 32"."""
    return ", ".join(f"{n} of {bits} bits" for bits, n in sorted(counts.items(), key=lambda c: -int(c[0]))) or "none"


WHY = {
    "registers": "The threads of a multiprocessor share its registers, so the more each takes, the fewer run there.",
    "spilled": "Numbers that did not fit into registers are stored to memory and read again, in every thread.",
    "shared": "Programs on one multiprocessor share it; reductions and matrix products pass numbers through it.",
    "warps": "The threads of a program, in groups of 32: more of them hide latency, fewer wait less at a barrier.",
    "loads": "A thread should ask for 128 bits at once: narrower loads are more instructions for the same bytes.",
    "stores": "As for loads: narrower than 128 bits, the same bytes take up to eight times the instructions.",
    "tensor_core": "Without them a matrix product runs at a small fraction of the GPU's rate; other kernels need none.",
    "shuffles": "They exchange numbers between the threads of a warp, which a reduction within a warp needs.",
    "barriers": "All warps of a program wait for each other there, which a reduction across the program needs.",
    "fp64": "Slower than fp32 on every GPU, and almost always a mistake: a Python float that was not cast.",
    "instructions": "Counted in the code, not as executed: an instruction in a loop counts once.",
    "size": "Long unrolled code may not fit into the instruction cache.",
    "seconds": "How long the first call at a new shape waits for the compiler, on the machine that built this site.",
}
TITLES = {
    "spilled": "bytes spilled", "shared": "bytes of shared memory", "tensor_core": "tensor-core instructions",
    "fp64": "fp64 instructions", "size": "bytes of code", "seconds": "seconds to compile",
}  # fmt: skip
FACTS = tuple({"key": key, "title": TITLES.get(key, key), "why": why} for key, why in WHY.items())
BAD = ("spilled", "fp64")  # more than none of it stands out


def values(kernel: Compiled) -> dict[str, str]:
    """Of each of FACTS, by key."""
    widths = {key: _widths(kernel.facts[key]) for key in ("loads", "stores")}
    shown = {**kernel.facts, **widths, "seconds": units.digits(kernel.seconds)}
    return {key: str(shown[key]) for key in WHY}


def options(kernel: Compiled) -> str:
    """ "num_warps 8, BLOCK 2048, UNIT 8"."""
    chosen = {name: value for name, value in kernel.options.items() if value is not None}
    return ", ".join(f"{name} {value or repr(value)}" for name, value in {**chosen, **kernel.constants}.items())


@dataclass(frozen=True)
class Timed:
    """The binary of a kernel in the record of the newest measurement at a point, and whose it is."""

    row: Measured
    binary: Binary

    def differs(self, kernel: Compiled) -> bool:
        """Whether it has other resources than what was compiled for the site."""
        return (self.binary.registers, self.binary.shared_bytes) != (kernel.facts["registers"], kernel.facts["shared"])

    def sentence(self, kernel: Compiled) -> str:
        """What became of the kernel that was timed."""
        machine, version = self.row.record.machine["name"], self.row.record.software["triton"]
        if self.binary.hash == kernel.hash:
            return f"This is the binary that was timed on {machine}."
        registers = f"{self.binary.registers} registers" if self.differs(kernel) else "as many registers"
        spills = f"{4 * self.binary.spills} bytes of spills" if self.binary.spills else "no spills"
        return f"The binary that was timed on {machine} (Triton {version}) had {registers} and {spills}."


def timed(store: Store, name: str, point: Point, function: str) -> Timed | None:
    """None where the point was not measured, or its kernel has another name now."""
    direction, size, dtype = point
    case = f"kernels/{name.replace('_', '-')}"
    rows = store.select(Coordinates(case, "ours", direction, size, dtype, machine=store.main))
    found = [(row, binary) for row in rows for binary in row.row.binaries if binary.name == function]
    return Timed(*found[0]) if found else None


def notes(store: Store, name: str, point: Point, kernel: Compiled) -> list[str]:
    """What stands under a kernel's facts."""
    found = []
    if kernel.target == TIMED and (measured := timed(store, name, point, kernel.function)):
        found.append(measured.sentence(kernel))
    if kernel.fp64:
        arithmetic = f"{kernel.fp64['fp64']} fp64 instructions" if kernel.fp64["fp64"] else "no fp64 arithmetic"
        found.append(
            f"With its floats passed as fp64, as Inductor does on some versions of torch, it has {arithmetic} and "
            f"{kernel.fp64['registers']} registers."
        )
    return found
