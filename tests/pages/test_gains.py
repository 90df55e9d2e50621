"""What kernels gain: side by side numbers of one run, a worst point that nobody chose, and verdicts that follow."""

import re
from html import unescape
from pathlib import Path

import pytest

from docs.publish.errors import PublishError
from docs.publish.macros import gains
from docs.publish.macros.catalogue import Macros
from docs.publish.macros.page import Page
from docs.publish.place import kernel_files
from tests.benchmarks.source import ROOT
from tests.pages import tiny

READ = "docs/pages", "snippets/**/*.py", "tests/benchmarks"  # through docs.publish

SHAPE, WIDE = {"rows": 8, "columns": 4}, {"rows": 8, "columns": 8}
BLOCK = {"batch": 4, "tokens": 2, "width": 2}
SIDES = {"eager": 3.0, "compile": 1.5, "liger": 1.2, "quack": 1.1}  # ms, where ours takes 1 ms
PAGE = "---\ntitle: Sum\nlevel: advanced\ntypical: 8x4\n---\n\n# Sum\n"
LICENCE = "# SPDX-License-Identifier: MIT\n"
FILE = f'{LICENCE}"""Adds: one file.\n\n    y = a + b    of all\n\nNames: a and b.\n\n    no = formula\n"""\n{tiny.ADD}'


@pytest.fixture
def root(root: Path) -> Path:
    (root / "docs/pages/kernels").mkdir()
    (root / "docs/pages/kernels/add.md").write_text(PAGE)
    (root / tiny.KERNEL).write_text(FILE)
    return root


def point(root: Path, shape: dict[str, int], sides: dict[str, float], **changed: str) -> list[dict]:
    """The rows of ours, at one millisecond, and of other sides beside it."""
    times = {"ours": 1.0} | sides
    few = {"bytes_read": 1, "bytes_written": 1, "flops": 1}  # no side exceeds what the GPU can do
    return [
        tiny.row(root, shape=shape, variant=name, time=tiny.took(ms), **few, **changed) for name, ms in times.items()
    ]


def macros(root: Path, *rows: list[dict]) -> tuple[Macros, Page]:
    tiny.write(root, tiny.record(root, [row for of_point in rows for row in of_point]))
    return tiny.macros(root, "kernels/index.md")


def lines(html: str) -> list[list[str]]:
    """The cells of a table's lines, as text."""
    rows = re.findall(r"<tr>(.*?)</tr>", html, re.S)
    cells = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.S) for row in rows]
    return [[unescape(re.sub(r"<[^>]+>", "", cell)).replace("\xa0", " ") for cell in row] for row in cells]


def shown(root: Path, what: str, *rows: list[dict]) -> list[list[str]]:
    known, page = macros(root, *rows)
    known.kernels(what)
    return lines(page.html[-1])


def test_a_page_shows_the_gains_at_its_shapes_and_in_the_block(root: Path):
    known, page = macros(
        root, point(root, SHAPE, SIDES), point(root, WIDE, SIDES), point(root, BLOCK, {"compile": 0.9})
    )
    known.gains("small")
    assert lines(page.html[-1]) == [
        ["ours over", "eager", "compile", "best library"],
        ["forward, 8 × 4", "3.00×", "1.50×", "quack 1.10×"],
        ["forward, compiled block of 4 × 2 × 2", "–", "0.900×", "–"],
    ]
    assert "command" in page.evidence.entries["e1"], "a number without its evidence"
    with pytest.raises(PublishError, match="point of kernels/add: expected one of small"):
        known.gains("smal")
    with pytest.raises(PublishError, match="case: expected one of kernels/add"):
        tiny.macros(root, case="kernels/ad")[0].gains("small")


def test_other_modes_are_no_gains(root: Path):
    known, page = macros(root, point(root, SHAPE, SIDES), point(root, SHAPE, {"eager": 0.1}, mode="calls"))
    known.gains("small")
    assert lines(page.html[-1])[1:] == [["forward, 8 × 4", "3.00×", "1.50×", "quack 1.10×"]]


def test_the_worst_point_is_found_and_the_typical_one_is_named(root: Path):
    rows = point(root, SHAPE, SIDES), point(root, WIDE, SIDES | {"liger": 0.5}), point(root, BLOCK, {"compile": 0.1})
    assert shown(root, "worst", *rows)[1:] == [["Sum, forward, 8 × 8", "3.00×", "1.50×", "Liger 0.500×"]]
    assert shown(root, "typical", *rows)[1:] == [["Sum, forward, 8 × 4", "3.00×", "1.50×", "quack 1.10×"]]
    assert shown(root, "block", *rows)[1:] == [["Sum, forward, compiled block of 4 × 2 × 2", "0.100×"]]


def verdicts(root: Path, *rows: list[dict]) -> list[str]:
    """What the only kernel's line says of eager code, of compiled blocks, and of compiled code with nothing to fuse."""
    name, *said = shown(root, "verdicts", *rows)[1]
    assert name == "Sumy = a + b"
    return said


@pytest.mark.parametrize(
    ("steps", "verdict"),
    [
        ([1.1], "Use it: a step is faster at 4 × 2 × 2 × 0."),
        ([1.1, 1.0], "Use it: a step is faster at 4 × 2 × 2 × 0. No difference to a step at 4 × 2 × 2 × 1."),
        ([0.98, 1.02], "No difference to a step at 4 × 2 × 2 × 0 and 4 × 2 × 2 × 1."),
        ([0.9], "Use PyTorch's operation: a step is slower with the kernel at 4 × 2 × 2 × 0."),
        ([], "No compiled block was timed with it."),
    ],
)
def test_a_verdict_on_compiled_blocks_names_each_block(steps: list[float], verdict: str, root: Path):
    blocks = [point(root, BLOCK | {"cap": cap}, {"compile": ms}, direction="both") for cap, ms in enumerate(steps)]
    forward = point(root, BLOCK, {"compile": 9.0})  # a whole step decides
    assert verdicts(root, point(root, SHAPE, SIDES), forward, *blocks)[1] == verdict


@pytest.mark.parametrize(
    ("forward", "backward", "verdict"),
    [
        ([1.1, 1.1, 1.1], [1.1, 1.1, 1.1], "Use it: faster than PyTorch's operation at 4 to 16 columns."),
        ([1.0, 1.02, 1.0], [1.0, 0.98, 1.0], "No difference: PyTorch's operation is as fast at 4 to 16 columns."),
        ([1.0, 1.1, 1.1], [1.1, 1.1, 1.1], "Forward: faster from 8 columns on, else no difference. "
         "Backward: faster at every size."),
        ([1.1, 1.0, 1.1], [0.9, 1.0, 0.9], "Forward: faster at 4 and 16 columns, else no difference. "
         "Backward: slower at 4 and 16 columns, else no difference."),
        ([1.1, 0.9, 1.0], [1.0, 1.0, 1.1], "Forward: faster at 4 columns, slower at 8 columns, else no difference. "
         "Backward: faster at 16 columns, else no difference."),
    ],
)  # fmt: skip
def test_a_verdict_says_at_which_sizes_it_holds(forward: list[float], backward: list[float], verdict: str, root: Path):
    rows = []
    for direction, sides in (("forward", forward), ("backward", backward)):
        for columns, ms in zip((4, 8, 16), sides, strict=True):
            rows.append(point(root, {"rows": 8, "columns": columns}, {"eager": ms}, direction=direction))
    other = point(root, SHAPE, {"eager": 0.1, "liger": 0.1}, part="halves")  # of another kind: its page has it
    assert verdicts(root, *rows, other)[0] == verdict


def test_a_verdict_names_a_faster_peer_and_counts_every_knob_of_the_compiler(root: Path):
    narrow = point(root, SHAPE, {"eager": 3.0, "compile": 1.5, "compile-max": 1.4, "quack": 1.0})
    wide = point(root, WIDE, {"eager": 3.0, "compile": 1.5, "compile-max": 1.0, "quack": 0.9})
    assert verdicts(root, narrow, wide) == [
        "Use it: faster than PyTorch's operation at 4 to 8 columns. Forward at 8 columns, quack is faster.",
        "No compiled block was timed with it.",
        "Forward: faster at 4 columns, else no difference.",
    ]


def test_a_side_that_was_not_timed_gives_no_verdict(root: Path):
    assert verdicts(root, point(root, SHAPE, {"eager": 3.0}))[2] == "Not timed."


def test_a_kernel_without_records_waits_and_one_without_a_typical_shape_stops_the_build(root: Path):
    (root / "kernels/more.py").write_text(FILE)
    rows = point(root, SHAPE, SIDES)
    assert [line[0] for line in shown(root, "typical", rows)[1:]] == ["Sum, forward, 8 × 4"]
    with pytest.raises(PublishError, match="kernels: expected one of verdicts, typical, worst, block; got 'best'"):
        shown(root, "best", rows)
    (root / "docs/pages/kernels/add.md").write_text(PAGE.replace("typical", "small"))
    with pytest.raises(PublishError, match=r'kernels/add.md: expected a line "typical: 32768x4096"'):
        shown(root, "verdicts", rows)


def test_every_kernel_says_in_a_formula_what_it_computes():
    formulas = {name: gains._formula(ROOT, name) for name in kernel_files()}
    assert not [name for name, lines in formulas.items() if not lines or not all(" = " in line for line in lines)]


def test_a_kernels_page_answers_first():
    """A verdict, what it gains, the file and lines to paste; what specialists need stands on a page beside it."""
    wrong = []
    for name in kernel_files():
        page = ROOT / "docs" / "pages" / "kernels" / f"{name.replace('_', '-')}.md"
        text = page.read_text(encoding="utf-8")
        gains = ["{{ gains("] if "{{ losses(" in text else []  # a kernel that no H100 has timed has neither
        order = ['<div class="rp-verdict"', *gains, f'{{{{ kernel_file("{name}")', f"from {name} import ", "\n## "]
        if not all(part in text for part in order) or sorted(order, key=text.index) != order:
            wrong.append(f"{page.name}: expected {order} in this order")
        if not any(page.with_name(f"{page.stem}-{what}.md").is_file() for what in ("internals", "steps")):
            wrong.append(f"{page.stem}-internals.md is missing, and so is {page.stem}-steps.md")
    assert not wrong, "\n".join(wrong)
