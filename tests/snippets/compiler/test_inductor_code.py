"""What is read off Inductor: graphs, kernels that compile again, launches, and bytes that a count by hand confirms."""

import ast
import re

import pytest
import torch

from snippets.compiler import inductor_code
from snippets.compiler.inductor_code import made, rms_norm
from snippets.compiler.inductor_code_chosen import Refused
from snippets.compiler.inductor_code_launches import Made
from snippets.compiler.inductor_code_standalone import standalone
from snippets.compiler.what_compile_does import unit_rows
from tests.benchmarks.captures import sections

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

ROWS, COLUMNS, WIDTH = 32, 256, 4
WHOLE, ROW, COLUMN = ROWS * COLUMNS * WIDTH, COLUMNS * WIDTH, ROWS * WIDTH


def make_inputs(count: int = 2) -> list[torch.Tensor]:
    torch.manual_seed(0)
    shapes = [(ROWS, COLUMNS), (COLUMNS,)] if count == 2 else [(ROWS, COLUMNS), (ROWS, COLUMNS), (COLUMNS,)]
    return [torch.randn(shape, device=DEVICE) for shape in shapes]


def names(result: Made) -> list[str]:
    return [launch.name for launch in result.launches]


def test_a_forward_is_one_kernel_that_moves_every_tensor_once():
    (result,) = made(rms_norm, *make_inputs())
    assert result.direction == "forward" and names(result) == list(result.kernels) and len(result.kernels) == 1
    assert result.bytes == 2 * WHOLE + ROW
    assert result.launches[0].bytes - result.bytes in (0, COLUMN)  # in C++ the sums of squares wait in memory


def test_another_forward_too():
    (result,) = made(unit_rows, *make_inputs(3))
    assert len(result.kernels) == len(result.launches) == 1
    assert result.bytes == 3 * WHOLE + ROW


def test_the_graph_is_the_one_after_the_passes():
    (result,) = made(rms_norm, *make_inputs())
    assert "rms_norm" not in result.graph.partition("\n")[2].replace("torch.rms_norm", "")  # decomposed
    assert "torch.ops.aten.rsqrt.default" in result.graph and f'"f32[{ROWS}, 1]"' in result.graph


def test_inputs_that_require_gradients_get_a_backward():
    x, weight = make_inputs()
    forward, backward = made(rms_norm, x.requires_grad_(), weight.requires_grad_())
    assert (forward.direction, backward.direction) == ("forward", "backward")
    assert forward.bytes == 2 * WHOLE + ROW + COLUMN, "and a number a row, for the backward"
    assert backward.kernels and set(backward.kernels) <= set(names(backward))
    moved = sum(launch.bytes for launch in backward.launches)
    assert backward.bytes >= 3 * WHOLE and moved >= 3 * WHOLE  # x and dy read, dx written


@pytest.mark.skipif(DEVICE == "cuda", reason="how often a C++ kernel reads its inputs")
def test_the_count_takes_each_loop_of_a_kernel_by_itself():
    x, weight = make_inputs()
    backward = made(rms_norm, x.requires_grad_(), weight.requires_grad_())[1]
    one_loop, other = 2 * WHOLE + COLUMN + ROW, 3 * WHOLE + COLUMN + ROW  # dweight, dx
    assert backward.bytes == one_loop + other
    (launch,) = backward.launches  # which gets them once, and room for a sum of each row
    assert launch.bytes == 3 * WHOLE + 2 * ROW + 2 * COLUMN


def test_a_second_look_at_the_same_function_sees_the_same():
    inputs = make_inputs()
    first, second = made(rms_norm, *inputs), made(rms_norm, *inputs)
    assert [result.bytes for result in first] == [result.bytes for result in second]
    assert [names(result) for result in first] == [names(result) for result in second]


@pytest.mark.skipif(DEVICE == "cuda", reason="C++ for a CPU")
def test_a_cpp_kernel_is_whole():
    (result,) = made(rms_norm, *make_inputs())
    (source,) = result.kernels.values()
    assert source.startswith("#include") and re.search(r"void +kernel\(", source)
    assert source.count("{") == source.count("}")


@pytest.mark.skipif(DEVICE == "cpu", reason="launches of Triton kernels")
def test_a_triton_launch_says_all_that_compiling_again_takes(tmp_path):
    from snippets.validation.compiled_code import TARGETS, compile_for, facts, load, source_of

    target = "sm_{}{}".format(*torch.cuda.get_device_capability())
    if target not in TARGETS:
        pytest.skip(f"the tool does not compile for {target}")
    (result,) = made(rms_norm, *make_inputs())
    (launch,) = result.launches
    (tmp_path / "kernels.py").write_text(standalone(result.kernels))
    kernel = load(f"{tmp_path}/kernels.py:{launch.name}")
    source = source_of(kernel, launch.binary["signature"])
    compiled, _ = compile_for(source, target, **launch.binary["options"])
    assert facts(compiled, target).registers == launch.binary["registers"]


def test_a_function_that_computes_nothing_is_refused():
    with pytest.raises(Refused, match="computes nothing"):
        made(lambda x: x, torch.ones(3))


def test_a_graph_break_is_refused():
    def broken(x: torch.Tensor) -> torch.Tensor:
        return x + 1 if x.sum() > 0 else x - 1

    with pytest.raises(torch._dynamo.exc.Unsupported):
        made(broken, torch.ones(3))


def test_a_torch_that_keeps_its_parts_elsewhere_is_named(monkeypatch):
    monkeypatch.setattr(inductor_code, "kernels_of", lambda module: module.bdoy)
    with pytest.raises(Refused, match=f"torch {torch.__version__.split('+')[0]}.*bdoy"):
        made(rms_norm, *make_inputs())


def test_the_sources_of_a_generated_module_are_found_by_name():
    module = (
        "a = 1\nk_0 = async_compile.triton('k_0', '''\nsource of it\n''', device_str='cuda')\nasync_compile.wait({})\n"
    )
    assert inductor_code.kernels_of(ast.parse(module)) == ("triton", {"k_0": "source of it\n"})
    assert inductor_code.kernels_of(ast.parse("a = 1")) == ("", {})


def test_the_script_prints_four_sections_for_each_graph(script):
    printed = sections(script("snippets.compiler.inductor_code").stdout)
    graphs = ("rms_norm forward", "rms_norm backward", "unit_rows forward")
    parts = ("graph", "kernels", "launches", "counts")
    assert list(printed) == [f"{graph}, {part}" for graph in graphs for part in parts]
