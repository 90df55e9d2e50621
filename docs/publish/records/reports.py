"""The committed reports of test runs (tests/report.py)."""

from pathlib import Path

from docs.publish.records.schema import TestReport, read


def load(folder: Path, root: Path) -> list[TestReport]:
    """The committed test reports, newest first.

    Raises:
        PublishError: a file is no test report; the message names it.
    """
    reports = [read(path, TestReport, root) for path in folder.glob("*.json")]
    return sorted(reports, key=lambda report: report.date, reverse=True)
