"""What a page asks of a chart: the arguments of {{ chart(...) }}, checked."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from docs.publish.errors import PublishError, unknown
from docs.publish.records.measured import METRICS, Coordinates, Metric

KINDS = ("bars", "lines")
COORDINATES = ("case", "direction", "shape", "dtype", "mode")
SETTLED = ("direction", "shape", "dtype", "mode")  # in this order: a shape may have one mode only


@dataclass(frozen=True)
class Question:
    """One metric of some variants at one place of a case, or along one of its dimensions.

    Attributes:
        at: the case, and as far as it is needed direction, shape, dtype and mode.
        variants: which to draw; all that were measured if none is named.
        x: the dimension of the shape along which lines run.
        title, note, work: see charts.render.
        better: whether the values are a contest.
        ranked: whether bars stand best first; else in the order of `variants`, which is that of the page's story.
    """

    kind: str
    metric: str
    at: Coordinates
    variants: tuple[str, ...] = ()
    x: str | None = None
    title: str = ""
    note: str = ""
    work: str = ""
    better: bool = True
    ranked: bool = True

    @classmethod
    def of(cls, spec: Mapping[str, Any]) -> "Question":
        """Raises: PublishError: a name that is not known, or none where one is needed."""
        names = {field.name for field in fields(cls)} - {"at"}
        for key in spec:
            if key not in names | set(COORDINATES):
                raise unknown("chart", key, sorted(names | set(COORDINATES)))
        if "case" not in spec:
            raise PublishError("chart: expected case=..., got none")
        for key, known in (("kind", KINDS), ("metric", METRICS)):
            if spec.get(key) not in known:
                raise unknown(f"chart: {key}", spec.get(key), known)
        at = Coordinates(**{name: spec[name] for name in COORDINATES if name in spec})
        given = {name: value for name, value in spec.items() if name in names}
        return cls(**given | {"at": at, "variants": tuple(spec.get("variants") or ())})

    def __str__(self) -> str:
        asked = {"metric": self.metric, **self.at.fixed(), "variants": self.variants, "x": self.x}
        return ", ".join(f"{name}={value!r}" for name, value in asked.items() if value)

    @property
    def measure(self) -> Metric:
        """What is drawn."""
        return METRICS[self.metric]

    @property
    def settled(self) -> tuple[str, ...]:
        """The coordinates that have one value in the whole chart; along a line the shape varies."""
        return tuple(name for name in SETTLED if name != "shape" or self.kind != "lines")
