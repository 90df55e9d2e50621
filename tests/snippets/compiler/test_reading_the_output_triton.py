"""Triton for a GPU that is not there: it is what the GPU got, and the page reads it rightly."""

import functools
import json
import re
from pathlib import Path

import torch

from snippets.compiler.inductor_code_standalone import standalone
from snippets.compiler.reading_the_output_candidates import candidates
from snippets.compiler.reading_the_output_generated import Generated, generate
from snippets.compiler.reading_the_output_triton import SHAPES, block, settings
from snippets.compiler.what_compile_does import unit_rows
from tests.benchmarks import captures

ACCESSES = re.compile(r"tl\.(load|store)\((\w+ \+ \(.*?\)), ")


@functools.cache
def generated() -> tuple[Generated, Generated]:
    forward, backward = generate(block, SHAPES, torch.bfloat16)
    return forward, backward


@functools.cache
def generated_rows() -> Generated:
    (forward,) = generate(unit_rows, ((65536, 1024), (65536, 1024), (1024,)), torch.bfloat16, gradients=False)
    return forward


def on_a_gpu(part: str) -> str:
    return captures.contents("compiler/inductor_code", "cuda")[f"unit_rows forward, {part}"]


def test_it_is_the_kernel_that_a_gpu_of_this_kind_got():
    stored, kernel = on_a_gpu("kernels"), standalone(generated_rows().kernels)
    (run,) = {run["software"]["torch"] for run in captures.stored("compiler/inductor_code", "cuda")["runs"]}
    if run.partition("+")[0] == torch.__version__.partition("+")[0]:
        assert kernel == stored
    assert re.findall(r"def (\w+\(.*\)):", kernel) == re.findall(r"def (\w+\(.*\)):", stored)
    assert ACCESSES.findall(kernel) == ACCESSES.findall(stored), "the same values, in the same order"


def test_its_configuration_is_the_one_that_ran_there():
    ran = json.loads(on_a_gpu("launches"))["binary"]
    ((_, source),) = generated_rows().kernels.items()
    rule, ((constants, warps),) = candidates(source)
    assert rule == "Grid1D" and constants == ran["constants"] and warps == ran["options"]["num_warps"]


def test_a_comment_lists_the_operations_of_a_kernel_in_the_words_of_the_page():
    comments = re.findall(r"^# .*Source Nodes: \[(.*)\], Original ATen: \[(.*)\]$", generated_rows().code, re.MULTILINE)
    assert any("relu" in nodes and "aten.relu" in operations for nodes, operations in comments)


def test_both_directions_are_generated_with_their_calls_in_order():
    forward, backward = generated()
    assert (forward.direction, backward.direction) == ("forward", "backward")
    for graph, products, kernels in ((forward, 2, 2), (backward, 4, 4)):
        called = [re.match(r"(\w+)\.", call)[1] for call in graph.calls]
        assert called.count("extern_kernels") == products
        assert [name for name in called if name != "extern_kernels"] == list(graph.kernels)
        assert len(graph.kernels) == kernels


def test_names_say_the_kind_of_loop():
    kinds = [name.split("_")[1] for graph in generated() for name in graph.kernels]
    assert kinds == ["poi", "per", "per", "red", "per", "poi"]
    for graph in generated():
        for name, source in graph.kernels.items():
            looped = "for r0_offset in" in source
            assert looped == name.startswith("triton_red") and ("tl.sum" in source) == ("_poi_" not in name)


def test_every_launch_is_led_back_to_one_line():
    for graph in generated():
        assert len(graph.lines) == len(graph.calls)
        assert {line for lines in graph.lines.values() for line in lines} == {
            "hidden = F.silu(x @ up) * scale",
            "return F.softmax(hidden @ down, dim=-1)",
        }


def test_settings_leave_out_the_device():
    text = settings(generated()[0].kernels["triton_poi_fused_mul_silu_0"])
    assert text.startswith("@triton_heuristics.pointwise(") and "'grid_type': 'Grid1D'" in text
    assert "multi_processor_count" not in text and "backend_hash" not in text


def test_the_page_quotes_lines_that_are_there():
    page = (Path(__file__).parents[3] / "docs/pages/compiler/inductor-code.md").read_text()
    shown = captures.contents("compiler/reading_the_output_triton", "cpu")
    code = " ".join("\n".join(text for name, text in shown.items() if name.startswith("triton_")).split())
    section = page.partition("## Read generated kernels")[2].partition("\n## ")[0]
    quoted = re.findall(r"^\| `([^`]+)` \|", section, re.MULTILINE)
    assert len(quoted) >= 15
    for line in quoted:
        assert line in code
