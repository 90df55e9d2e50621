"""The results pages hold every current number with its anchor, their exports agree, and search leaves them out."""

import csv
import io
import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from docs.publish import markup
from docs.publish.evidence import of_row
from docs.publish.generated import exports, history, machines, verification
from docs.publish.generated.verification import load as load_reports
from docs.publish.place import Place
from docs.publish.records.measured import Coordinates
from docs.publish.records.store import Store
from tests.pages import tiny

READ = "docs/pages", "snippets/**/*.py", "tests/benchmarks"  # through docs.publish

PLACE = Place("results/machines/nvidia-h100-80gb-hbm3.md", "results/machines/nvidia-h100-80gb-hbm3/")
ROWS = Place("results/rows/nvidia-h100-80gb-hbm3/kernels-add.html", "results/rows/nvidia-h100-80gb-hbm3/")
PASSED = [{"id": f"tests/kernels/test_add.py::{name}", "outcome": "passed", "seconds": 0.1} for name in ("one", "two")]
SKIPPED = PASSED[0] | {"id": "tests/kernels/test_add.py::three", "outcome": "skipped", "reason": "needs two GPUs"}
REPORT = {
    "schema": 1, "id": "2026-01-01T00-00-00Z-nvidia-h100-80gb-hbm3", "date": "2026-01-01T00:00:00Z",
    "command": "python -m pytest tests/kernels", "commit": "c" * 40, "dirty": False,
    "machine": {"slug": "nvidia-h100-80gb-hbm3", "name": "NVIDIA H100"}, "software": {"torch": "2.11.0"},
    "tests": [*PASSED, SKIPPED],
}  # fmt: skip
FAILED = {"id": "tests/kernels/test_sub.py::test_four", "outcome": "failed", "seconds": 0.1, "reason": "assert 1 < 0"}
BROKEN = {"id": "tests/kernels/test_sub.py::test_five", "outcome": "error", "seconds": 0.0, "reason": "no luck"}


@pytest.fixture
def store(root: Path) -> Store:
    failure = {
        "case": "kernels/add", "direction": "forward", "shape": {"rows": 8, "columns": 4}, "dtype": "bfloat16",
        "variant": "liger", "reason": "ImportError: no <module>",
    }  # fmt: skip
    rows = [
        tiny.row(root),
        tiny.row(root, variant="eager"),
        tiny.row(root, direction="backward", bytes_read=0, bytes_written=0),
    ]
    before = tiny.record(root, [tiny.row(root, time=tiny.took(2))], day=1)
    return tiny.store(root, before, tiny.record(root, rows, day=2, failures=[failure]))


def test_each_number_leads_to_its_row_on_the_machines_page(store: Store):
    page = machines.case_rows(store, "nvidia-h100-80gb-hbm3", "kernels/add", ROWS)
    rows = store.select()
    anchors = re.findall(r'<tr id="(kernels[^"]+)">', page)
    assert sorted(anchors) == sorted(row.anchor for row in rows)
    for row in rows:
        quantity = of_row(row, "time", None, Place("kernels/add.md", "kernels/add/"))
        assert (
            quantity and quantity.href == f"../../results/machines/nvidia-h100-80gb-hbm3/?rows=kernels-add#{row.anchor}"
        )


def test_a_machines_page_says_all_that_evidence_needs(store: Store):
    of_case = machines.case_rows(store, "nvidia-h100-80gb-hbm3", "kernels/add", ROWS)
    row = of_case[of_case.index('id="kernels-add-ours-forward') :].partition("</tr>")[0]
    cells = re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row)
    assert cells == [
        "8 × 4", "<code>ours</code>", "1.00 ms", "900 µs", "1.20 ms", "100", "1.00 GB", "1.00 GB", "2.00 TB/s", "50.0%",
        "1.00 TFLOP/s", "0.125%", "1.00 MB", "1", "0.00100", "0.00200", "2.50 s",
    ]  # fmt: skip
    page = machines.page(store, "nvidia-h100-80gb-hbm3", PLACE)
    assert '<a href="../../rows/nvidia-h100-80gb-hbm3/kernels-add.html">kernels/add</a>' in page, (
        "the machine's own page lists its cases"
    )
    assert "kernels-add-ours" not in page
    run = store.newest_record(Coordinates(machine="nvidia-h100-80gb-hbm3")).id
    assert f'href="../../machines/nvidia-h100-80gb-hbm3/#{run}"' in of_case and f'<tr id="{run}">' in page
    assert 'href="../../nvidia-h100-80gb-hbm3.json"' in page
    assert 'href="../../nvidia-h100-80gb-hbm3.csv"' in page
    assert "ImportError: no &lt;module&gt;" in page, "what could not be timed is said, and escaped"
    assert "31 °C" in page


def test_the_rows_of_a_case_explain_the_columns_variants_and_modes_that_they_have(store: Store):
    page = machines.case_rows(store, "nvidia-h100-80gb-hbm3", "kernels/add", ROWS)
    legend = page.partition("<details>")[2].partition("</details>")[0]
    assert page.index("<details>") < page.index("<table")
    for name in ("ours", "of memory ceiling", "of matrix ceiling", "error", "allowed error", "read, written", "device"):
        assert f"<code>{name}</code>: " in legend, name
    assert "<code>launch</code>" not in legend and "<code>graph</code>" not in legend
    assert 'methodology/">Methodology</a>' in legend


def test_result_pages_stay_out_of_search(store: Store):
    pages = [
        machines.page(store, "nvidia-h100-80gb-hbm3", PLACE),
        history.page(store, PLACE),
        verification.page([], {}, {}, PLACE),
    ]
    assert all("search:\n  exclude: true" in page.partition("\n---\n")[0] for page in pages)


def test_a_column_in_which_nothing_stands_is_left_out(store: Store):
    page = machines.case_rows(store, "nvidia-h100-80gb-hbm3", "kernels/add", ROWS)
    head, line = page.partition("<thead>")[2].split("</thead>")[0], page.partition("<tbody>")[2].split("</tr>")[0]
    names = re.findall(r'<th scope="col">(.*?)</th>', head)
    assert names[:3] == ["shape", "variant", "p50"] and not {"registers", "spills", "launch"} & set(names)
    assert len(re.findall("<t[hd]", line)) == len(names)


def test_the_head_of_a_page_is_read_whatever_is_in_its_texts():
    """YAML that is none is no head at all: search found a page whose case asks "…: SwiGLU, GeGLU?"."""
    head, _, rest = markup.front_matter('kernels/a: "b"', "What is left: this, or 'that'?").partition("\n---\n")
    assert yaml.safe_load(head) == {
        "title": 'kernels/a: "b"',
        "description": "What is left: this, or 'that'?",
        "search": {"exclude": True},
    }
    assert rest.strip() == '# kernels/a: "b"'


def test_exports_hold_every_current_row(store: Store):
    content = json.loads(exports.as_json(store, "nvidia-h100-80gb-hbm3"))
    lines = list(csv.DictReader(io.StringIO(exports.as_csv(store, "nvidia-h100-80gb-hbm3"))))
    assert len(content["rows"]) == len(lines) == len(store.select()) == 3
    assert [run["id"] for run in content["runs"]] == ["2026-01-02T00-00-00Z-nvidia-h100-80gb-hbm3"]
    assert content["failures"][0]["variant"] == "liger"
    ours = next(line for line in lines if line["variant"] == "ours" and line["direction"] == "forward")
    assert (float(ours["p50"]), float(ours["bandwidth"]), ours["shape"], ours["stale"]) == (1e-3, 2e12, "8x4", "False")
    nothing = next(line for line in lines if line["direction"] == "backward")
    assert nothing["bandwidth"] == "", "no bytes, no bandwidth"


def test_history_shows_run_after_run(store: Store):
    page = history.page(store, Place("results/history.md", "results/history/"))
    forward = page[page.index("### kernels/add") :].partition("**forward**")[2].partition("</table>")[0]
    assert re.search(r"<code>ours</code></th><td>2\.00 ms</td><td>1\.00 ms</td>", forward)
    assert re.search(r"<code>eager</code></th><td>–</td><td>1\.00 ms</td>", forward)
    assert "The newest time is 0.500× the oldest" in forward
    assert "**backward**" not in page, "it ran once"


def verified(root: Path, *reports: dict) -> str:
    """The page over these reports, each of a day later than the one before."""
    for day, report in enumerate(reports, 1):
        named = {"id": f"2026-01-0{day}", "date": f"2026-01-0{day}T00:00:00Z"}
        tiny.write(root, report | named, "tests")
    loaded = load_reports(root / "docs/measurements/tests", root)
    return verification.page(loaded, {"add": "0", "sub": "0"}, {"run": 5, "listed": 2}, PLACE)


def test_verification_counts_what_ran_and_what_did_not(tmp_path: Path):
    page = verified(tmp_path, REPORT | {"tests": REPORT["tests"][:1]}, REPORT)
    assert page.count("## NVIDIA H100") == 1, "the newest report of a machine"
    assert "2 passed, 1 skipped" in page and "2026-01-02" in page and "red:" not in page
    assert "needs two GPUs</th><td>1</td>" in page
    assert re.search(r"test_add\.py</code></th><td>2</td><td>1</td>", page)
    assert "listed as not runnable, each with its reason</th><td>2</td>" in page


def test_a_red_report_is_shown_in_red_and_the_newest_green_one_is_the_proof(tmp_path: Path):
    red = REPORT | {"tests": [*REPORT["tests"], FAILED, BROKEN], "commit": "d" * 40}
    page = verified(tmp_path, REPORT, red)
    assert '<strong class="rp-badge">red: 1 failed, 1 error, of 2026-01-02 on NVIDIA H100</strong>' in page
    assert "<code>tests/kernels/test_sub.py::test_four</code></th><td>assert 1 &lt; 0</td>" in page
    assert "<code>tests/kernels/test_sub.py::test_five</code></th><td>no luck</td>" in page
    proof = page[page.index("### The newest report without a failure") :]
    assert "2 passed, 1 skipped" in proof and "2026-01-01" in proof and "c" * 40 in proof
    assert "test_sub.py" not in proof and "d" * 40 not in page, "nothing of the red one is counted"


def test_what_a_red_report_says_is_not_heard_once_a_newer_one_is_green(tmp_path: Path):
    page = verified(tmp_path, REPORT | {"tests": [*REPORT["tests"], FAILED]}, REPORT)
    assert "red:" not in page and "2 passed, 1 skipped" in page


@pytest.mark.parametrize(
    ("tests", "said"),
    (
        ([*REPORT["tests"], FAILED], "red: 1 failed, 0 errors, of"),
        ([*REPORT["tests"], FAILED | {"outcome": "xpassed"}], "red: 1 failed, 0 errors, of"),
        ([], "red: 0 failed, 0 errors, none passed, of"),
        (REPORT["tests"][2:], "red: 0 failed, 0 errors, none passed, of"),
    ),
    ids=("red", "passes unexpectedly", "empty", "skips all"),
)
def test_where_no_report_is_green_nothing_is_claimed(tests: list[dict], said: str, tmp_path: Path):
    page = verified(tmp_path, REPORT | {"tests": tests})
    assert said in page and "No report of this machine is without a failure." in page
    assert " passed, " not in page.replace(said, "") and "### By file" not in page and "Commit" not in page


def test_verification_says_which_kernels_changed_since(tmp_path: Path):
    tiny.write(tmp_path, REPORT | {"deselected": 7, "kernels": {"add": "0", "sub": "0"}}, "tests")
    reports = load_reports(tmp_path / "docs/measurements/tests", tmp_path)
    page = verification.page(reports, {"add": "0", "sub": "1", "mul": "2"}, {}, PLACE)
    assert "changed since: <code>sub</code>, <code>mul</code>" in page
    assert "7 tests, which the command deselects" in page
    assert "as they are now" in verification.page(reports, {"add": "0", "sub": "0"}, {}, PLACE)


def test_a_state_says_once_what_did_not_change():
    before = {"sm_clock_mhz": 345.0, "memory_clock_mhz": 3201.0, "temperature_c": 33.0, "power_w": None}
    after = before | {"sm_clock_mhz": 1860.0}
    assert machines._state({"before": before, "after": after}) == "345 → 1860 MHz, memory 3201 MHz, 33 °C"
    assert machines._state({"before": {}, "after": {}}) == ""


def test_a_reason_is_said_once_for_all_its_shapes():
    def failure(rows: int, explanation: str) -> Any:
        where = {"case": "kernels/add", "variant": "liger", "direction": "forward", "dtype": "bfloat16"}
        return SimpleNamespace(**where, size=f"{rows}x4", explanation=explanation)

    found = machines._failures([failure(8, "no room"), failure(9, "not built"), failure(10, "no room")])
    assert found.count("no room") == found.count("not built") == 1
    assert found.count("<tr>") == 3, "a head and two reasons"
