"""What a reader looks for in a trace, on traces made by hand and by the profiler; and what profiling costs."""

import json
from pathlib import Path

import pytest
import torch

from snippets.validation.diagnosis import Event
from snippets.validation.profiling import (
    cost,
    costs,
    inputs,
    kind_of,
    layers,
    main,
    one_step,
    reading,
    short,
    step_of,
    timeline,
)

CUDA = torch.cuda.is_available()


def event(name: str, category: str, start: float, end: float, **args: object) -> Event:
    """Times in microseconds."""
    return Event(name, category, start * 1e-6, end * 1e-6, args)


def operation(name: str, start: float, launch: int, kernel: tuple[float, float]) -> list[Event]:
    return [
        event(f"aten::{name}", "cpu_op", start, start + 10),
        event("cudaLaunchKernel", "cuda_runtime", start + 5, start + 8, correlation=launch),
        event(f"void at::native::{name}_kernel<float>(int)", "kernel", *kernel, correlation=launch),
    ]


@pytest.fixture
def host_bound() -> list[Event]:
    """Each kernel begins soon after its launch, and the GPU waits for the next."""
    found = []
    for number in range(4):
        start = 100 * number
        found += operation("mul", start, number, (start + 10, start + 20))
    return [event("layer 0", "user_annotation", -5, 320), *found]


@pytest.fixture
def gpu_bound() -> list[Event]:
    """Launches queue up, and each kernel waits for the one before."""
    return [
        e for number in range(4) for e in operation("mm", 12 * number, number, (10 + 200 * number, 210 + 200 * number))
    ]


def test_of_a_host_bound_step_the_gaps_are_long_and_the_lead_is_short(host_bound):
    found = reading(host_bound)
    assert (found.kernels, found.launches) == (4, 4)
    assert found.lead == pytest.approx(5e-6)  # 10 - 5
    assert found.gap == pytest.approx(90e-6)
    assert found.busy == pytest.approx(40 / 325)
    assert found.during == "layer 0"


def test_of_a_gpu_bound_step_the_lead_grows_and_there_is_no_gap(gpu_bound):
    found = reading(gpu_bound)
    assert found.lead > 200e-6 and found.gap == 0 and found.during == "nothing that is recorded"


def test_a_graph_is_one_launch_of_many_kernels():
    kernels = [event("triton_poi_fused_add_0", "kernel", 20 + 10 * n, 28 + 10 * n, correlation=7) for n in range(5)]
    launch = event("cudaGraphLaunch", "cuda_runtime", 10, 15, correlation=7)
    found = reading([launch, *kernels])
    assert (found.kernels, found.launches) == (5, 1)
    assert found.lead == pytest.approx(10e-6)  # of the first kernel: the others follow it
    drawn = timeline([launch, *kernels])
    assert len(drawn["arrows"]) == 5 and {bar[3] for bar in drawn["lanes"][-1]["bars"]} == {"compiled"}


def test_a_trace_without_kernels_says_why():
    with pytest.raises(ValueError, match="without a GPU, or without ProfilerActivity"):
        reading([event("aten::mul", "cpu_op", 0, 1)])


def test_a_kernel_belongs_to_the_step_that_launched_it():
    steps = [event(f"ProfilerStep#{n}", "user_annotation", 100 * n, 100 * n + 100) for n in range(2)]
    late = operation("mul", 90, 1, (150, 160))  # launched in the first step, runs in the second
    own = operation("add", 120, 2, (250, 260))  # runs after the second step has ended
    assert {e.name for e in one_step([*steps, *late, *own])} == {e.name for e in own}


def test_a_timeline_has_labels_operations_launches_and_kernels(host_bound):
    drawn = timeline(host_bound)
    assert [lane["name"] for lane in drawn["lanes"]] == ["labels and operations", "what they call", "launches", "GPU"]
    assert drawn["lanes"][0]["bars"] == [[0.0, 325.0, "layer 0", "host"]]
    assert [bar[2] for bar in drawn["lanes"][1]["bars"]] == ["mul"] * 4
    assert drawn["arrows"][0] == [10.0, 15.0]
    assert json.loads(json.dumps(drawn)) == drawn


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("cudaLaunchKernel", "launch"),
        ("cuLaunchKernelEx", "launch"),
        ("cudaGraphLaunch", "launch"),
        ("cudaDeviceSynchronize", "wait"),
        ("Torch-Compiled Region: 0/0", "compiled"),
        ("## Call CompiledFxGraph abc ##", "compiled"),
        ("aten::mm", "host"),
    ],
)
def test_kinds_of_bars(name, kind):
    assert kind_of(event(name, "cpu_op", 0, 1)) == kind


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("aten::layer_norm", "layer_norm"),
        ("void at::native::vectorized_elementwise_kernel<4, at::native::silu>(int)", "vectorized_elementwise_kernel"),
        ("Torch-Compiled Region: 0/0", "Torch-Compiled Region: 0/0"),
        ("nvjet_tst_64x8_64x16_4x2_h_bz_TNT" * 3, ("nvjet_tst_64x8_64x16_4x2_h_bz_TNT" * 3)[:39] + "…"),
    ],
)
def test_names_are_cut_to_what_tells(name, expected):
    assert short(name) == expected


def test_a_real_step_has_its_labels(capsys):
    events = step_of(lambda: layers(*inputs(8, 16, torch.device("cpu"))))
    names = [bar[2] for bar in timeline(events)["lanes"][0]["bars"]]
    assert [name for name in names if name.startswith("layer ")] == ["layer 0", "layer 1", "layer 2"]


@pytest.mark.filterwarnings("ignore")
def test_costs_are_printed_for_each_option():
    x = torch.ones(4, 4)
    assert cost(lambda: x + x, 3).nbytes > 0
    printed = "\n".join(costs(lambda: x + x, steps=2))
    for name in ("no profiler", "schedule waits", "record_shapes", "with_stack", "profile_memory"):
        assert name in printed


def test_the_command_refuses_what_is_no_trace(tmp_path: Path, capsys):
    path = tmp_path / "trace.json"
    path.write_text("{}")
    assert main([str(path)]) == 2
    assert "expected a Chrome trace" in capsys.readouterr().err


@pytest.mark.skipif(not CUDA, reason="needs kernels")
def test_on_a_gpu_a_graph_is_launched_once_and_eager_kernel_by_kernel():
    x, weights = inputs(64, 128, torch.device("cuda"))
    with torch.no_grad():
        eager = reading(step_of(lambda: layers(x, weights)))
        compiled = torch.compile(layers, mode="reduce-overhead")
        graph = reading(step_of(lambda: compiled(x, weights)))
    assert eager.launches == eager.kernels >= 12
    assert graph.launches < graph.kernels < eager.kernels
