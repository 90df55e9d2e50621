"""Numbers from records and datasheets, as quantities with their evidence."""

from docs.publish import evidence, units
from docs.publish.errors import PublishError, unknown
from docs.publish.evidence import Quantity
from docs.publish.place import Place, machine_page
from docs.publish.records import datasheets
from docs.publish.records.measured import Coordinates
from docs.publish.records.schema import Ceiling, Record, describe
from docs.publish.records.store import ANYWHERE, Store


def measured(store: Store, place: Place, at: Coordinates, metric: str, over: str | None = None) -> Quantity:
    """A metric of one current row.

    Raises:
        PublishError: there is no such row or more than one, or the row has no such metric.
    """
    row = store.find(at)
    quantity = evidence.of_row(row, metric, over, place)
    if quantity is None:
        raise PublishError(f"metric {metric!r}: expected one that was measured, got none for {describe(row.row)}")
    return quantity


def ceiling(store: Store, place: Place, name: str, mode: str | None = None, at: Coordinates = ANYWHERE) -> Quantity:
    """A measured ceiling: a traffic mix ("copy"), or a dtype and a regime ("bfloat16", "burst").

    Args:
        at: a machine; and a case, or a shape of it, to take the ceiling from the run that measured that instead of
            from the newest.

    Raises:
        PublishError: it was not measured.
    """
    record = store.newest_record(at)
    found, unit, label = _ceiling(record, name, mode)
    entry = {
        "label": label,
        "value": units.text(found["rate"], unit),
        "spread": f"the best of several ways, reached by {found['by']} in {found['time'].samples} samples",
        **evidence.of_record(record, place),
        "source_url": place.source("snippets/validation/roofline.py", record.commit),
    }
    return Quantity(found["rate"], unit, entry, place.to(machine_page(record.machine["slug"], "ceilings")))


def _ceiling(record: Record, name: str, mode: str | None) -> tuple[Ceiling, str, str]:
    """The ceiling, its unit and what to call it."""
    bandwidth, matrix = record.ceilings["bandwidth"], record.ceilings["matrix"]
    if name in bandwidth:
        if mode is not None:
            raise PublishError(f"ceiling {name!r}: expected no mode, since it is a traffic mix; got {mode!r}")
        return bandwidth[name], "B/s", f"Measured ceiling of the traffic mix {name}"
    if name not in matrix:
        raise unknown("ceiling", name, [*bandwidth, *matrix])
    if mode not in matrix[name]:
        raise unknown(f"ceiling {name!r}: mode", mode, matrix[name])
    return matrix[name][mode], "FLOP/s", f"Measured ceiling of {name} matrix products, {mode}"


def machine(store: Store, place: Place, fact: str, at: Coordinates = ANYWHERE) -> Quantity:
    """What a machine has: "memory" in bytes, which vendors count in other units, "multiprocessors"; a timer's "floor".

    Raises:
        PublishError: the machine or the fact is not known, or its newest run did not measure it.
    """
    record = store.newest_record(at)
    facts = {
        "memory": (record.machine["memory_bytes"], "B", "Memory of {}, as its driver reports it"),
        "multiprocessors": (record.machine["units"], "", "Multiprocessors of {}, as its driver reports it"),
        "floor": (record.floor.p50 if record.floor else None, "s", "GPU time of an empty kernel on {}"),
    }
    if fact not in facts:
        raise unknown("machine: fact", fact, facts)
    value, unit, label = facts[fact]
    if value is None:
        raise PublishError(f"machine: {fact}: expected a newest run that measured it, got {record.id}")
    entry = {
        "label": label.format(record.machine["name"]),
        "value": units.text(value, unit),
        **evidence.of_record(record, place),
    }
    return Quantity(value, unit, entry, place.to(machine_page(record.machine["slug"])))


def datasheet(device: str, figure: str) -> Quantity:
    """A figure of the vendor's datasheet.

    Raises:
        PublishError: the device or the figure is not known.
    """
    value = datasheets.figure(device, figure)
    sheet = datasheets.load()[device]
    unit = datasheets.UNITS[figure]
    entry = {
        "label": f"{sheet['label']}, {figure}, as its vendor states it",
        "value": datasheets.show(value, unit),
        "note": sheet.get("note", "") if unit == "FLOP/s" else "",
        "source_url": datasheets.source(device, figure),
    }
    return Quantity(value, unit, entry, datasheets.source(device, figure))
