"""From records to what stands below a machine's roofs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from docs.publish import palette
from docs.publish.errors import unknown
from docs.publish.evidence import Quantity
from docs.publish.macros import numbers
from docs.publish.macros.calc import calc
from docs.publish.macros.charts.marks import unfit
from docs.publish.macros.gains import ALONE, typical
from docs.publish.place import Place, kernel_files
from docs.publish.records.measured import Coordinates, Measured
from docs.publish.records.store import Store


@dataclass(frozen=True)
class Asked:
    """The arguments of {{ roofline(...) }}.

    Attributes:
        case, variant: whose line is traced below the roofs; the roofs are those of the same run.
        along: the dimension of its shape that makes the intensity.
        named: the places on the line that have a name, beside its ends.
        points: what else stands below the roofs, each a name, a case, its variants, a shape and, if needed, a mode.
        kernels: what each kernel is drawn with, at the shape that its page calls typical, forward.
        title: with placeholders, see `_title` of the package.
        note: a sentence below, of the page's machine.
    """

    case: str
    variant: str
    along: str
    named: Sequence[int] = ()
    points: Sequence[Sequence[Any]] = ()
    kernels: Sequence[str] = ("eager", "ours")
    title: str = ""
    note: str = ""

    @classmethod
    def of(cls, spec: Mapping[str, Any]) -> "Asked":
        """Raises: PublishError: a name that is not known."""
        names = [field.name for field in fields(cls)]
        for key in spec:
            if key not in names:
                raise unknown("roofline", key, names)
        return cls(**spec)


@dataclass(frozen=True)
class Stem:
    """The variants of one place, fastest first."""

    name: str
    rows: list[Measured]

    @property
    def intensity(self) -> float:
        """FLOP per byte."""
        return self.rows[0].row.flops / self.rows[0].row.moved

    @property
    def rates(self) -> list[float]:
        return [rate(row) for row in self.rows]


@dataclass(frozen=True)
class Roofs:
    """Of one machine: bytes and FLOPs a second, and the FLOPs per byte at which the two are equal."""

    memory: Quantity
    matrix: Quantity
    ridge: Quantity
    dtype: str

    def at(self, intensity: float) -> float:
        """FLOPs a second that are attainable."""
        return min(intensity * self.memory.value, self.matrix.value)


@dataclass(frozen=True)
class Plot:
    """What is drawn for one machine."""

    roofs: Roofs
    line: list[Stem]
    stems: list[Stem]
    kernels: list[Stem]

    @property
    def every(self) -> list[Stem]:
        return [*self.line, *(stem for stem in self.stems if stem not in self.line)]

    @property
    def last(self) -> Measured:
        return self.line[-1].rows[0]

    @property
    def undrawn(self) -> str:
        """Why there is nothing to see in a drawing of this machine's numbers; empty where there is."""
        rows = [stem.rows[0] for stem in self.line]
        if busy := [row.busy for row in rows if row.busy]:
            return f"the machine was busy ({busy[0]})"
        return unfit([(row.time.p80 - row.time.p20) / row.time.p50 for row in rows], len(rows))


def rate(row: Measured) -> float:
    """FLOPs a second."""
    return row.row.flops / row.time.p50


def plot(asked: Asked, store: Store, place: Place, root: Path, machine: str) -> Plot | None:
    """What there is to draw of a machine; None where the line was not measured.

    Raises:
        PublishError: the published machine lacks what a page names.
    """
    traced = [row for row in store.select(Coordinates(asked.case, asked.variant, machine=machine)) if row.row.flops]
    rows = sorted((row for row in traced if asked.along in row.row.shape), key=lambda row: row.row.shape[asked.along])
    if not rows:
        return None
    line = [Stem(_of_line(asked, row, first=row is rows[0]), [row]) for row in rows]
    sizes = {rows[0].row.shape[asked.along], *asked.named, rows[-1].row.shape[asked.along]}
    named = [stem for stem in line if stem.rows[0].row.shape[asked.along] in sizes]
    where = Coordinates(asked.case, machine=machine)
    memory = numbers.ceiling(store, place, "copy", at=where)
    matrix = numbers.ceiling(store, place, rows[0].dtype, rows[0].row.regime, where)
    ridge = calc(place, "matrix / memory", "FLOP/byte", {"matrix": matrix, "memory": memory})
    strict = machine == store.main
    stems = [stem for point in asked.points if (stem := _stem(store, machine, strict, *point))]
    kernels = _kernels(asked, store, root, machine)
    roofs = Roofs(memory, matrix, ridge, rows[0].dtype)
    return Plot(roofs, line, [*named, *stems, *kernels], kernels)


def _of_line(asked: Asked, row: Measured, first: bool) -> str:
    """A place on the line; the first one says what the line is."""
    size = row.row.shape[asked.along]
    place = f"{size} {asked.along.removesuffix('s') if size == 1 else asked.along}"
    return f"{palette.label(row.variant, case=row.case)}, {place}" if first else place


def _stem(
    store: Store,
    machine: str,
    strict: bool,
    name: str,
    case: str,
    variants: Sequence[str],
    shape: str,
    mode: str = ALONE,
) -> Stem | None:
    """A place's variants on a machine; None where it was not measured there.

    Raises:
        PublishError: one of them was not measured, and `strict` says that all have to be.
    """
    at = Coordinates(case, direction="forward", shape=shape, mode=mode, machine=machine)
    found = {row.variant: row for row in store.select(at) if row.row.flops and row.row.moved and not row.busy}
    for variant in variants if strict else ():
        if variant not in found:
            raise unknown(f"roofline: {name}: variant with bytes and FLOPs at {shape}, {mode}", variant, found)
    rows = [found[variant] for variant in variants if variant in found]
    return Stem(name, sorted(rows, key=rate, reverse=True)) if rows else None


def _kernels(asked: Asked, store: Store, root: Path, machine: str) -> list[Stem]:
    """Each kernel that was measured, at the shape that its page calls typical."""
    stems = []
    for name in kernel_files(root) if asked.kernels else ():
        case = f"kernels/{name.replace('_', '-')}"
        if store.select(Coordinates(case, "ours", machine=machine, mode=ALONE)):
            title, shape = typical(root, case)
            stems.append(_stem(store, machine, False, title, case, asked.kernels, shape))
    return [stem for stem in stems if stem]
