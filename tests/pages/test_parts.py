"""Older rows have a number for what ran among their sizes: they are read in words, and none is lost."""

import json
from collections import Counter
from pathlib import Path

import pytest

from docs.publish.errors import PublishError
from docs.publish.place import MEASUREMENTS
from docs.publish.records import parts
from docs.publish.records.measured import Coordinates
from docs.publish.records.store import Store
from tests.benchmarks.test_points import SIZES
from tests.pages import tiny

READ = "docs/pages", "snippets/**/*.py", "tests/benchmarks"  # through docs.publish

OLDER = {
    "kernels/add": {"mask": {"1": "causal", "2": "full"}, "called": {"1": "operator"}, "window": ["sums", "width"]}
}


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "_known", lambda: OLDER)


def row(root: Path, shape: dict[str, int], **changed: object) -> dict:
    """As before rows had a part."""
    made = tiny.row(root, shape=shape, **changed)
    del made["part"]
    return made


def current(root: Path) -> list[str]:
    return sorted({found.size for found in tiny.store(root).select()})


def test_no_published_row_is_lost_and_each_is_found_by_its_new_name(published: Store) -> None:
    records = {record.id: record for record in published.records}
    for path in sorted((MEASUREMENTS / "runs").glob("*.json")):
        recorded, read = json.loads(path.read_text()), records[path.stem]
        for before, after in ((recorded["rows"], read.rows), (recorded["failures"], read.failures)):
            assert len(before) == len(after)
            meant: dict[tuple, set[tuple]] = {}
            for old, new in zip(before, after, strict=True):
                assert set(new.shape) <= SIZES and (new.part or new.shape == old["shape"]), new
                old_name = old["case"], old.get("part", ""), *old["shape"].items()
                meant.setdefault((new.case, new.size), set()).add(old_name)
            assert all(len(names) == 1 for names in meant.values()), "one name for two things"
    found = published.select(history=True)
    assert len(found) == sum(len(record.rows) for record in published.records)
    places = Counter((each.case, each.size) for each in found)
    for (case, size), count in places.items():
        assert len(published.select(Coordinates(case, shape=size), history=True)) == count


def test_a_number_becomes_words_or_a_size(root: Path, known: None) -> None:
    shapes = [{"mask": 2, "rows": 8}, {"rows": 8, "mask": 1}, {"window": 4, "rows": 8}, {"rows": 8}]
    tiny.write(root, tiny.record(root, [row(root, shape) for shape in shapes]))
    assert current(root) == ["8", "causal 8", "full 8", "sums 4x8"]
    assert parts.in_words("kernels/add", {"part": "", "shape": {"mask": 2}}) == {"part": "", "shape": {"mask": 2}}


def test_a_number_that_nobody_knows_is_refused(root: Path, known: None) -> None:
    tiny.write(root, tiny.record(root, [row(root, {"mask": 3, "rows": 8})]))
    with pytest.raises(PublishError, match="expected mask as one of 1, 2, got 3"):
        tiny.store(root)


def test_an_older_grid_names_points_by_numbers(root: Path, known: None) -> None:
    """Where one name has meant two things, the newest counts."""
    before = [row(root, {"mask": 1, "rows": 8}), row(root, {"mask": 2, "rows": 8})]
    tiny.write(root, tiny.record(root, before))
    grid = {"kernels/add": ["forward 1x8 bfloat16 device"]}
    tiny.write(root, tiny.record(root, [row(root, {"called": 1, "rows": 8})], day=2, grid=grid))
    assert current(root) == ["operator 8"]
    grid = {"kernels/add": ["forward causal 8 bfloat16 device"]}
    tiny.write(root, tiny.record(root, [], day=3, grid=grid))
    assert current(root) == ["causal 8"]
