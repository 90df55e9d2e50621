"""What the tests take, by area: the newest run in docs/measurements/suite, as a table for a page."""

from html import escape
from pathlib import Path

from docs.publish import markup, units
from docs.publish.place import Place
from docs.publish.records.schema import Suite, read

FOLDER = "docs/measurements/suite"
COMMAND = "nox -s budget -- --publish"  # after nox -s tests lint docs


def table(root: Path, place: Place) -> str:
    """The areas as HTML, the longest first, then the slowest files; or a line that says how to make a record.

    Raises:
        PublishError: the newest file is no such record; the message names it.
    """
    found = sorted((root / FOLDER).glob("*.json"))
    if not found:
        return f"<p>No run has been recorded yet: {markup.code(COMMAND)} records one.</p>"
    suite = read(found[-1], Suite, root)
    rows = [(area.name, str(area.tests or ""), area.seconds) for area in suite.areas]
    rows += [(file.name, "", file.seconds) for file in suite.files]
    commands = ", ".join(f"{each.name} {units.text(each.seconds, 's')}" for each in suite.commands)
    body = markup.table(
        ("area", "tests", "processor seconds" if suite.reference else "time"),
        (("", [markup.code(name), number, units.text(seconds, "s")]) for name, number, seconds in rows),
    )
    versions = ", ".join(f"{name} {suite.software[name]}" for name in ("python", "torch", "triton"))
    file = found[-1].relative_to(root).as_posix()
    panel = markup.panel(
        what=f"{'Processor seconds' if suite.reference else 'Time'} of each area, and of the files that take most, in "
        f"{suite.processes} processes. Wall clock: {commands or units.text(suite.seconds, 's')}",
        body=body,
        source=f"{escape(str(suite.machine['name']))}, {escape(versions)}, {suite.date[:10]}, "
        f"{markup.link('the record', place.source(file, None))}",
    )
    return markup.panels([panel], "table")
