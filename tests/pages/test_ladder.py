"""What each level gains over those below, from one run; and lines of code, counted in the source."""

import ast
from pathlib import Path

import pytest

from docs.publish.errors import PublishError
from docs.publish.macros import ladder
from tests.benchmarks.source import ROOT
from tests.pages import tiny
from tests.pages.test_gains import lines

READ = "docs/pages", "snippets/**/*.py", "tests/benchmarks"  # through docs.publish

TOOL = 'COMPONENTS = {"doubled": "sums"}\n'
SNIPPET = '''"""Sums."""

from kernels.add_cuda import add_cuda
from kernels.add import add
from snippets.patterns.levels import Component, compiled

SHAPES = {"tiny": (2, 2), "small": (4, 4), "typical": (8, 4), "large": (16, 4)}


def other(x):
    return x


def plain(x):
    """Twice."""
    # a comment

    return helper(x) + other(
        x
    )


def helper(x):
    return plain(x) if x else x


OTHER = Component(name="other", levels={0: lambda: other}, shapes=SHAPES)
DOUBLED = Component(
    name="doubled",
    levels={
        0: lambda: plain,
        3: lambda: compiled(other),
        4: lambda: add,
        5: lambda: add_cuda,
    },
    shapes=SHAPES,
)
COMPONENTS = (OTHER, DOUBLED)
'''
CUDA_PY = '"""Adds."""\n\nimport torch\n\n\ndef add_cuda(x):\n    return x\n'
CUDA = "/* a\n * comment */\n\n// another\n__global__ void add() {  // adds\n}\n"


@pytest.fixture
def root(root: Path) -> Path:
    (root / "snippets/patterns").mkdir(parents=True)
    (root / ladder.TOOL).write_text(TOOL)
    (root / "snippets/patterns/sums.py").write_text(SNIPPET)
    (root / "kernels/add_cuda.py").write_text(CUDA_PY)
    (root / "kernels/add.cu").write_text(CUDA)
    return root


def rows(root: Path, shape: tuple[int, int], mode: str = "device", direction: str = "both", **ms: float) -> list[dict]:
    """Of the second component, by level."""
    few = {"bytes_read": 1, "bytes_written": 1, "flops": 1, "case": "patterns/sums", "mode": mode}
    size = {"rows": shape[0], "columns": shape[1]}
    named = {f"level-{name.removeprefix('at')}": time for name, time in ms.items()}
    return [
        tiny.row(root, part="doubled", shape=size, variant=name, time=tiny.took(time), direction=direction, **few)
        for name, time in named.items()
    ]


def shown(root: Path, *found: list[dict], names: tuple[str, ...] = ()) -> list[list[str]]:
    tiny.write(root, tiny.record(root, [row for of_point in found for row in of_point]))
    macros, page = tiny.macros(root, "patterns/index.md")
    macros.ladder(*names)
    return lines(page.html[0])


def test_lines_are_those_with_code_of_all_that_a_level_takes(root: Path) -> None:
    (component,) = ladder.components(root)
    assert component.case == "patterns/sums"
    # plain has four lines and takes helper and other; the compiler's call is one; a kernel is its file, and its .cu
    assert component.lines == {0: 4 + 2 + 2, 3: 2 + 1, 4: 2, 5: 3 + 2}


def test_a_level_is_held_against_the_best_below_it(root: Path) -> None:
    typical = rows(root, (8, 4), at0=8.0, at3=2.0, at4=4.0, at5=1.0)
    large = rows(root, (16, 4), at0=8.0, at3=16.0, at4=4.0)
    small = rows(root, (4, 4), at0=2.0, at3=4.0)
    forward = rows(root, (4, 4), "calls", "forward", at0=1.0, at3=3.0)
    head, *body = shown(root, typical, large, small, forward)
    assert head[1:4] == ["small", "typical", "large"]
    gains = [line[1:4] for line in body]
    assert gains == [
        ["2.00 ms", "8.00 ms", "8.00 ms"],
        ["0.500×", "4.00×", "0.500×"],
        ["–", "0.500×", "2.00×"],  # of the best below, which is not always the next
        ["–", "2.00×", "–"],
    ]
    assert [line[4] for line in body] == ["8", "3", "2", "5"]
    assert [line[5] for line in body] == ["1.00 ms", "3.00 ms", "–", "–"]
    assert [line[6] for line in body] == ["2.50 s"] * 4
    assert body[0][0] == "doubled, 0 as first written"
    assert shown(root, typical, names=("doubled",))[1][0] == "0 as first written"


def test_a_class_that_a_level_takes_counts_with_what_it_calls(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    kept = "class Kept:\n    def forward(x):\n        return used(x)\n"
    path.write_text(f"{kept}\n\ndef used(x):\n    return x\n\n\ndef not_used(x): ...\n")
    assert ladder.lines_of(path, ast.parse("lambda: Kept.apply", mode="eval").body, tmp_path) == 3 + 2


def test_what_a_busy_machine_measured_is_left_out(root: Path) -> None:
    typical = rows(root, (8, 4), at0=8.0, at3=2.0)
    busy = [row | {"busy": "others ran"} for row in rows(root, (4, 4), "calls", "forward", at0=1.0, at3=3.0)]
    assert [line[5] for line in shown(root, typical, busy)[1:]] == ["–"] * 4


def test_another_mode_and_direction_is_no_gain(root: Path) -> None:
    graph, forward = rows(root, (8, 4), "graph", at0=1.0), rows(root, (8, 4), direction="forward", at0=1.0)
    assert shown(root, graph, forward) == []


def test_a_component_that_is_unknown_stops_the_build(root: Path) -> None:
    with pytest.raises(PublishError, match="ladder: component"):
        shown(root, rows(root, (8, 4), at0=1.0), names=("tripled",))


def test_a_list_that_names_what_a_file_lacks_stops_the_build(root: Path) -> None:
    (root / ladder.TOOL).write_text('COMPONENTS = {"tripled": "sums"}\n')
    with pytest.raises(PublishError, match="expected a component 'tripled'"):
        ladder.components(root)


def test_the_sources_say_what_the_tool_finds() -> None:
    from snippets.patterns.compare_levels import component

    for known in ladder.components(ROOT):
        of = component(known.name)
        assert known.lines.keys() == of.levels.keys()
        assert known.shapes == {name: "x".join(map(str, shape)) for name, shape in of.shapes.items()}
        assert all(known.lines.values())
