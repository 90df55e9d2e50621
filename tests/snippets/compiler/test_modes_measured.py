"""What is timed, what is heard of the search, and what a graph keeps."""

from types import SimpleNamespace

import pytest
import torch
from torch._inductor.select_algorithm import get_algorithm_selector_cache

from snippets.compiler import modes_measured
from snippets.compiler.modes_measured import measured
from snippets.compiler.modes_workloads import WORKLOADS

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")

GPU = pytest.mark.skipif(DEVICE.type == "cpu", reason="a CPU has no CUDA graphs")
SMALL = {"norms": 2, "rows": 16, "columns": 256}


def test_what_computes_something_else_is_not_timed(monkeypatch):
    monkeypatch.setitem(WORKLOADS, "norms", SMALL)
    monkeypatch.setattr(
        modes_measured, "compiled", lambda module, mode: lambda *inputs: [1.1 * y for y in module(*inputs)]
    )
    with pytest.raises(RuntimeError, match="off by 10"):
        measured("norms", "default", DEVICE, torch.float32)


def test_the_first_three_calls_are_compiling_and_later_ones_are_not(monkeypatch):
    monkeypatch.setitem(WORKLOADS, "norms", SMALL)
    calls, timed = [], []

    def seconds(call, device) -> float:
        call()
        timed.append(len(calls))
        return 10.0 ** len(timed)

    monkeypatch.setattr(
        modes_measured, "compiled", lambda module, mode: lambda *inputs: calls.append(1) or module(*inputs)
    )
    monkeypatch.setattr(modes_measured, "seconds", seconds)
    row = measured("norms", "default", DEVICE, torch.float32)
    assert timed == [1, 2, 3]
    assert row["compile"] == 10 + 100 + 1000
    assert row["time"]["default"] > 0 and row["time"]["eager"] > 0


class ExternKernelCaller:
    """Named as Inductor's choice of a library's operation is."""


def test_the_search_is_heard():
    found: list = []
    node = SimpleNamespace(get_size=lambda: [4, 8])
    bias = SimpleNamespace(get_size=lambda: [8])
    ours = object()
    with modes_measured.search_heard(found):
        for save in get_algorithm_selector_cache().feedback_saver_fns:
            save({ExternKernelCaller(): 3.0, ours: 2.0}, "addmm", [bias, node, node], [], None, {})
            save({}, "mm", [node, node], [], None, {})
    assert found == [
        {
            "product": "addmm",
            "sizes": [[4, 8], [4, 8]],
            "choices": 2,
            "library": pytest.approx(3e-3),
            "best": pytest.approx(2e-3),
            "winner": "Triton",
        }
    ]
    assert not get_algorithm_selector_cache().feedback_saver_fns


def test_how_kernels_are_launched_is_read_off():
    from torch._inductor.runtime.triton_heuristics import CachingAutotuner

    kernel = CachingAutotuner.__new__(CachingAutotuner)
    kernel.launchers = [SimpleNamespace(config=SimpleNamespace(kwargs={"XBLOCK": 1}, num_warps=8, num_stages=1))]
    assert "{'XBLOCK': 1} warps 8 stages 1" in modes_measured.launch_settings()


@GPU
def test_a_graph_keeps_its_memory(monkeypatch):
    monkeypatch.setitem(WORKLOADS, "mlp", {"mlp": 4, "rows": 4096, "width": 512})
    kept = {mode: measured("mlp", mode, DEVICE, torch.bfloat16)["kept"] for mode in ("default", "reduce-overhead")}
    assert kept["default"] == {"eager": 0, "default": 0}
    assert kept["reduce-overhead"]["eager"] == 0 < kept["reduce-overhead"]["reduce-overhead"]
