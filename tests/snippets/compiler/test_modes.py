"""What each mode of torch.compile is in this version; the workloads; and how the table comes about."""

import inspect
import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest
import torch
from torch._inductor import utils as inductor_utils
from torch._inductor.select_algorithm import get_algorithm_selector_cache

from snippets.compiler import modes
from snippets.compiler.modes import (
    MODES,
    OPTIONS,
    WORKLOADS,
    Block,
    Fresh,
    about,
    break_even,
    jobs,
    make,
    measured,
    table,
)
from tests.benchmarks import captures

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
GPU = pytest.mark.skipif(DEVICE.type == "cpu", reason="a CPU has no CUDA graphs")
SMALL = {"norms": 2, "rows": 16, "columns": 256}


# ---- modes are options ----------------------------------------------------------------------------------------------


def test_a_mode_is_a_set_of_options():
    """As the page lists them; the same from torch 2.11 on."""
    search = {"max_autotune": True, "coordinate_descent_tuning": True}
    assert MODES == {  # noqa: SIM300
        "default": {},
        "reduce-overhead": {"triton.cudagraphs": True},
        "max-autotune-no-cudagraphs": search,
        "max-autotune": search | {"triton.cudagraphs": True},
        "coordinate-descent": {"coordinate_descent_tuning": True},
    }


def test_the_options_that_the_page_tries_are_off_by_default_but_epilogues():
    usual = torch._inductor.config.get_config_copy()
    names = ("combo_kernels", "epilogue_fusion", "benchmark_epilogue_fusion", "freezing", "cpp_wrapper")
    assert [usual[name] for name in names] == [False, True, True, False, False]
    assert not usual["combo_kernel_per_subkernel_blocks"], "all parts of a combined kernel share their blocks"


def test_what_is_compiled_gets_its_options_and_keeps_ours(monkeypatch):
    seen = {}
    monkeypatch.setattr(torch, "compile", lambda function, **settings: seen.update(settings))
    modes.compiled(abs, "max-autotune")
    assert seen["options"] == MODES["max-autotune"] and seen["options"] is not MODES["max-autotune"]
    modes.compiled(abs, "freezing")
    assert seen == {"fullgraph": True, "dynamic": False, "options": {"freezing": True}}


def test_a_mode_and_options_are_refused_together():
    with pytest.raises(RuntimeError, match="Either mode or options can be specified, but both can't be specified at"):
        torch.compile(abs, mode="max-autotune", options={"epilogue_fusion": False})


def test_lite_leaves_operations_as_eager_has_them():
    assert torch._inductor.list_mode_options("lite")["fallback_by_default"] is True


@pytest.mark.parametrize(("multiprocessors", "enough"), [(67, False), (68, True)])
def test_a_gpu_with_fewer_than_68_multiprocessors_searches_no_products(monkeypatch, multiprocessors: int, enough: bool):
    gpu = SimpleNamespace(type="cuda", major=9, multi_processor_count=multiprocessors)
    monkeypatch.setattr(inductor_utils.DeviceProperties, "create", lambda device: gpu)
    assert inductor_utils.is_big_gpu.__wrapped__(torch.device("cuda", 0)) is enough
    assert "Not enough SMs to use max_autotune_gemm mode" in inspect.getsource(inductor_utils.is_big_gpu.__wrapped__)


# ---- workloads ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_workload_says_its_kind_and_its_inputs_fit(name: str):
    shape = {size: min(value, 64) for size, value in WORKLOADS[name].items()}
    module, inputs = make(shape, DEVICE, torch.float32)
    results = module(*inputs)
    for x, y in zip(inputs, results if isinstance(results, tuple) else (results,), strict=False):
        assert y.shape == x.shape and 0.1 < y.std() < 10, "layers that shrink or blow up compare nothing"


def test_steps_of_decoding_are_the_causal_block():
    """Token by token through the cache, and all at once."""
    torch.manual_seed(0)
    whole = Block(128).to(DEVICE).requires_grad_(False)
    step = Block(128, cached=8, batch=2).to(DEVICE).requires_grad_(False)
    step.load_state_dict(whole.state_dict(), strict=False)
    x = torch.randn(2, 8, 128, device=DEVICE)
    steps = [step(x[:, n : n + 1], torch.tensor([n], device=DEVICE)) for n in range(8)]
    torch.testing.assert_close(torch.cat(steps, 1), whole(x), atol=1e-4, rtol=1e-4)


# ---- one workload in one mode ---------------------------------------------------------------------------------------


def test_what_computes_something_else_is_not_timed(monkeypatch):
    monkeypatch.setitem(WORKLOADS, "norms", SMALL)
    monkeypatch.setattr(modes, "compiled", lambda module, mode: lambda *inputs: [1.1 * y for y in module(*inputs)])
    with pytest.raises(RuntimeError, match="off by 10"):
        measured("norms", "default", DEVICE, torch.float32)


def test_the_first_three_calls_are_compiling_and_later_ones_are_not(monkeypatch):
    monkeypatch.setitem(WORKLOADS, "norms", SMALL)
    calls, timed = [], []

    def seconds(call, device) -> float:
        call()
        timed.append(len(calls))
        return 10.0 ** len(timed)

    monkeypatch.setattr(modes, "compiled", lambda module, mode: lambda *inputs: calls.append(1) or module(*inputs))
    monkeypatch.setattr(modes, "seconds", seconds)
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
    with modes.search_heard(found):
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
    assert "{'XBLOCK': 1} warps 8 stages 1" in modes.launch_settings()


@GPU
def test_a_graph_keeps_its_memory(monkeypatch):
    monkeypatch.setitem(WORKLOADS, "mlp", {"mlp": 4, "rows": 4096, "width": 512})
    kept = {mode: measured("mlp", mode, DEVICE, torch.bfloat16)["kept"] for mode in ("default", "reduce-overhead")}
    assert kept["default"] == {"eager": 0, "default": 0}
    assert kept["reduce-overhead"]["eager"] == 0 < kept["reduce-overhead"]["reduce-overhead"]


# ---- each in a process of its own -----------------------------------------------------------------------------------


def test_every_mode_at_every_workload_and_an_option_where_it_does_something():
    asked = list(jobs(list(WORKLOADS)))
    assert len(asked) == len(set(asked)) == len(WORKLOADS) * len(MODES) + len(OPTIONS)
    assert {workload for workload, mode in asked if mode == "freezing"} == {"convolution"}
    assert next(jobs(["block"])) == ("block", "max-autotune"), "what takes longest comes first"


POPEN = subprocess.Popen


def child(monkeypatch, script: str) -> Fresh:
    """A child that runs a few lines instead of the snippet."""
    monkeypatch.setattr(
        modes.subprocess, "Popen", lambda command, **settings: POPEN([sys.executable, "-c", script], **settings)
    )
    return Fresh("mlp", "default", "3", 4)


def test_a_child_has_a_cold_cache_of_its_own_and_waits_for_its_turn(monkeypatch):
    fresh = child(
        monkeypatch,
        "import os, json; input(); folder = os.environ['TORCHINDUCTOR_CACHE_DIR'];"
        "print(json.dumps([os.environ['CUDA_VISIBLE_DEVICES'], folder, os.listdir(folder)]))",
    )
    assert fresh.process.poll() is None
    gpu, folder, found = fresh.row()  # type: ignore[misc]
    assert (gpu, folder, found) == ("3", fresh.folder.name, [])


def test_a_child_that_fails_says_why(monkeypatch):
    failed = child(monkeypatch, "input(); raise SystemExit('out of memory')").row()
    assert failed == {"workload": "mlp", "mode": "default", "failed": "out of memory"}
    assert child(monkeypatch, "import time; time.sleep(60)").row(0.1)["failed"] == "not done after 0 s"


def test_gpus_share_the_work_and_each_measures_one_at_a_time(monkeypatch):
    busy: dict[str, int] = {}
    lock = threading.Lock()

    class Counted:
        def __init__(self, workload: str, mode: str, gpu: str, cores: int):
            self.job, self.gpu = (workload, mode), gpu

        def row(self) -> dict:
            with lock:
                busy[self.gpu] = busy.get(self.gpu, 0) + 1
                assert busy[self.gpu] == 1
            with lock:
                busy[self.gpu] -= 1
            return dict(zip(("workload", "mode"), self.job, strict=True))

    monkeypatch.setattr(modes, "Fresh", Counted)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,5")
    rows = modes.collected(["mlp", "decode"])
    assert sorted((row["workload"], row["mode"]) for row in rows) == sorted(jobs(["mlp", "decode"]))
    assert set(busy) <= {"0", "5"}


# ---- tables ---------------------------------------------------------------------------------------------------------


def test_break_even():
    assert break_even(paid=3.0, before=5e-3, after=2e-3) == pytest.approx(1000)
    assert about(break_even(3.0, 2e-3, 2e-3)) == about(break_even(3.0, 2e-3, 5e-3)) == "never"
    assert about(break_even(3.0, 2e-3, 1.99e-3)) == "never", "two runs differ by as much"
    assert (about(12_345.0), about(break_even(0.0, 2e-3, 1e-3))) == ("12,000", "at once")


def row(mode: str, compile: float, eager: float, now: float) -> dict:
    times, nothing = {"eager": eager, mode: now}, {"eager": None, mode: None}
    return {
        "workload": "mlp", "mode": mode, "compile": compile, "time": times,
        "peak": nothing, "kept": {"eager": 0, mode: 3 * 2**20},
    }  # fmt: skip


def test_a_line_says_when_a_mode_pays():
    """The second process was on a slower host: eager tells by how much."""
    rows = [row("default", 2.0, 3e-3, 1e-3), row("reduce-overhead", 3.0, 6e-3, 1e-3)]
    rows.append({"workload": "mlp", "mode": "max-autotune", "failed": "no"})
    _, eager, default, graphs, failed = table(rows, "mlp")
    assert eager.split() == ["eager", "3000.0", "us", "–", "0", "MiB"]
    assert default.split()[-3:] == ["2.0", "s", "1,000"]
    assert graphs.split()[-4:] == ["3.0", "s", "600", "1,000"]  # over default: 1 s, and 2 ms became 1 ms
    assert failed.split() == ["max-autotune", "no"]
    assert list(table(rows, "decode")) == ["decode: not measured"]


def test_descents_stand_side_by_side():
    settings = {"default": ["a"], "coordinate-descent": ["b", "c"], "max-autotune": ["d"]}
    rows = [{"workload": "norms", "mode": mode, "settings": found, "steps": 7} for mode, found in settings.items()]
    assert [line.split(":")[0].strip() for line in modes.descents(rows, "norms")] == [
        "default", "a", "coordinate-descent", "b", "c",
    ]  # fmt: skip


def test_totals_name_who_is_done_first():
    rows = [row("default", 1.5, 3e-3, 1e-3), row("max-autotune", 20.0, 3e-3, 5e-4)]
    head, eager, default, search, first = (line.split() for line in modes.totals(rows, "mlp"))
    assert head == ["calls", "1,000", "100,000", "10,000,000"]
    assert eager[1::2] == ["3.0", "300.0", "30,000.0"]
    assert default[1::2] == ["2.5", "101.5", "10,001.5"]
    assert search[1::2] == ["20.5", "70.0", "5,020.0"]
    assert first == ["done", "first", "default", "max-autotune", "max-autotune"]
    assert max(len(line) for line in modes.totals(rows, "mlp")) <= captures.WIDTH


def test_the_script_shows_a_mode_on_a_cpu(script):
    printed = captures.sections(script("snippets.compiler.modes", "cpu").stdout)
    assert "reduce-overhead is the default here" in printed["table"] and "modes" in printed
