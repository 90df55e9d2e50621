"""The same rows measured again: which runs may be compared with each other."""

from collections.abc import Callable, Iterable

from docs.publish.records.schema import Record, Row


def started(record: Record) -> str | None:
    """What tells separately started machines apart; None where the record is too old to say."""
    return record.machine.get("boot")


def same_software(record: Record, other: Record) -> bool:
    """Whether two runs had the same versions of what both had. A peer that one lacks has no rows there."""
    if record.software == other.software:  # as a rule
        return True
    both = record.software.keys() & other.software.keys()
    return all(record.software[name] == other.software[name] for name in both)


def of(rows: Iterable[Row]) -> Callable[[Row], tuple[Row, ...]]:
    """What gives for each row it and those of the same code and software on separately started machines.

    Of each machine the newest counts, and none that was busy.
    """
    known: dict[tuple, list[Row]] = {}
    for row in rows:
        if started(row.record) and not row.busy:
            known.setdefault(_what(row), []).append(row)

    def again(row: Row) -> tuple[Row, ...]:
        alike = [other for other in known.get(_what(row), ()) if same_software(row.record, other.record)]
        newest = {started(other.record): other for other in alike}
        return tuple(other for other in alike if newest[started(other.record)] is other)

    return again


def _what(row: Row) -> tuple[str, ...]:
    """What a row measured, on which kind of machine."""
    slug = row.record.machine["slug"]
    return slug, row.case, row.variant, row.direction, row.size, row.dtype, row.mode, row.sources.code
