"""A bound is a named formula beside a case: the page shows its value."""

import re
from pathlib import Path
from typing import Any

import pytest

from docs.publish import units
from docs.publish.errors import PublishError
from docs.publish.macros.calc import FUNCTIONS
from docs.publish.macros.catalogue import NUMBERS
from docs.publish.macros.page import Page
from docs.publish.records import cases
from docs.publish.records.asked import of_page
from tests.benchmarks import bounds, source
from tests.benchmarks.bounds import names_in
from tests.benchmarks.functions import Code
from tests.pages import tiny
from tests.pages.test_page_source import calls

READ = "docs/pages"  # through docs.publish

CASE = """from tests.benchmarks.bounds import bound, captured, ceiling, gpu

SHARED = {"width": 2 * 2, "height": 3, "copy": ceiling("copy")}
copied = bound("us", "rows * width / copy", SHARED, rows=1000)
over = bound("x", "one / other", one=gpu("{variant}", "small"), other=copied)
over_again = bound("x", "1 * over", over=over)
pays = bound("", "'at once' if spent <= 0 else spent / time", time=gpu("eager", "small"))
doubled = bound("x", "2 * printed", printed=captured("table", "row", which=2))
twice = bound("x", "1 * doubled", doubled=doubled)

"""


@pytest.fixture
def root(root: Path) -> Path:
    (root / tiny.CASE).write_text(CASE + tiny.FILES[tiny.CASE])
    tiny.write(root, tiny.record(root))
    tiny.printed(root, {"table": "row 1 2\n"})
    return root


def rendered(text: str, root: Path, **page: Any) -> tuple[str, Page]:
    return tiny.rendered(text, root, path="a/page.md", **page)


def shown(macro: str, root: Path, **how: Any) -> str:
    html, page = rendered(f"{{{{ {macro} }}}}", root, **how)
    return next((entry["value"] for entry in page.evidence.entries.values()), html)


@pytest.mark.parametrize(
    ("macro", "value"),
    [
        ('bound("copied")', "0.00100 µs"),
        ('bound("copied", case="kernels/add")', "0.00100 µs"),
        ('bound("over", variant="ours")', "1,000,000×"),
        ('bound("over", variant="eager")', "2,000,000×"),
        ('bound("over_again", variant="ours")', "1,000,000×"),
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
        ("width", "4"), ("copy", "4.00 TB/s"), ("rows", "1,000"),
    ]  # fmt: skip


def test_an_input_that_is_a_bound_shows_its_formula(root: Path):
    _, page = rendered('{{ bound("over", variant="ours") }}', root)
    (entry,) = page.evidence.entries.values()
    assert [(one["name"], one["source"]) for one in entry["inputs"]][1] == ("other", "rows * width / copy")


@pytest.mark.parametrize(
    ("macro", "said"),
    [
        (
            'bound("copid")',
            "bound of kernels/add: expected one of copied, over, over_again, pays, doubled, twice; got 'copid'",
        ),
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
    alone.write_text('from tests.benchmarks.bounds import bound\n\ndoubled = bound("", "2 * rows", rows=2)\n')
    assert shown('bound("doubled")', root, case="a/page") == "4"


@pytest.mark.parametrize("name", ["doubled", "twice"])
def test_what_a_bound_takes_from_a_script_is_asked_for(name: str, root: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(source, "ROOT", root)
    text = f'---\ncase: kernels/add\n---\n{{{{ bound("{name}") }}}}'
    assert [(one.script, one.section) for one in of_page("a/page.md", text)] == [("kernels/add", "table")]


def test_bounds_make_nothing_stale(root: Path):
    def measured(text: str) -> str:
        (root / tiny.CASE).write_text(text + tiny.FILES[tiny.CASE])
        return Code.of(root).measured(tiny.CASE).hash

    assert measured(CASE) == measured(CASE.replace("rows * width", "2 * rows * width")) == measured("")


# ---- all of ours ----------------------------------------------------------------------------------------------------

FOLDER = source.ROOT / "tests" / "benchmarks"
FILES = {
    path.relative_to(FOLDER).with_suffix("").as_posix().replace("_", "-"): path.read_text(encoding="utf-8")
    for path in sorted(FOLDER.rglob("*.py"))
    if "import bound" in path.read_text(encoding="utf-8")
}


def made(name: str) -> str:
    """What a file looks like where it makes a bound."""
    return rf"\n(\w+, )?{name}(, \w+)? = (bound|traffic)\("


OURS = {
    (case, name): one
    for case, text in FILES.items()
    for name, one in cases.bounds(source.ROOT, case).items()
    if re.search(made(name), text)  # and not imported
}


def test_the_inputs_that_a_case_may_name_are_the_macros_that_give_numbers():
    assert {name for name in vars(bounds) if name in NUMBERS} == set(NUMBERS)


def test_each_bound_says_what_it_is():
    sentence = r"# \S.*\.\n"
    silent = [
        f"{case}: {name}"
        for case, name in OURS
        if not re.search(rf"\n{sentence}{made(name)[2:]}|{made(name)}.*  {sentence}", FILES[case])
    ]
    assert not silent, f"expected a sentence above each of {silent}, or behind it"


def test_each_bound_has_a_known_unit_and_uses_its_inputs():
    """And what no page gives has an input: an input without a parameter would be lost."""
    wrong = [
        f"{case}: {name}: {one}"
        for (case, name), one in OURS.items()
        if one.unit not in units.NAMED or one.inputs.keys() - names_in(one.formula) or used(one.formula) - {*FUNCTIONS}
    ]
    assert not wrong


def used(formula: str) -> set[str]:
    """The functions in a formula."""
    return {*re.findall(r"(\w+)\(", formula)}


def test_each_bound_is_on_a_page_or_in_another_bound():
    shown = {(call.case, str(call.first)) for call in calls() if call.macro == "bound"}
    inner = [each for one in OURS.values() for each in one.inputs.values() if isinstance(each, bounds.Bound)]
    lost = [where for where, one in OURS.items() if where not in shown and one not in inner]
    assert not lost, f"no page shows these: {lost}"
