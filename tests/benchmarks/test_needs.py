"""How much of a GPU's memory a point needs, by what records say."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.benchmarks import machine
from tests.benchmarks.needs import IN_A_CHECK, KEPT_BESIDE, Need, earlier, fit, of_rows, place

GPU, MEMORY = torch.device("cuda"), 10**12
POINT: Any = {"case": "a/b", "direction": "forward", "part": "", "shape": {"rows": 2}, "dtype": "bfloat16"}
ROW = POINT | {"variant": "eager", "bytes_read": 100, "bytes_written": 10, "peak_memory_bytes": 1000}


@pytest.fixture(autouse=True)
def this_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "describe", lambda device: {"slug": "this"})


def record(folder: Path, *rows: dict, slug: str = "this", failures: tuple = ()) -> None:
    content = {"machine": {"slug": slug, "memory_bytes": MEMORY}, "rows": rows, "failures": failures}
    (folder / f"{len(list(folder.iterdir()))}.json").write_text(json.dumps(content))


def test_points_fit_with_all_that_they_hold_and_all_peaks() -> None:
    assert fit([Need(3, 4), Need(2, 5)], 14) and not fit([Need(3, 4), Need(2, 5)], 13)


def test_inputs_and_results_are_held_and_the_largest_moment_comes_on_top() -> None:
    assert of_rows([ROW], MEMORY) == Need(100 + 5 * 10 + KEPT_BESIDE, 4 * (100 + 1000)), "float64 is four times as wide"
    assert of_rows([ROW | {"dtype": "float32"}], MEMORY) == Need(100 + 3 * 10 + KEPT_BESIDE, 2 * (100 + 1000))
    compared = of_rows([ROW | {"bytes_written": 900}], MEMORY)
    assert compared.peak == IN_A_CHECK * 4 * 900
    assert of_rows([ROW | {"peak_memory_bytes": None}], MEMORY).peak == 4 * 100


def test_each_variant_of_a_backward_holds_outputs() -> None:
    forward, backward = (
        of_rows([ROW | {"direction": way, "variant": name} for name in "abc"], MEMORY)
        for way in ("forward", "backward")
    )
    assert backward.held == forward.held + 3 * 10


def test_where_no_traffic_is_stated_the_peak_says_how_large_the_inputs_are() -> None:
    assert of_rows([ROW | {"bytes_read": 0, "bytes_written": 0}], MEMORY) == Need(250 + KEPT_BESIDE, 4 * 1250)


def test_a_reference_that_fits_nowhere_was_computed_in_pieces() -> None:
    assert of_rows([ROW], KEPT_BESIDE + 3000).peak == 1000
    small = ROW | {"variant": "ours", "peak_memory_bytes": 10}
    assert of_rows([ROW, small], KEPT_BESIDE + 3000).peak == 1000, "the plain op is no smaller for another variant"


def test_a_point_needs_as_much_as_the_largest_of_its_variants_in_any_record(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    record(out, ROW, ROW | {"variant": "ours", "bytes_written": 20})
    (tmp_path / "runs").mkdir()
    record(tmp_path / "runs", ROW | {"peak_memory_bytes": 2000, "mode": "calls"}, ROW | {"dtype": "float32"})
    record(tmp_path / "runs", ROW | {"peak_memory_bytes": 9000}, slug="another")
    found = earlier([out, tmp_path / "runs", tmp_path / "none"], GPU)
    assert found[place(POINT)] == Need(100 + 5 * 20 + KEPT_BESIDE, 4 * (100 + 2000))
    assert len(found) == 2


def test_what_had_too_little_memory_needs_all_of_it(tmp_path: Path) -> None:
    failed, lacks = (
        POINT | {"variant": name, "reason": why}
        for name, why in {"eager": "OutOfMemoryError: CUDA out of memory.", "ours": "ImportError"}.items()
    )
    record(tmp_path, ROW, failures=(failed, lacks | {"dtype": "float32"}))
    found = earlier([tmp_path], GPU)
    assert found[place(POINT)].held == MEMORY and len(found) == 1


def test_what_is_no_record_says_nothing(tmp_path: Path) -> None:
    for name, text in {"a": "{", "b": "[]", "c": json.dumps({"machine": {"slug": "this"}})}.items():
        (tmp_path / f"{name}.json").write_text(text)
    assert earlier([tmp_path], GPU) == {}
