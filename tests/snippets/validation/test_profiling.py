"""Reading a step on synthetic traces in the form of torch.profiler's, and on real ones of a CPU."""

import gzip
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from snippets.validation import profiling
from snippets.validation.profiling import Event, doing, gaps, read, readable, reading, record, steps_of, table
from tests.snippets.validation.traces import ADD, Trace, ahead, launching, replayed, waiting


@pytest.fixture
def path(tmp_path):
    return tmp_path / "trace.json"


# ---- reading --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("trace", "expected"),
    [
        (
            launching,
            """ProfilerStep#3: the host is done after 1000 us, the GPU after 1000 us
            launches: 3, which start 3 kernels and copies
            CUDA graphs: 0
            GPU busy: 60 us, 6% of the step
            gaps: 4, the longest 473 us, while the host is in Python
            from launch to kernel: median 4 us, longest 5 us
            waits: 0, 0 us
            compiled regions: 0""",
        ),
        (
            waiting,
            """ProfilerStep#3: the host is done after 1000 us, the GPU after 1000 us
            launches: 2, which start 2 kernels and copies
            CUDA graphs: 0
            GPU busy: 520 us, 52% of the step
            gaps: 3, the longest 370 us, while the host is in Python
            from launch to kernel: median 8 us, longest 8 us
            waits: 1, 485 us, longest in item
            compiled regions: 0""",
        ),
        (
            replayed,
            """ProfilerStep#3: the host is done after 1000 us, the GPU after 1000 us
            launches: 1, which start 3 kernels and copies
            CUDA graphs: 1, of kernels: 3
            GPU busy: 30 us, 3% of the step
            gaps: 4, the longest 948 us, while the host is in Python
            from launch to kernel: median 8 us, longest 8 us
            waits: 0, 0 us
            compiled regions: 1: Torch-Compiled Region: 0/0""",
        ),
        (
            ahead,
            """ProfilerStep#3: the host is done after 1000 us, the GPU after 1520 us
            launches: 1, which start 1 kernels and copies
            CUDA graphs: 0
            GPU busy: 1520 us, 100% of the step
            from launch to kernel: median 508 us, longest 508 us
            waits: 0, 0 us
            compiled regions: 0""",
        ),
    ],
)
def test_a_step_is_read(trace, expected, path):
    assert list(reading(trace().steps(path)[1])) == [line.strip() for line in expected.splitlines()]


def test_a_step_lasts_until_its_last_kernel_and_shows_what_ran_meanwhile(path):
    first, second = ahead().steps(path)
    assert (first.host, first.length) == (1000, 1520)
    assert [(kernel.name, kernel.start, kernel.length) for kernel in second.kernels] == [
        ("nvjet_first", 0, 520), ("nvjet_second", 520, 1000),
    ]  # fmt: skip
    assert [call.start for call in first.calls] == [12, 1012]  # the host goes on meanwhile


def test_what_is_named_and_what_operations_call_is_shown_at_its_outermost(path):
    trace = launching()
    trace.add("first half", "user_annotation", 1010, 100)
    trace.add("aten::empty", "cpu_op", 1101, 2)
    trace.add("AddBackward0", "cpu_op", 1101, 50, tid=2)  # of autograd's thread
    step = trace.steps(path)[1]
    assert [event.name for event in step.named] == ["forward"]
    assert [event.name for event in step.operations] == ["aten::add", "AddBackward0", "aten::add", "aten::add"]


def test_a_trace_without_steps_is_one(path):
    trace = launching()
    trace.events = [event for event in trace.events if not event["name"].startswith("ProfilerStep")]
    (step,) = trace.steps(path)
    assert (step.name, step.length) == ("the whole trace", 600)


def test_a_gap_is_time_in_which_no_stream_runs_anything():
    kernels = [Event("long", "kernel", 0, 50), Event("short", "kernel", 10, 5), Event("late", "kernel", 60, 10)]
    assert gaps(kernels, 100) == [(50, 60), (70, 100)]


def test_what_the_host_does_in_a_gap_is_what_it_does_for_most_of_it(path):
    """Of three hundred microseconds it spends ten in an operation: that is not what the gap is about."""
    step = launching().steps(path)[1]
    assert doing(step, 230, 530) == "forward" and doing(step, 98, 112) == "add" and doing(step, 700, 900) == "Python"


def test_an_empty_trace_is_refused(path):
    trace = Trace()
    trace.events.clear()
    with pytest.raises(ValueError, match="the trace is empty"):
        trace.steps(path)


@pytest.mark.parametrize("content", ["no JSON", "[]", '{"events": []}'])
def test_what_is_no_trace_is_refused(content, path):
    path.write_text(content)
    with pytest.raises(ValueError, match="expected a trace"):
        read(path)


# ---- names ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "short"),
    [
        (ADD, "add (vectorized_elementwise_kernel)"),
        (
            "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::MeanOps<float, float, "
            "float, float>, unsigned int, float, 4, 4> >(at::native::ReduceOp<float, ...>)",
            "Mean (reduce_kernel)",
        ),
        (
            "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::func_wrapper_t<float, "
            "at::native::sum_functor<float, float, float>::operator()(at::TensorIterator&)::{lambda(float, float)#1}>, "
            "unsigned int, float, 4, 4> >(...)",
            "sum (reduce_kernel)",
        ),
        (
            "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous namespace)::"
            "FusedOptimizerTensorListMetadata<4>, at::native::(anonymous namespace)::FusedAdamMathFunctor<c10::BFloat16"
            ", 4, (at::native::ADAM_MODE)1, false>, float const*>(...)",
            "FusedAdamMath (multi_tensor_apply_kernel)",
        ),
        (
            "void at::native::vectorized_elementwise_kernel<4, at::native::GeluCUDAKernelImpl(at::TensorIteratorBase&, "
            "at::native::GeluType)::{lambda()#2}::operator()() const::{lambda()#4}, std::array<char*, 2ul> >(int)",
            "Gelu (vectorized_elementwise_kernel)",
        ),
        (
            "void at::native::elementwise_kernel<128, 4, at::native::gpu_kernel_impl_nocast<at::native::"
            "direct_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda()#3}>(...)>(int, ...)",
            "direct_copy (elementwise_kernel)",
        ),
        (
            "void at::native::vectorized_elementwise_kernel<4, at::native::AUnaryFunctor<float, float, float, "
            "at::native::binary_internal::MulFunctor<float> >, std::array<char*, 2ul> >(int)",
            "Mul (vectorized_elementwise_kernel)",
        ),
        (
            "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_128x256>(Params)",
            "cutlass_80_tensorop_bf16_s16816gemm_128x256 (Kernel2)",
        ),
        ("nvjet_tst_128x256_64x4_2x1_v_bz_coopA_NNT", "nvjet_tst_128x256_64x4_2x1_v_bz_coopA_NNT"),
        ("triton_poi_fused_add_relu_0", "triton_poi_fused_add_relu_0"),
        ("Memcpy DtoH (Device -> Pinned)", "Memcpy DtoH (Device -> Pinned)"),
        ("autograd::engine::evaluate_function: AddmmBackward0", "AddmmBackward0"),
        ("autograd::engine::evaluate_function: torch::autograd::AccumulateGrad", "AccumulateGrad"),
        ("aten::addmm", "addmm"),
    ],
)
def test_names_are_readable(name, short):
    assert readable(name) == short


def test_operations_keep_their_namespace_where_kernels_stand_beside_them():
    assert readable("aten::addmm", keep=True) == "aten::addmm"
    assert readable(ADD, keep=True) == readable(ADD)


# ---- on this machine ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A real trace of some steps, and the profiler's table."""
    path, calls = tmp_path_factory.mktemp("recorded") / "trace.json", []

    def step():
        calls.append(len(calls))
        with torch.profiler.record_function("doubled"):
            torch.ones(64).add(1).mul(2)

    profiler = record(step, path, steps=3, warm_up=2)
    return path, len(calls), profiler


def test_a_trace_has_the_steps_that_were_asked_for(recorded):
    path, calls, _ = recorded
    steps = steps_of(read(path))
    assert calls == 5 and len(steps) == 3
    for step in steps:
        assert [event.name for event in step.named] == ["doubled"]
        assert [event.name for event in step.operations] == ["aten::ones", "aten::add", "aten::mul"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="has a GPU")
def test_without_a_gpu_the_reading_says_so(recorded):
    step = steps_of(read(recorded[0]))[1]
    first, second, *_ = reading(step)
    assert "no GPU in this trace" in second and "GPU" not in first


def test_the_table_has_the_largest_rows(recorded):
    head, *rows = table(recorded[2], rows=4)
    assert head.split()[:6] == ["name", "calls", "Self", "CPU", "CPU", "total"] and len(rows) == 4
    times = [float(row[56:].split()[0]) for row in rows]
    assert times == sorted(times, reverse=True)
    (added,) = (row for row in table(recorded[2], rows=50) if row.startswith("aten::mul "))
    assert added.split()[1] == "3"


def test_what_else_to_record_is_handed_on(path):
    record(lambda: torch.ones(3, 5).add(1), path, steps=1, warm_up=1, record_shapes=True)
    assert any(event.args.get("Input Dims", [[]])[0] == [3, 5] for event in read(path) if event.name == "aten::add")


# ---- the command ----------------------------------------------------------------------------------------------------


def test_it_reads_without_torch(path):
    launching().steps(path)
    command = [sys.executable, "-I", "-S", str(Path(profiling.__file__)), str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("ProfilerStep#3: ")


def test_a_packed_trace_and_the_choice_of_a_step(path, capsys):
    ahead().steps(path)
    path.write_bytes(gzip.compress(path.read_bytes()))
    assert profiling.main([str(path), "--step", "0"]) == 0
    assert capsys.readouterr().out.startswith("ProfilerStep#2: ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(["--step", "2"], "--step: expected 0 to 1, got 2"), (["--step", "-1"], "--step: expected 0 to 1, got -1")],
)
def test_a_step_that_is_not_there_is_refused(arguments, message, path, capsys):
    ahead().steps(path)
    assert profiling.main([str(path), *arguments]) == 2
    assert message in capsys.readouterr().err


def test_a_file_that_is_not_there_is_refused_in_one_line(path, capsys):
    assert profiling.main([str(path)]) == 2
    assert capsys.readouterr().err.count("\n") == 1
