"""Components and functions of one's own side by side: what is right is timed, and what is not is said in a line."""

import ast
import dataclasses
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from snippets.patterns import compare_levels
from snippets.patterns.compare_levels import COMPONENTS, Refused, compare, component, main
from snippets.patterns.levels import LEVELS
from tests.benchmarks.runner import discover, load

READ = "snippets/**/*.py", "tests/benchmarks"  # by what finds the cases

CPU = torch.device("cpu")


def plain(x: Tensor, weight: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], weight)


def without_weight(x: Tensor, weight: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:]) + 0 * weight


def wrong_gradient(x: Tensor, weight: Tensor) -> Tensor:
    return plain(x, weight.detach() + 0.9 * (weight - weight.detach()))


def refuses(x: Tensor, weight: Tensor) -> Tensor:
    raise ValueError("x: expected 7 columns")


@pytest.fixture
def inputs() -> dict[str, Tensor]:
    torch.manual_seed(0)
    return {"x": torch.randn(16, 32), "weight": torch.randn(32)}


# ---- functions of one's own -----------------------------------------------------------------------------------------


def test_what_agrees_is_timed_forward_and_backward(inputs: dict[str, Tensor]) -> None:
    found = compare({"one": plain, "two": plain}, inputs, ["x", "weight"], rounds=2)
    assert found.agree
    assert all(line.forward and line.step and 0 <= line.error <= 1 for line in found.lines)


def test_each_that_is_wrong_has_one_line_and_no_time(inputs: dict[str, Tensor]) -> None:
    functions = {"right": plain, "bare": without_weight, "off": wrong_gradient, "refuses": refuses}
    found = compare(functions, inputs, ["x", "weight"], rounds=2)
    problems = {line.name: line.problem for line in found.lines}
    assert not found.agree
    assert not problems["right"]
    assert problems["bare"].startswith("disagrees with float64: output: ")
    assert problems["off"].startswith("disagrees with float64: weight.grad: ")
    assert problems["refuses"] == "does not run: ValueError: x: expected 7 columns"
    assert not any(line.forward or line.step for line in found.lines if line.problem)
    assert all("\n" not in problem for problem in problems.values())
    lines = str(found).splitlines()
    assert [sum(line.startswith(name) for line in lines) for name in functions] == [1, 1, 1, 1]


def test_a_wrong_gradient_is_seen_only_where_there_is_one(inputs: dict[str, Tensor]) -> None:
    assert compare({"right": plain, "off": wrong_gradient}, inputs, rounds=0).agree


RESULTS = {  # of other kinds: a function, the same otherwise, and a wrong one
    "integers": (lambda x: x.argmax(-1), lambda x: x.topk(1).indices[..., 0], lambda x: x.argmax(-1) + 1),
    "numbers and integers": (
        lambda x: (x.exp(), x > 0), lambda x: (x.exp(), x.sign() > 0), lambda x: (x.exp(), x <= 0)),
    "complex numbers": (
        lambda x: torch.polar(x.exp(), x), lambda x: (x + 1j * x).exp(), lambda x: torch.polar(x.exp(), -x)),
    "a wrong gradient": (
        lambda x: torch.complex(x, -x), lambda x: x * (1 - 1j), lambda x: torch.complex(x.detach(), -x)),
}  # fmt: skip


@pytest.mark.parametrize("kind", RESULTS)
@pytest.mark.parametrize("rows", [16, 0])
def test_results_of_every_kind_are_compared(kind: str, rows: int) -> None:
    plain, other, wrong = RESULTS[kind]
    found = compare({"one": plain, "two": other, "off": wrong}, {"x": torch.randn(rows, 32)}, ["x"], rounds=2)
    assert [bool(line.problem) for line in found.lines] == [False, False, rows > 0]


def test_complex_inputs_are_widened() -> None:
    x = torch.randn(16, 32, dtype=torch.cfloat)
    found = compare({"one": lambda x: x * x, "two": torch.square, "off": torch.abs}, {"x": x}, ["x"], rounds=0)
    assert [bool(line.problem) for line in found.lines] == [False, False, True]


def test_nothing_to_compare_is_said_in_a_line() -> None:
    for functions, given in (({}, {"x": torch.ones(2)}), ({"one": plain}, {"x": 2})):
        with pytest.raises(Refused, match="expected at least one implementation, and a tensor among the inputs"):
            compare(functions, given)


def test_a_first_function_that_is_wrong_is_no_yardstick(inputs: dict[str, Tensor]) -> None:
    found = compare({"off": without_weight, "right": plain}, inputs, reference=plain, yardstick="right", rounds=0)
    assert [bool(line.problem) for line in found.lines] == [True, False]


def test_the_chart_is_one_svg_with_all_that_is_known(inputs: dict[str, Tensor]) -> None:
    found = compare({"right": plain, "<bare>": without_weight}, inputs, ["x"], rounds=2)
    svg = ElementTree.fromstring(found.chart())
    texts = "".join(svg.itertext())
    assert "forward and backward" in texts
    assert "<bare>: disagrees" in texts
    bars = [bar for bar in svg.iter("{http://www.w3.org/2000/svg}rect") if "x" in bar.attrib]
    assert len(bars) == 2  # of the one that is right
    assert "http" not in found.chart().replace("http://www.w3.org/2000/svg", "")


# ---- the command ----------------------------------------------------------------------------------------------------


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, list[str], list[str]]:
    status = main(arguments)
    said = capsys.readouterr()
    return status, said.out.splitlines(), said.err.splitlines()


def test_levels_are_compared_and_the_chart_is_written(capsys, tmp_path: Path) -> None:
    chart = tmp_path / "levels.svg"
    asked = ("layer_norm_gelu", "--shape", "8x64", "--dtype", "float32", "--levels", "0", "1", "--chart", str(chart))
    status, out, err = run(capsys, *asked)
    assert (status, err) == (0, [])
    assert out[0].startswith("layer_norm_gelu, 8 x 64, float32, ")
    assert [line.split("  ")[0] for line in out if line[0].isdigit()] == [f"{n} {LEVELS[n]}" for n in (0, 1)]
    ElementTree.parse(chart)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("layer_nrm",), "no component 'layer_nrm': did you mean layer_norm?"),
        (("layer_norm", "--shape", "8x"), "--shape: expected rows x columns, such as 8192x4096, got '8x'"),
        (("layer_norm", "--shape", "8"), "--shape: expected rows x columns, such as 8192x4096, got '8'"),
        (("layer_norm", "--dtype", "int8"), "--dtype: expected float32, bfloat16, float16, got 'int8'"),
        (("layer_norm", "--levels", "9"), "layer_norm has no level 9: expected one of "),
    ],
)
def test_what_is_unknown_is_one_line_and_status_2(capsys, arguments: tuple[str, ...], said: str) -> None:
    status, out, err = run(capsys, *arguments)
    assert (status, out, len(err)) == (2, [], 1)
    assert err[0].startswith(said)


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU runs it")
def test_a_level_that_cannot_run_here_is_one_line_and_status_2_if_asked_for(capsys) -> None:
    status, out, err = run(capsys, "layer_norm", "--levels", "4")
    assert (status, out, err) == (2, [], ["level 4, Triton, cannot run here: needs a GPU to be timed"])


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU runs it")
def test_without_a_gpu_level_4_is_checked_in_the_interpreter() -> None:
    of = dataclasses.replace(component("rms_norm"), levels={n: component("rms_norm").levels[n] for n in (0, 1, 4)})
    found = compare_levels.compare_levels(of, (4, 64), torch.float32, CPU, rounds=0)
    assert found.notes == [
        "4 Triton: needs a GPU to be timed; at 4 x 256 in Triton's interpreter it agrees with float64"
    ]
    assert [line.name[0] for line in found.lines] == ["0", "1"]


def test_a_level_that_disagrees_is_status_1(capsys, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    of = component("rms_norm")
    off = dataclasses.replace(of, levels={**of.levels, 0: lambda: lambda x, weight: 1.01 * of.reference(x, weight)})
    monkeypatch.setattr(compare_levels, "component", lambda name: off)
    asked = ("rms_norm", "--shape", "8x64", "--dtype", "float32", "--levels", "0", "1", "--chart")
    status, out, _ = run(capsys, *asked, str(tmp_path / "levels.svg"))
    assert status == 1
    assert sum("disagrees with float64: output" in line for line in out) == 1


def test_a_library_that_is_missing_leaves_its_level_out() -> None:
    of = component("rms_norm")

    def missing() -> None:
        raise ModuleNotFoundError("No module named 'cuda'")

    without = dataclasses.replace(of, levels={1: of.levels[1], 2: missing})
    found = compare_levels.compare_levels(without, (4, 64), torch.float32, CPU, rounds=0)
    assert found.notes == ["2 TorchScript: No module named 'cuda'"]
    with pytest.raises(Refused, match="level 2, TorchScript, cannot run here: No module named 'cuda'"):
        compare_levels.compare_levels(without, (4, 64), torch.float32, CPU, wanted=(2,), rounds=0)


# ---- the list of components -----------------------------------------------------------------------------------------


def test_every_component_is_listed_and_every_listed_one_is_there(capsys) -> None:
    status, out, _ = run(capsys, "--list")
    assert (status, [line.split()[0] for line in out]) == (0, list(COMPONENTS))
    for name, snippet in COMPONENTS.items():
        of = component(name)
        assert of.shapes.keys() == {"tiny", "small", "typical", "large"}
        assert {0, 1} <= of.levels.keys() <= LEVELS.keys()
        assert f"patterns/{snippet.replace('_', '-')}" in discover()


def test_a_case_has_the_components_of_its_file_in_their_order() -> None:
    """Their numbers, by which the pages ask for them, are their places."""
    for snippet in set(COMPONENTS.values()):
        case = load(discover()[f"patterns/{snippet.replace('_', '-')}"])
        of = [component(name) for name, where in COMPONENTS.items() if where == snippet]
        for point in case.points(torch.device("cuda")):
            if "component" not in point.shape:
                continue  # what else the page measures
            number, *sizes = point.shape.values()
            assert tuple(sizes) in of[number - 1].shapes.values()
        source = Path(compare_levels.__file__).with_name(f"{snippet}.py").read_text()
        order = next(node.value for node in ast.parse(source).body if isinstance(node, ast.Assign)
                     and ast.unparse(node.targets[0]) == "COMPONENTS")  # fmt: skip
        assert [each.id.lower() for each in order.elts] == [each.name for each in of]
