"""What the logs, the debug folder and the provenance of a compilation say of the page's function."""

import logging

import pytest
import torch
from torch._logging._internal import log_registry, log_state

from snippets.compiler import reading_the_output
from snippets.compiler.reading_the_output import CAUSED, LOGS, TRITON, clipped, folder_of, inputs, logged, shown, step
from snippets.compiler.reading_the_output_provenance import compiled_anew, kernels_of_lines, lines_of_kernels
from snippets.compiler.reading_the_output_triton import block


def quickly() -> None:
    """A call that Inductor compiles for: forward only, without a product."""
    torch.compile(torch.nn.functional.silu, dynamic=False)(torch.ones(64))


@pytest.mark.parametrize("name", [*CAUSED, *LOGS, *TRITON])
def test_each_log_of_the_page_exists_in_the_installed_torch(name):
    assert name in log_registry.artifact_names


def test_a_log_that_does_not_exist_is_named():
    with pytest.raises(ValueError, match=r"has no log called graph_brakes"), logged("graph_brakes"):
        pass


def test_a_log_is_kept_by_name_and_the_loggers_are_as_before():
    logger = logging.getLogger("torch._dynamo.output_graph.__graph_code")
    before = logger.level, logger.propagate, list(logger.handlers), set(log_state.artifact_names)
    torch.compiler.reset()
    with logged("graph_code") as entries:
        torch.compile(block, backend="eager")(*inputs())
    assert (logger.level, logger.propagate, logger.handlers, log_state.artifact_names) == before
    (entry,) = entries["graph_code"]
    assert "hidden = F.silu(x @ up) * scale" in entry and "torch.nn.functional.softmax" in entry


def test_a_break_and_a_recompilation_are_logged_with_their_cause():
    torch.compiler.reset()
    with logged(*CAUSED) as entries:
        torch.compile(clipped, backend="eager")(torch.ones(4))
        compiled = torch.compile(block, backend="eager")
        for rows in (64, 48):
            compiled(*inputs(rows))
    (broken,), (again,) = entries["graph_breaks"], entries["recompiles"]
    assert "Data-dependent branching" in broken and "User code traceback" not in shown(broken)
    assert "size mismatch at index 0. expected 64, actual 48" in again


def test_every_kernel_is_led_back_to_its_line_and_every_line_to_its_kernels():
    folder_of(step)  # what it noted must not be told again
    forward, backward = lines_of_kernels(step)
    for graph, lines in ((forward, 4), (backward, 6)):
        assert len(graph) >= lines and all(len(places) == 1 for places in graph.values()), "none spans both lines"
    first, second = kernels_of_lines((forward, backward)).items()
    assert first[0].endswith("hidden = F.silu(x @ up) * scale")
    assert second[0].endswith("return F.softmax(hidden @ down, dim=-1)")
    assert sum(name.startswith("extern_kernels.mm") for name in (*first[1], *second[1])) == 6
    assert sorted(int(name.rpartition(":")[2]) for name in backward) == list(range(1, len(backward) + 1))
    assert len(first[1]) + len(second[1]) == len(forward) + len(backward)


def test_the_debug_folder_holds_the_graph_and_the_code():
    names = {name.rpartition("/")[2]: lines for name, lines in folder_of(quickly).items()}
    assert {"fx_graph_readable.py", "fx_graph_runnable.py", "fx_graph_transformed.py", "output_code.py"} <= set(names)
    assert {"ir_pre_fusion.txt", "ir_post_fusion.txt"} <= set(names)
    assert any("async_compile" in line for line in names["output_code.py"])


def test_logs_that_show_code_show_all_of_it():
    with logged("kernel_code", "output_code") as entries, compiled_anew():
        quickly()
    (kernel,) = entries["kernel_code"]
    assert any("silu" in entry for entry in entries["output_code"]) and "silu" in kernel + entries["output_code"][0]


def test_what_differs_between_machines_is_left_out():
    entry = (
        "# File: /home/me/snippets/compiler/a.py:30 in block, code: return x\n __compiled_fn_3_ab12_cd /x/torch/fx/a.py"
    )
    assert shown(entry) == "# a.py:30 in block: return x\n __compiled_fn torch/fx/a.py"
    assert reading_the_output.artifact("torch._inductor.scheduler.__fusion") == "fusion"
