"""Beliefs: the verdict follows from the records, and each stands on its page and in the list."""

import re
from pathlib import Path

import pytest

from docs.publish.errors import PublishError
from docs.publish.evidence import Shown
from docs.publish.macros import folklore
from docs.publish.macros.catalogue import Macros
from docs.publish.macros.page import Page
from docs.publish.markdown import pages
from tests.benchmarks.source import ROOT
from tests.pages import tiny
from tests.pages.prose import literals
from tests.pages.tiny import took

READ = "docs/pages", "snippets/**/*.py", "tests/benchmarks"  # through docs.publish

ENTRY = """  - id: {id}
    belief: Ours is {relation} than eager.
    {relation}: ours
    than: eager
    case: kernels/add
    shapes: [8x4, 16x4]
    direction: forward
    mode: device
    because: It adds.
"""
NUMBERS = """  - id: numbers
    belief: Sums are slow.
    case: kernels/add
    comparisons:
      - {{where: at 8 rows, shape: 8x4, {relation}: ours, than: {other}}}
    because: They are not.
"""


def page_of(*entries: str) -> str:
    return f"---\ntitle: Sums\nfolklore:\n{''.join(entries)}---\n\n# Sums\n"


def macros(root: Path, *entries: str, at: str = "sums.md") -> tuple[Macros, Page]:
    """A page with entries, and records: ours is faster than eager at 8x4, and slower at 16x4."""
    (root / "docs/pages/sums.md").write_text(page_of(*entries))
    few = {"bytes_read": 1, "bytes_written": 1, "flops": 1}
    times = {(8, "ours"): 1.0, (8, "eager"): 2.0, (16, "ours"): 4.0, (16, "eager"): 2.0}
    rows = [
        tiny.row(root, shape={"rows": n, "columns": 4}, variant=name, time=took(ms), **few)
        for (n, name), ms in times.items()
    ]
    tiny.write(root, tiny.record(root, rows))
    return tiny.macros(root, at)


def text(html: str) -> str:
    return re.sub(r"<[^>]+>", "", html)


@pytest.mark.parametrize(
    ("shapes", "relation", "verdict"),
    [
        ("8x4", "faster", "True at this shape."),
        ("16x4", "faster", "Wrong at this shape."),
        ("16x4", "slower", "True at this shape."),
        ("8x4, 16x4", "faster", "Not always: true at 1 of 2."),
    ],
)
def test_the_verdict_follows_from_the_records(root: Path, shapes: str, relation: str, verdict: str) -> None:
    entry = ENTRY.format(id="a", relation=relation).replace("8x4, 16x4", shapes)
    found, page = macros(root, entry)
    found.folklore("a")
    shown = text(page.html[0])
    assert 'id="a"' in page.html[0]
    assert shown.startswith(f"Folklore: “Ours is {relation} than eager.”{verdict} Speedup of “ours” over “eager”: ")
    assert "2.00×" in shown if "8x4" in shapes else "0.500×" in shown
    assert shown.endswith("It adds.")
    assert "NVIDIA H100" in str(page.evidence.entries)


def test_three_points_make_a_verdict() -> None:
    held, failed = folklore.Tested(True, "", ""), folklore.Tested(False, "", "")
    assert [folklore.verdict([held] * number) for number in (1, 2, 3)] == [
        "True at this shape",
        "True at both shapes",
        "True",
    ]
    assert folklore.verdict([failed] * 2, "point") == "Wrong at both points"
    assert folklore.verdict([failed, held, held]) == "Not always: true at 2 of 3"


def test_what_all_points_share_is_said_once(root: Path) -> None:
    entry = ENTRY.format(id="a", relation="faster")
    for given, where in (("[8x4, 16x4]", ("8 × 4", "16 × 4")), ("{8x4: few rows, 16x4: many}", ("few rows", "many"))):
        found, page = macros(root, entry.replace("[8x4, 16x4]", given))
        found.folklore("a")
        said = f"2.00× ({where[0]}), 0.500× ({where[1]}); forward, bfloat16, GPU time, cold cache."
        assert said in text(page.html[0])


def test_numbers_of_any_kind_can_be_held_against_each_other(root: Path) -> None:
    for relation, verdict in (("more", "Wrong at this point."), ("less", "True at this point.")):
        for other in ("eager", "{variant: eager}", "{variant: ours, shape: 16x4}"):
            found, page = macros(root, NUMBERS.format(relation=relation, other=other))
            found.folklore("numbers")
            shown = "4.00 ms" if "16x4" in other else "2.00 ms"
            assert f"{verdict} 1.00 ms and {shown} (at 8 rows). They are not." in text(page.html[0])


def test_what_comparisons_share_is_said_once(root: Path) -> None:
    apart = NUMBERS.format(relation="less", other="eager")
    shared = apart.replace("    comparisons:\n", "    shape: 8x4\n    less: ours\n    than: eager\n    comparisons:\n")
    shared = shared.replace(", shape: 8x4, less: ours, than: eager}", "}")
    assert len(shared.splitlines()[-2]) < len(apart.splitlines()[-2])
    said = []
    for entry in (apart, shared):
        found, page = macros(root, entry)
        found.folklore("numbers")
        said.append(page.html)
    assert said[0] == said[1]


def test_numbers_that_a_script_printed_can_be_compared(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sides = "less: {line: [a table, few]}, than: {line: 64, which: 2}"
    entry = NUMBERS.format(relation="less", other="eager").replace("shape: 8x4, less: ours, than: eager", sides)
    found, page = macros(root, entry.replace("    comparisons", "    output: table\n    comparisons"))
    asked = []

    def captured(section: str, *line: str, which: int, of: str) -> Shown:
        asked.append((section, of, *line, which))
        return found.gpu("ours" if line[-1] == "few" else "eager", "small")

    monkeypatch.setattr(found, "captured", captured)
    found.folklore("numbers")
    assert asked == [("table", "sums", "a table", "few", 1), ("table", "sums", "64", 2)]
    assert "True at this point. 1.00 ms and 2.00 ms (at 8 rows)." in text(page.html[0])


def test_a_belief_may_be_about_another_machine(root: Path) -> None:
    rows = [tiny.row(root, time=took(3)), tiny.row(root, variant="eager", time=took(2))]
    tiny.write(root, tiny.record(root, rows, day=2, machine=tiny.LAPTOP))
    at = "    machine: laptop\n    because"
    for entry in (
        ENTRY.replace("[8x4, 16x4]", "[8x4]").format(id="numbers", relation="faster"),
        NUMBERS.format(relation="less", other="eager"),
    ):
        found, page = macros(root, entry.replace("    because", at))
        found.folklore("numbers")
        assert "Wrong at this " in text(page.html[0]) and "NVIDIA H100" not in str(page.evidence.entries)


def test_the_list_has_all_with_a_link(root: Path) -> None:
    both = [ENTRY.format(id="a", relation="faster"), ENTRY.format(id="b", relation="slower")]
    found, page = macros(root, *both, at="folklore.md")
    found.folklore()
    assert text(page.html[0]).count("Not always: true at 1 of 2.") == 2
    assert text(page.html[0]).count("More: Sums.") == 2
    assert re.findall(r'href="(\.\./sums/#\w)"', page.html[0]) == ["../sums/#a", "../sums/#b"]


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        (ENTRY.format(id="a", relation="faster").replace("    because: It adds.\n", ""), "expected because, too"),
        (ENTRY.format(id="a", relation="faster").replace("mode", "modes"), "expected mode, too"),
        (ENTRY.format(id="a", relation="faster") + "    so: no\n", "unknown so"),
        (2 * ENTRY.format(id="a", relation="faster"), "two entries have the id 'a'"),
        (ENTRY.format(id="a", relation="faster").replace("16x4", "32x4"), "folklore 'a': shape of kernels/add"),
        (ENTRY.format(id="a", relation="quicker"), "unknown quicker"),
        (
            ENTRY.format(id="a", relation="faster").replace("    than: eager\n", ""),
            "expected one of faster, .*, and what",
        ),
        (
            NUMBERS.format(relation="more", other="eager").replace("numbers\n", "a\n").replace("where", "at"),
            "unknown at",
        ),
        (NUMBERS.format(relation="more", other="{side: ours}").replace("numbers\n", "a\n"), "unknown side"),
        (ENTRY.format(id="b", relation="faster"), "folklore: id"),
    ],
)
def test_a_faulty_entry_stops_the_build(root: Path, entry: str, said: str) -> None:
    found, _ = macros(root, entry)
    with pytest.raises(PublishError, match=said):
        found.folklore("a")


# ---- the entries of the site ----------------------------------------------------------------------------------------


def test_every_entry_stands_on_its_page_and_types_no_result() -> None:
    entries = folklore.entries(ROOT)
    lost = [each.anchor for each in entries if f'{{{{ folklore("{each.anchor}") }}}}' not in pages.texts()[each.page]]
    assert not lost, f"not on their pages: {lost}"
    typed = {each.anchor: found for each in entries if (found := list(literals(f"# A\n\n{each.words['because']}\n")))}
    assert not typed
    assert not [each.anchor for each in entries if not each.words["belief"].endswith((".", "?"))]
