"""The binary that was timed, beside the one that was compiled for the same point when the site was built."""

from dataclasses import dataclass

from docs.publish.compiled.build import Compiled
from docs.publish.compiled.compilation import TIMED
from docs.publish.compiled.subjects import Point
from docs.publish.records.measured import Coordinates, Measured
from docs.publish.records.schema import Binary
from docs.publish.records.store import Store


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
