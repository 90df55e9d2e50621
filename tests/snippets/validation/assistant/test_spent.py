"""What a trace loses: on synthetic traces of a GPU, made by hand, and on real timelines of an H100."""

import pytest

from snippets.validation.assistant.lines import Line
from snippets.validation.assistant.reads import read
from snippets.validation.assistant.spent import read_one, read_ranks, spent_on
from tests.snippets.validation.assistant.timelines import Made, recorded

SOURCE = """
def step(x):
    y = x @ x
    seen.append(y.sum().item())
    z = y.to("cuda")
    return z.relu()
"""
NVJET, RELU = "nvjet_tst_64x64", "void at::native::vectorized_elementwise_kernel<4>(int)"


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(SOURCE)
    return path


def made(source, **about):
    """A step of 1000 us in which `step`, at line 2, runs throughout."""
    return Made(source, **about).step(0, 1000).frame("step", 2, 0, 1000)


def launching(source):
    trace = made(source)
    for at in range(50, 1000, 50):
        trace.add("<built-in method relu of Tensor object>", "python_function", at - 2, 20)
        trace.launch("aten::relu", at, (RELU, at + 8, 5))
    return trace


def waiting(source):
    trace = made(source).launch("aten::matmul", 0, (NVJET, 10, 500))
    trace.add("<built-in method item of Tensor object>", "python_function", 20, 495)
    trace.add("aten::item", "cpu_op", 21, 490).add("cudaStreamSynchronize", "cuda_runtime", 30, 482)
    return trace.launch("aten::matmul", 700, (NVJET, 710, 290))


def copying(source):
    trace = made(source).launch("aten::matmul", 0, (NVJET, 10, 300))
    trace.add("<built-in method to of Tensor object>", "python_function", 318, 300)
    trace.launch("aten::copy_", 320, ("Memcpy HtoD (Pageable -> Device)", 330, 250), call="cudaMemcpyAsync")
    trace.add("cudaStreamSynchronize", "cuda_runtime", 340, 245)
    return trace.launch("aten::matmul", 620, (NVJET, 630, 370))


def compiling(source):
    trace = made(source).launch("aten::matmul", 0, (NVJET, 10, 300))
    trace.add("<built-in method relu of Tensor object>", "python_function", 320, 400)
    trace.add("entire_frame_compile (dynamo_timed)", "cpu_op", 321, 390)
    return trace.launch("aten::matmul", 720, (NVJET, 730, 270))


def network(source):
    trace = made(source).launch("aten::matmul", 0, (NVJET, 10, 600))
    trace.add("<built-in method relu of Tensor object>", "python_function", 18, 20)
    trace.launch("c10d::allreduce_", 20, ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", 400, 500))
    return trace.launch("aten::matmul", 50, (NVJET, 900, 100))


def moving(source):
    trace = made(source).launch("aten::matmul", 0, (NVJET, 10, 300))
    trace.add("<built-in method relu of Tensor object>", "python_function", 18, 20)
    return trace.launch("aten::relu", 20, (RELU, 310, 690))


def updating(source):
    """Operations of an optimizer's step, which take a little more of the time than `LEAST`."""
    trace = made(source).launch("aten::matmul", 0, (NVJET, 10, 930))
    trace.add("Optimizer.step#AdamW.step", "user_annotation", 18, 40)
    return trace.launch("aten::mul_", 20, (RELU, 940, 60))


def fp32(source):
    trace = made(source)
    types = {"Input type": ["float", "float"]}
    return trace.launch("aten::mm", 5, ("cutlass_80_simt_sgemm_128x128", 10, 990), **types)


def python(source):
    return made(source).launch("aten::matmul", 0, (NVJET, 10, 200)).launch("aten::matmul", 900, (NVJET, 910, 90))


def replayed(source):
    kernels = [("triton_poi_fused_0", 100 * number, 60) for number in range(10)]
    return made(source).launch("Torch-Compiled Region: 0/0", 0, *kernels, call="cudaGraphLaunch")


FOUND = {  # by trace: the cause, its milliseconds, and the line
    launching: ("launching", 0.895, 6), waiting: ("waiting", 0.2, 4), copying: ("pageable", 0.3, 5),
    compiling: ("compiling", 0.39, 6), network: ("network", 0.29, 6), moving: ("memory", 0.69, 6),
    python: ("python", 0.7, 2), replayed: ("starting", 0.36, None), updating: ("optimizer", 0.06, 2),
}  # fmt: skip


@pytest.mark.parametrize("trace", FOUND)
def test_each_loss_is_the_largest_and_has_its_line(trace, source, tmp_path):
    cause, milliseconds, number = FOUND[trace]
    first = read_one(trace(source).trace(tmp_path)).losses[0]
    assert first.cause == cause
    assert first.seconds == pytest.approx(milliseconds * 1e-3, abs=2e-5)
    assert first.share == pytest.approx(milliseconds, abs=0.02)
    assert first.line == (Line(str(source), number, "step") if number else None)


def test_products_in_float32_are_a_loss_and_those_in_tf32_are_none(source, tmp_path):
    trace = fp32(source)
    (loss,) = read_one(trace.trace(tmp_path)).losses
    assert loss.cause == "fp32" and loss.line.number == 2  # `aten::mm` is no call and no operator of the source
    for event in trace.events:
        event["name"] = event["name"].replace("simt_sgemm", "tensorop_s1688gemm")
    assert read_one(trace.trace(tmp_path)).losses == []


def test_a_clean_trace_says_that_nothing_stands_out(source, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    trace = made(source)
    for at in range(0, 1000, 100):
        trace.launch("aten::matmul", at / 10, (NVJET, at, 99))
    told = str(read_one(trace.trace(tmp_path))).splitlines()
    assert told[1] == "nothing stands out" and len(told) == 3
    assert told[2] == f"longest kernel: 0.99 ms, 99%, {NVJET}, train.py:3"


def test_a_real_wait_costs_the_gap_after_it(tmp_path):
    """The step with `loss.item()` on an H100, and the one without."""
    (trace,) = read(recorded("waiting", tmp_path))
    found = spent_on(trace).loss("waiting")
    assert found.seconds > 5e-5 and found.line == "item"
    (ahead,) = read(recorded("ahead", tmp_path))
    assert "waiting" not in {cause for cause, _ in spent_on(ahead).by}


@pytest.mark.parametrize("name", ["eager", "compiled"])
def test_a_real_small_step_is_launch_bound(name, tmp_path):
    (trace,) = read(recorded(name, tmp_path))
    first = read_one(trace).losses[0]
    assert first.cause == "launching" and first.share > 0.5


def ranked(source, rank, late):
    """A rank whose all-reduce ends with the other's, and whose product is longer if it is late."""
    begins = 800 if late else 300
    trace = made(source, rank=rank).launch("aten::matmul", 0, (NVJET, 10, begins - 10))
    trace.launch("c10d::allreduce_", 20, ("ncclDevKernel_AllReduce_Sum", begins, 900 - begins))
    return trace.launch("aten::matmul", 40, (NVJET, 900, 100))


def test_the_slowest_rank_is_the_one_that_the_others_wait_for(source, tmp_path):
    traces = [ranked(source, rank, late=rank == 1).trace(tmp_path) for rank in range(3)]
    told = read_ranks(traces)
    first = told.losses[0]
    assert first.cause == "rank" and first.seconds == pytest.approx(5e-4)
    assert "rank 1 is the slowest, 0.50 ms more at this line" in first.detail
    assert first.line == Line(str(source), 3, "step")
    assert told.tail == "NCCL alone, a step: rank 0 0.60 ms, rank 1 0.10 ms, rank 2 0.60 ms"


def test_ranks_that_are_equal_have_no_slow_one(source, tmp_path):
    traces = [ranked(source, rank, late=True).trace(tmp_path) for rank in range(2)]
    assert [loss.cause for loss in read_ranks(traces).losses] == ["network"]
