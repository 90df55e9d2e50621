"""The site's own proof counts what was measured again on another machine, and nothing else."""

import re
from pathlib import Path
from typing import Any

import pytest

from docs.publish.generated import reproduced
from docs.publish.place import Place
from docs.publish.records.store import Store
from tests.pages import tiny
from tests.pages.test_host_bound import SMALL, STOLEN, calls
from tests.pages.tiny import store, took

PLACE = Place("results/reproduced.md", "results/reproduced/")


def run(root: Path, day: int, rows: list[dict[str, Any]], **changed: Any) -> dict[str, Any]:
    return tiny.record(root, rows, day=day, machine=tiny.H100 | {"boot": f"boot{day}"}, **changed)


def timed(root: Path, milliseconds: float, **changed: Any) -> dict[str, Any]:
    return tiny.row(root, time=took(milliseconds), **changed)


def case(known: Store) -> reproduced.Case:
    return reproduced.cases(known, "nvidia-h100-80gb-hbm3")[0]


def ratios(known: Store) -> list[float]:
    return [round(pair.ratio, 3) for pair in case(known).gpu]


def test_what_agrees_reaches_the_goal(root: Path):
    known = store(root, run(root, 1, [timed(root, 1)]), run(root, 2, [timed(root, 1.04)]))
    assert ratios(known) == [1.04]
    page = reproduced.page(known, PLACE)
    assert "<strong>The goal is reached.</strong> Of 1 pairs of GPU rows, 1 (100%) agree within 5%" in page
    assert "Furthest apart" not in page and page.count("<svg") == 2 and "var(--rp-accent)" not in page


def test_a_run_of_some_variants_reproduces_and_replaces_nothing_but_other_code(root: Path):
    both = [timed(root, 1), timed(root, 2, variant="eager")]
    known = store(root, run(root, 1, both), run(root, 2, [timed(root, 1.04)], variants=["ours"]))
    assert ratios(known) == [1.04]
    assert [row.time.p50 for row in known.select()] == [1e-3, 2e-3]
    changed = timed(root, 3, sources={"hash": "0" * 16, "files": [tiny.KERNEL, tiny.CASE]})
    known = store(root, run(root, 3, [changed], variants=["ours"]))
    assert [row.time.p50 for row in known.select()] == [3e-3]


def test_what_a_run_lacked_the_package_for_stays_as_an_older_run_has_it(root: Path):
    both = [timed(root, 1), timed(root, 2, variant="eager")]
    known = store(root, run(root, 1, both), run(root, 2, [timed(root, 3)], absent={"eager": "peer"}))
    assert [(row.variant, row.time.p50) for row in known.select()] == [("eager", 2e-3), ("ours", 3e-3)]
    known = store(root, run(root, 3, [timed(root, 4)]))
    assert [(row.variant, row.time.p50) for row in known.select()] == [("ours", 4e-3)], "the case has it no more"


def test_what_does_not_agree_is_said_and_listed_with_both_numbers(root: Path):
    first = run(root, 1, [timed(root, 1), timed(root, 2, variant="eager")])
    second = run(root, 2, [timed(root, 1.2), timed(root, 1, variant="eager")])
    page = reproduced.page(store(root, first, second), PLACE)
    assert "The goal is not reached.</strong> Of 2 pairs of GPU rows, 0 (0%) agree" in page
    worst = page.partition("Furthest apart")[2]
    assert re.findall(r"<td>([^<]+)</td><td>([^<]+)</td><td>([^<]+)</td></tr>", worst) == [
        ("2.00 ms (boot1)", "1.00 ms (boot2)", "0.500×"),
        ("1.00 ms (boot1)", "1.20 ms (boot2)", "1.20×"),
    ]
    assert "var(--rp-accent)" in page


@pytest.mark.parametrize(
    "change",
    [
        lambda record: record["machine"].update(boot="boot1"),
        lambda record: record["rows"][0].update(busy=STOLEN),
        lambda record: record["rows"][0]["sources"].update(hash="of older code"),
        lambda record: record["software"].update(torch="2.12.0"),
        lambda record: record["rows"][0].update(direction="backward"),
    ],
    ids=["same start", "busy", "other code", "other software", "another row"],
)
def test_what_is_not_the_same_again_is_no_pair(change, root: Path):
    second = run(root, 2, [timed(root, 1)])
    change(second)
    known = store(root, run(root, 1, [timed(root, 1)]), second)
    assert ratios(known) == []
    page = reproduced.page(known, PLACE)
    assert "The goal is not reached" in page and "<td>measured once</td>" in page and "<svg" not in page


def test_what_older_code_took_twice_is_no_pair_while_a_campaign_goes_on(root: Path):
    old = {"sources": {"hash": "of older code", "files": [tiny.KERNEL, tiny.CASE]}}
    both = [timed(root, 1, **old), timed(root, 1, direction="backward", **old)]
    grid = {"kernels/add": ["forward 8x4 bfloat16 device", "backward 8x4 bfloat16 device"]}
    known = store(root, run(root, 1, both), run(root, 2, both), run(root, 3, [timed(root, 1)], grid=grid))
    assert ratios(known) == []


def test_old_runs_are_told_apart_by_their_dates(root: Path):
    known = store(root, tiny.record(root, day=1), tiny.record(root, day=2))
    assert case(known).starts == ["run of 2026-01-01 00:00", "run of 2026-01-02 00:00"]
    assert "Each of them counts as a start of its own" in reproduced.page(known, PLACE)


def test_rates_of_matrix_products_are_shares_of_the_ceiling_of_their_own_run(root: Path):
    product = {"flops": 10**11, "bytes_read": 1, "bytes_written": 1, "mode": "sustained"}
    second = run(root, 2, [timed(root, 1.5, **product), timed(root, 1.5)])
    second["ceilings"] = second["ceilings"] | {"matrix": {"bfloat16": {"sustained": tiny.CEILING | {"rate": 4e14}}}}
    known = store(root, run(root, 1, [timed(root, 1, **product), timed(root, 1)]), second)
    assert sorted(ratios(known)) == [1.0, 1.5]


def test_work_bound_by_memory_whose_inputs_lie_in_the_cache_is_compared_by_its_times(root: Path):
    warm = {"flops": 10**9, "bytes_read": 10**7, "bytes_written": 0, "mode": "graph"}
    known = store(root, run(root, 1, [timed(root, 1, **warm)]), run(root, 2, [timed(root, 1.5, **warm)]))
    assert [pair.metric for pair in case(known).gpu] == ["time"]


def test_a_part_of_a_run_stands_in_for_what_the_same_start_measured_before(root: Path):
    again = run(root, 3, [timed(root, 1.01)]) | {"machine": tiny.H100 | {"boot": "boot2"}}
    known = store(root, run(root, 1, [timed(root, 1)]), run(root, 2, [timed(root, 2)]), again)
    assert ratios(known) == [1.01]


def test_host_rows_are_counted_by_their_ranges(root: Path):
    gpu = timed(root, 1, **SMALL)
    records = [
        run(root, day, [gpu, calls(root, "ours", us), calls(root, "eager", 100 + day)])
        for day, us in enumerate((50, 50, 50, 50, 100), 1)
    ]
    page = reproduced.page(store(root, *records), PLACE)
    assert "The goal is reached." in page
    assert "Of 2 rows of calls, 2 have a range over 3 machines or more" in page
    assert "90.0% of the runs lie in the range of the others" in page, "9 of 10: not that of 100"
    assert "<td>2</td><td>2</td><td>2.00×</td></tr>" in page
    fewer = store(root, run(root, 6, [gpu, calls(root, "ours", 50), calls(root, "liger", 50)]))
    page = reproduced.page(fewer, PLACE)
    assert "The goal is not reached." in page and "Of 2 rows of calls, 1 have a range" in page
