"""A page names a point of its case and a metric; what it states of them must hold, or the build stops."""

import re
from pathlib import Path

import pytest
import torch

from docs.publish.errors import PublishError
from docs.publish.macros.catalogue import Macros
from docs.publish.macros.page import Page
from docs.publish.macros.render import render
from docs.publish.place import Place
from docs.publish.records import cases
from docs.publish.records.captures import Captures
from docs.publish.records.store import Store
from tests.benchmarks import source
from tests.benchmarks.runner import discover, load, size
from tests.pages import tiny


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tiny.project(tmp_path)
    slow = {"time": {"p20": 2e-3, "p50": 2e-3, "p80": 2e-3, "samples": 5}}
    wide = {"shape": {"rows": 8, "columns": 8}}
    rows = [
        tiny.row(root),
        tiny.row(root, variant="eager", **slow),
        tiny.row(root, direction="backward", **slow),
        tiny.row(root, variant="eager", direction="backward"),
        tiny.row(root, **wide, mode="calls", **slow),
        tiny.row(root, **wide),
        tiny.row(root, variant="eager", **wide),
    ]
    tiny.write(root, tiny.record(root, rows))
    return root


def rendered(text: str, root: Path, case: str = "kernels/add") -> tuple[str, Page]:
    page = Page(Place("kernels/add.md", "kernels/add/"), case)
    store = Store.load(root / "docs" / "measurements", root)
    return render(text, Macros(store, Captures({}, root), page, root), page), page


@pytest.mark.parametrize(
    ("macro", "shown"),
    [
        ('gpu("ours", "small")', "1.00 ms"),
        ('gpu("ours", "small backward")', "2.00 ms"),
        ('gpu("ours", "calls")', "1.00 ms"),
        ('wall("ours", "calls")', "2.00 ms"),
        ('gain("ours", over="eager", at="small")', "2.00×"),
        ('memory("ours", "small")', "1.00 MB"),
        ('launches("ours", "small")', "1"),
        ('share("ours", "small")', "50.0%"),
        ('bandwidth("ours", "small")', "2.00 TB/s"),
        ('rate("ours", "small")', "1.00 TFLOP/s"),
        ('build("ours", "small")', "2.50 s"),
        ('calc("a / b", unit="x", a=gpu("eager", "small"), b=gpu("ours", "small"))', "2.00×"),
        ('gpu("ours", "small", case="kernels/add")', "1.00 ms"),
    ],
)
def test_a_number_is_that_of_the_named_point(macro: str, shown: str, root: Path):
    html, page = rendered(f"{{{{ {macro} }}}}", root, case="" if "case=" in macro else "kernels/add")
    assert re.search(r">(.*)</a>", html)[1] == shown
    assert len(page.evidence.entries) == 1, "what is only computed with is no number of the page"


@pytest.mark.parametrize(
    ("macro", "said"),
    [
        ('gpu("ours", "smal")', "point of kernels/add: expected one of small, small backward, calls; got 'smal'"),
        ('gpu("ours", "small", case="kernels/ad")', "case: expected one of kernels/add, got 'kernels/ad'"),
        ('gpu("ours", "small", clock="cpu")', "clock: expected one of wall, gpu, graph, burst, sustained, got 'cpu'"),
        ('wall("ours", "small")', "mode of kernels/add"),
        ('gpu("quack", "small")', "variant of kernels/add"),
        ('holds("ours beats eager", at="small")', "holds: expected sides with one of"),
    ],
)
def test_what_is_not_there_is_said_in_one_line(macro: str, said: str, root: Path):
    with pytest.raises(PublishError) as error:
        rendered(f"{{{{ {macro} }}}}", root)
    message = str(error.value)
    assert message.startswith("kernels/add.md:1: ") and "\n" not in message
    assert all(word in message for word in said.replace(";", ",").split(", ")), message


@pytest.mark.parametrize(
    ("statement", "against"),
    [
        ('holds("ours faster than eager", at="small")', 0),
        ('holds("eager slower than all", at="small")', 0),
        ('holds("ours slower than eager", at="small backward")', 0),
        ('holds("ours faster than eager", at="small, small backward")', 1),
        ('holds("ours, eager faster than eager", at="small")', 1),
        ('holds("ours faster than eager", at="small", by=1.5)', 1),
        ('holds("ours as fast as eager", at="calls", clock="gpu")', 0),
        ('holds("ours faster than eager", at="every backward")', 1),
        ('holds("ours slower than eager", at="every backward")', 0),
        ('holds("ours faster than quack", at="small")', 1),
        ('holds("a less than b", a=gpu("ours", "small"), b=gpu("eager", "small"))', 0),
        ('holds("a more than b", a=gpu("ours", "small"), b=gpu("eager", "small"))', 1),
    ],
)
def test_a_statement_shows_nothing_and_is_held_against_the_records(statement: str, against: int, root: Path):
    html, page = rendered(f"Ours.{{{{ {statement} }}}}", root)
    assert html == "Ours."
    assert len(page.broken) == against, page.broken


@pytest.mark.parametrize(("seconds", "noted"), [(9e-3, True), (0.5e-3, False)])
def test_what_does_not_hold_on_this_machine_has_a_note_and_stops_nothing(seconds: float, noted: bool, root: Path):
    time = {"time": dict.fromkeys(("p20", "p50", "p80"), seconds) | {"samples": 5}}
    tiny.write(root, tiny.record(root, [tiny.row(root, **time), tiny.row(root, variant="eager")], day=2), "local")
    html, page = rendered('Ours.{{ holds("ours faster than eager", at="small") }}', root)
    assert not page.broken
    assert ("not so on this machine" in html) is noted
    html, _ = rendered('{{ holds("ours slower than eager", at="small backward") }}', root)
    assert html == "", "what this machine did not measure is not judged there"


def test_no_page_names_a_point_that_is_measured_on_request_only():
    named, unshown = set(), set()
    for case, path in discover().items():
        points = cases.points(source.ROOT, case).values()
        named |= {(case, at.direction, at.shape, at.dtype) for modes in points for at in modes}
        for point in load(path).points(torch.device("cuda")):
            if not point.shown:
                unshown.add((case, point.direction, size(point.part, point.shape), point.dtype))
    assert unshown and not named & unshown
