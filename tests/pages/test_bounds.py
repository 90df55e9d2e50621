"""A bound is a named function beside a case: the page shows its value, and a test can call it with plain numbers."""

import ast
import inspect
from pathlib import Path

import pytest

from docs.publish import units
from docs.publish.errors import PublishError
from docs.publish.macros import bounds as read
from docs.publish.macros.calc import FUNCTIONS
from docs.publish.macros.catalogue import NUMBERS, Macros
from docs.publish.macros.page import Page
from docs.publish.macros.render import render
from docs.publish.place import Place
from docs.publish.records.asked import of_page
from docs.publish.records.captures import Captures
from docs.publish.records.store import Store
from tests.benchmarks import bounds, source
from tests.benchmarks.functions import Code
from tests.pages import tiny
from tests.pages.test_page_source import calls

CASE = '''from tests.benchmarks.bounds import bound, captured, ceiling, gpu

@bound("us", rows=1000, width=2 * 2, copy=ceiling("copy"))
def copied(rows, width, copy):
    """Rows, copied."""
    return rows * width / copy

@bound("x", one=gpu("{variant}", "small"), other=bound("copied"))
def over(one, other):
    """A time over the time to copy."""
    return one / other

@bound("", time=gpu("eager", "small"))
def pays(time, spent):
    """After how many calls something has paid."""
    if spent <= 0:
        return "at once"
    return spent / time

@bound("x", printed=captured("table", "row", which=2))
def doubled(printed):
    """Twice what was printed."""
    return 2 * printed

'''


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tiny.project(tmp_path)
    (root / tiny.CASE).write_text(CASE + tiny.FILES[tiny.CASE])
    tiny.write(root, tiny.record(root))
    tiny.printed(root, {"table": "row 1 2\n"})
    return root


def rendered(text: str, root: Path, said: dict | None = None, case: str = "kernels/add") -> tuple[str, Page]:
    measurements = root / "docs" / "measurements"
    page = Page(Place("a/page.md", "a/page/"), case, said=said or {})
    store, captures = Store.load(measurements, root), Captures.load(measurements / "captures", root)
    return render(text, Macros(store, captures, page, root), page), page


def shown(macro: str, root: Path, **how: object) -> str:
    html, page = rendered(f"{{{{ {macro} }}}}", root, **how)  # type: ignore[arg-type]
    return next((entry["value"] for entry in page.evidence.entries.values()), html)


@pytest.mark.parametrize(
    ("macro", "value"),
    [
        ('bound("copied")', "0.00100 µs"),
        ('bound("copied", case="kernels/add")', "0.00100 µs"),
        ('bound("over", variant="ours")', "1,000,000×"),
        ('bound("over", variant="eager")', "2,000,000×"),
        ('bound("pays", spent=1)', "500"),
        ('bound("pays", spent=0)', "at once"),
        ('bound("doubled")', "4.00×"),
    ],
)
def test_a_bound_is_worked_out_from_its_inputs(macro: str, value: str, root: Path):
    assert shown(macro, root) == value


def test_its_evidence_lists_formula_and_inputs(root: Path):
    _, page = rendered('{{ bound("copied") }}', root)
    (entry,) = page.evidence.entries.values()
    assert entry["formula"] == "rows * width / copy"
    assert [(one["name"], one["value"]) for one in entry["inputs"]] == [
        ("rows", "1,000"), ("width", "4"), ("copy", "4.00 TB/s"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("macro", "said"),
    [
        ('bound("copid")', "bound of kernels/add: expected one of copied, over, pays, doubled; got 'copid'"),
        ('bound("over")', "bound 'over': expected the page to give variant; got nothing"),
        ('bound("copied", rows=2)', "bound 'copied': expected the page to give nothing; got rows"),
        ('bound("over", variant="our")', "variant of kernels/add"),
    ],
)
def test_what_is_missing_is_said(macro: str, said: str, root: Path):
    with pytest.raises(PublishError) as refusal:
        rendered(f"{{{{ {macro} }}}}", root)
    assert str(refusal.value).startswith("a/page.md:1: ") and said in str(refusal.value)


def test_a_page_without_a_case_has_a_file_for_its_bounds(root: Path):
    alone = root / "tests" / "benchmarks" / "a" / "page.py"
    alone.parent.mkdir(parents=True)
    alone.write_text('@bound("", rows=2)\ndef doubled(rows):\n    """Twice."""\n    return 2 * rows\n')
    assert shown('bound("doubled")', root, case="a/page") == "4"


def test_what_a_bound_takes_from_a_script_is_asked_for(root: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(source, "ROOT", root)
    text = '---\ncase: kernels/add\n---\n{{ bound("doubled") }}'
    assert [(one.script, one.section) for one in of_page("a/page.md", text)] == [("kernels/add", "table")]


def test_bounds_make_nothing_stale(root: Path):
    def hashes() -> tuple[str, str]:
        case = (root / tiny.CASE).read_text()
        return Code.of(root).measured(tiny.CASE).hash, source.digest_texts([(tiny.CASE, case)])

    with_bounds = hashes()
    (root / tiny.CASE).write_text(CASE.replace("rows * width", "2 * rows * width") + tiny.FILES[tiny.CASE])
    assert hashes() == with_bounds
    (root / tiny.CASE).write_text(tiny.FILES[tiny.CASE])
    assert hashes() == with_bounds


# ---- all of ours ----------------------------------------------------------------------------------------------------

OURS = {
    path: source.bounds(path)
    for path in sorted((source.ROOT / "tests" / "benchmarks").rglob("*.py"))
    if "import bound" in path.read_text(encoding="utf-8")
}


def test_the_inputs_that_a_case_may_name_are_the_macros_that_give_numbers():
    assert {name for name in vars(bounds) if name in NUMBERS} == set(NUMBERS)


def test_each_bound_says_what_it_is():
    found = [
        f"{path.name}: {name}"
        for path, all_ in OURS.items()
        for name, one in all_.items()
        if not ast.get_docstring(one)
    ]
    assert not found


def test_each_bound_has_a_known_unit_and_uses_its_inputs():
    """And what no page gives has an input: an input without a parameter would be lost."""
    wrong = []
    for path in OURS:
        for name, one in read.of_case(source.ROOT, case_of(path)).items():
            used = {node.id for node in ast.walk(ast.Module(one.function.body, [])) if isinstance(node, ast.Name)}
            if one.unit not in units.NAMED or used - FUNCTIONS.keys() != {*one.parameters}:
                wrong.append(f"{path.name}: {name}: {one.unit}, {sorted(used)}")
            if one.inputs.keys() - {*one.parameters}:
                wrong.append(f"{path.name}: {name}: {sorted(one.inputs.keys() - {*one.parameters})}")
    assert not wrong


def case_of(path: Path) -> str:
    return path.relative_to(source.ROOT / "tests" / "benchmarks").with_suffix("").as_posix().replace("_", "-")


def test_each_bound_is_on_a_page_or_in_another_bound():
    used = {(call.case, str(call.first)) for call in calls() if call.macro == "bound"}
    inner = {
        (case_of(path), node.args[0].value)
        for path, all_ in OURS.items()
        for one in all_.values()
        for each in one.decorator_list
        for node in ast.walk(each)
        if node is not each
        and isinstance(node, ast.Call)
        and source.is_bound(node)
        and isinstance(node.args[0], ast.Constant)
    }
    lost = [
        f"{path.name}: {name}"
        for path, all_ in OURS.items()
        for name in all_
        if (case_of(path), name) not in used | inner
    ]
    assert not lost, f"no page shows these: {lost}"


@pytest.mark.parametrize("path", OURS, ids=lambda path: case_of(path))
def test_the_file_can_be_imported_and_its_bounds_are_plain_functions(path: Path):
    module = __import__(".".join(path.relative_to(source.ROOT).with_suffix("").parts), fromlist=["_"])
    for name, one in read.of_case(source.ROOT, case_of(path)).items():
        assert list(inspect.signature(getattr(module, name)).parameters) == one.parameters
