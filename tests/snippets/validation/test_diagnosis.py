"""The diagnosis on synthetic traces, one for each cause, in the form of torch.profiler's; and on real ones of a CPU.

The synthetic traces are made by hand: names and arguments are such as a GPU's traces have, and times are round numbers.
"""

import gzip
import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from snippets.validation import diagnosis
from snippets.validation.diagnosis import (
    CAUSES,
    MEANING,
    Ceilings,
    Event,
    diagnose,
    read,
    record,
    short,
    union,
    without,
)

FILE = Path(diagnosis.__file__)
ADD = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<c10::BFloat16>, "
    "std::array<char*, 3ul> >(int, at::native::CUDAFunctor_add<c10::BFloat16>, std::array<char*, 3ul>)"
)
GEMM = "nvjet_tst_128x256_64x4_2x1_v_bz_coopA_NNT"


class Trace:
    """A synthetic trace: two steps, each from `step` to `step + length`, in microseconds."""

    def __init__(self, length=1000, steps=2):
        self.events = [{"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "python"}}]
        self.id = 0
        self.steps = [1_000_000.0 + number * length for number in range(steps)]
        for number, start in enumerate(self.steps):
            self.host(f"ProfilerStep#{number + 2}", start, length, "user_annotation")

    def add(self, name, category, start, length, tid=1, **args):
        event = {"ph": "X", "cat": category, "name": name, "pid": 1, "tid": tid, "ts": start, "dur": length}
        self.events.append(event | {"args": args})

    def host(self, name, start, length, category="cpu_op", **args):
        self.id += 1
        self.add(name, category, start, length, **{"External id": self.id}, **args)
        return self.id

    def launch(self, op, kernel, at, runs, length, shapes=(), kind="c10::BFloat16", launch="cudaLaunchKernel"):
        """An operation at a time of the host, whose kernel runs later for a while."""
        dims = [list(shape) for shape in shapes]
        external = self.host(op, at, 8, **{"Input Dims": dims, "Input type": [kind] * len(dims)})
        self.add(launch, "cuda_runtime", at + 2, 4, **{"External id": external, "correlation": external})
        self.add(kernel, "kernel", runs, length, 7, **{"External id": external, "correlation": external, "stream": 7})

    def write(self, path, packed=False):
        text = json.dumps({"schemaVersion": 1, "traceEvents": self.events}).encode()
        path.write_bytes(gzip.compress(text) if packed else text)
        return path


@pytest.fixture
def diagnosed(tmp_path):
    def diagnosed(trace, ceilings=None):
        return diagnose(read(trace.write(tmp_path / "trace.json")), ceilings)

    return diagnosed


def approx(**shares):
    return {cause: pytest.approx(shares.get(cause, 0.0), abs=0.002) for cause in CAUSES}


def launching():
    trace = Trace()
    for start in trace.steps:
        for number in range(100):
            at = start + 10 * number
            trace.launch("aten::add", ADD, at, at + 8, 2)
    return trace


def matrix():
    """The host is far ahead and waits at the end."""
    trace = Trace()
    for start in trace.steps:
        for number in range(9):
            trace.launch(
                "aten::mm", GEMM, start + 10 * number, start + 20 + 100 * number, 100, [(1024, 512), (512, 256)]
            )
    trace.add("cudaDeviceSynchronize", "cuda_runtime", trace.steps[-1] + 100, 890)
    return trace


def memory():
    trace = Trace()
    for start in trace.steps:
        for number in range(9):
            trace.launch(
                "aten::add", ADD, start + 10 * number, start + 20 + 100 * number, 100, [(1024, 512), (1024, 512)]
            )
    return trace


def copying():
    trace = Trace()
    for start in trace.steps:
        trace.add("cudaMemcpyAsync", "cuda_runtime", start + 10, 700, correlation=-int(start))
        trace.add(
            "Memcpy HtoD (Pageable -> Device)", "gpu_memcpy", start + 20, 700, 7, bytes=2**20, correlation=-int(start)
        )
        trace.add("cudaStreamSynchronize", "cuda_runtime", start + 710, 15)
        trace.launch("aten::mean", ADD, start + 730, start + 740, 200)
    return trace


def loading():
    trace = Trace()
    for start in trace.steps:
        name = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
        trace.host(name, start, 700, "user_annotation")
        trace.launch("aten::mm", GEMM, start + 710, start + 720, 200)
    return trace


def waiting():
    """500 us of products, for which .item() waits; then the host launches for 450 us, and the GPU has little to do."""
    trace = Trace()
    for start in trace.steps:
        trace.launch("aten::mm", GEMM, start, start + 10, 490)
        trace.add("cudaMemcpyAsync", "cuda_runtime", start + 30, 5)
        trace.add("cudaStreamSynchronize", "cuda_runtime", start + 40, 465)
        for number in range(40):
            at = start + 510 + 12 * number
            trace.launch("aten::mul", ADD, at, at + 10, 2)
    return trace


def compiling():
    trace = Trace()
    for start in trace.steps:
        trace.host("_compile.compile_inner (dynamo_timed)", start, 900)
        trace.host("compile_fx_inner (dynamo_timed)", start + 100, 700)
        trace.launch("triton_poi_fused_add_0", "triton_poi_fused_add_0", start + 910, start + 920, 50)
    return trace


def starting():
    """A graph: one launch, many short kernels, a microsecond between them."""
    trace = Trace()
    for number, start in enumerate(trace.steps):
        trace.add("cudaGraphLaunch", "cuda_runtime", start, 10, correlation=90 + number)
        for node in range(200):
            at = start + 20 + 4.9 * node
            trace.add(ADD, "kernel", at, 2, 7, correlation=90 + number, **{"graph node id": node})
    return trace


def network():
    trace = Trace()
    for start in trace.steps:
        trace.add(
            "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "kernel", start, 900, 20
        )
    return trace


TRACES = {
    "launching": (launching, approx(memory=0.2, launching=0.8)),
    "matrix": (matrix, approx(matrix=0.9, launching=0.1)),
    "memory": (memory, approx(memory=0.9, launching=0.1)),
    "copying": (copying, approx(copying=0.71, memory=0.2, waiting=0.09)),
    "loading": (loading, approx(loading=0.7, matrix=0.2, launching=0.1)),
    "waiting": (waiting, approx(matrix=0.49, memory=0.08, waiting=0.43)),
    "compiling": (compiling, approx(compiling=0.9, memory=0.05, launching=0.05)),
    "starting": (starting, approx(memory=0.4, starting=0.5771, launching=0.0229)),
    "network": (network, approx(network=0.9, launching=0.1)),
}


@pytest.mark.parametrize("cause", CAUSES)
def test_a_trace_is_slow_for_its_reason(diagnosed, cause):
    trace, shares = TRACES[cause]
    found = diagnosed(trace())
    assert found.shares == shares
    assert sum(found.shares.values()) == pytest.approx(1)
    assert found.cause == cause
    assert (found.steps, found.step) == (2, pytest.approx(1e-3))


@pytest.mark.parametrize("cause", CAUSES)
def test_the_report_says_what_it_means_and_what_is_next(diagnosed, cause):
    printed = str(diagnosed(TRACES[cause][0]()))
    assert f"mostly {cause}; next:\n  {CAUSES[cause]}" in printed
    assert MEANING[cause] in printed


def test_gaps_are_counted_and_the_longest_is_named(diagnosed):
    found = diagnosed(launching())
    assert (found.gaps, found.longest) == (100, pytest.approx(8e-6))
    assert (found.kernels, found.typical) == (100, pytest.approx(2e-6))
    assert "a kernel runs for 20% of the step; 100 gaps in which nothing does, the longest 8 us" in str(found)
    assert diagnosed(waiting()).longest == pytest.approx(20e-6)


def test_each_cause_has_a_meaning():
    assert CAUSES.keys() == MEANING.keys() == TRACES.keys()


def test_a_wait_after_which_nothing_is_launched_costs_nothing(diagnosed):
    """The host is ahead, and waits at the end, as it should."""
    assert diagnosed(matrix()).shares["waiting"] == 0


def test_a_wait_excuses_no_more_than_its_length(diagnosed):
    """A host that launches for 900 us and waited for 20 would not be faster by more than these."""
    trace = launching()
    trace.add("cudaStreamSynchronize", "cuda_runtime", trace.steps[0] + 1, 20)
    assert diagnosed(trace).shares == approx(memory=0.2, launching=0.79, waiting=0.01)


def test_kernels_are_held_against_their_ceilings(diagnosed):
    """2 * 1024 * 512 * 256 FLOP at 26.8 TFLOP/s take 10 us; three tensors of a megabyte at 62.9 GB/s take 50."""
    ceilings = Ceilings(3 * 2**20 / 50e-6, {"bfloat16": 2 * 1024 * 512 * 256 / 10e-6})
    product, sum_ = (diagnosed(trace(), ceilings).works[0] for trace in (matrix, memory))
    assert (product.kind, product.op, product.calls, product.dtype) == ("matrix", "aten::mm", 18, "bfloat16")
    moved = (1024 * 512 + 512 * 256 + 1024 * 256) * 2
    assert product.ceiling == pytest.approx(max(10e-6, moved / ceilings.memory) / 100e-6)
    fast = diagnosed(matrix(), Ceilings(1e15, ceilings.matrix)).works[0]
    assert fast.ceiling == pytest.approx(0.1), "its products alone"
    assert (sum_.kind, sum_.name) == ("memory", "vectorized_elementwise_kernel CUDAFunctor_add")
    assert sum_.ceiling == pytest.approx(0.5)
    assert sum_.share == pytest.approx(0.9)


def test_without_a_ceiling_there_is_no_share_of_one(diagnosed):
    assert math.isnan(diagnosed(matrix()).works[0].ceiling)
    assert "ceiling" not in str(diagnosed(matrix())).split("mostly")[0]


def test_several_kernels_of_one_operation_are_not_held_against_all_its_work(diagnosed):
    trace = matrix()
    for kernel in [event for event in trace.events if event.get("cat") == "kernel"]:
        trace.events.append(kernel | {"ts": kernel["ts"] + 50, "dur": 50})
    assert math.isnan(diagnosed(trace, Ceilings(1e9, {"bfloat16": 1e12})).works[0].ceiling)


def test_a_number_that_names_another_operation_is_not_believed(diagnosed):
    """As older profilers wrote it: each kernel's External id is the number of its launch."""
    trace = memory()
    product = trace.host("aten::mm", trace.steps[0] + 500, 10)
    for event in trace.events:
        if event.get("cat") in ("kernel", "cuda_runtime"):
            event["args"]["External id"] = product
    work = diagnosed(trace).works[0]
    assert (work.op, work.kind) == ("", "memory")


def test_what_the_compiler_made_moves_what_it_is_given(diagnosed):
    trace = Trace()
    name = "triton_poi_fused_add_0"
    trace.launch(name, name, trace.steps[0], trace.steps[0] + 10, 100, [(1000,), (1000,), (1000,)], "float")
    work = diagnosed(trace, Ceilings(12000 / 50e-6)).works[0]
    assert (work.kind, work.ceiling) == ("memory", pytest.approx(0.5))


def test_what_ran_before_the_first_step_does_not_count(diagnosed):
    trace = matrix()
    trace.add("cudaStreamSynchronize", "cuda_runtime", trace.steps[0] - 500, 400)
    trace.add(GEMM, "kernel", trace.steps[0] - 500, 400, 7)
    assert diagnosed(trace).shares == TRACES["matrix"][1]


def test_without_annotated_steps_the_whole_trace_is_one(diagnosed):
    trace = matrix()
    trace.events = [event for event in trace.events if "ProfilerStep" not in event["name"]]
    found = diagnosed(trace)
    assert found.steps == 1 and found.cause == "matrix" and found.step == pytest.approx(1920e-6)


def test_spans():
    assert union([(3, 4), (0, 2), (1, 2.5), (4, 5)]) == [(0, 2.5), (3, 5)]
    assert without([(0, 10)], [(-1, 1), (2, 3), (9, 20)]) == [(1, 2), (3, 9)]
    assert without([(0, 1), (2, 3)], [(0, 3)]) == []
    assert without([(0, 1)], []) == [(0, 1)]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        (GEMM, "matrix"),
        ("ampere_sgemm_32x32_sliced1x4_tn", "matrix"),
        ("cudnn_ampere_scudnn_128x64_relu_xregs_large_nn_v1", "matrix"),
        ("cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x64", "matrix"),
        ("void fbgemm_gpu::split_embedding_codegen_forward_unweighted_kernel<float>(int)", "memory"),
        ("triton_red_fused_native_layer_norm_0", "memory"),
        (ADD, "memory"),
        ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "network"),
    ],
)
def test_a_kernel_without_an_operation_is_known_by_its_name(name, kind):
    assert diagnosis.kind_of(Event(name, "kernel", 0, 1), None) == kind


def test_short_names():
    assert short(ADD) == "vectorized_elementwise_kernel CUDAFunctor_add"
    assert short(GEMM) == GEMM
    warp = "void (anonymous namespace)::softmax_warp_forward<float, float, float, 10, false>(float*, int)"
    assert short(warp) == "softmax_warp_forward"
    assert short("Memcpy HtoD (Pageable -> Device)") == "Memcpy HtoD"


# ---- real traces ----------------------------------------------------------------------------------------------------


def test_a_real_trace_of_products(tmp_path):
    x = torch.randn(512, 512, device="cuda" if torch.cuda.is_available() else "cpu")
    found = diagnose(read(record(lambda: x @ x, tmp_path / "trace.json", steps=3)))
    assert (found.steps, found.on_gpu) == (3, torch.cuda.is_available())
    if not found.on_gpu:
        assert found.shares["matrix"] > found.shares["memory"]
        assert "no GPU in this trace: kernels, copies to a GPU and waits for one cannot be seen" in str(found)


def test_a_real_trace_of_a_function_that_is_compiled_again(tmp_path):
    sizes = iter(range(5, 50))
    compiled = torch.compile(lambda x: x.sin().cos(), backend="aot_eager", dynamic=False)
    found = diagnose(read(record(lambda: compiled(torch.ones(next(sizes))), tmp_path / "trace.json", 2, 1)))
    assert found.cause == "compiling"


def test_a_real_trace_of_a_loader(tmp_path):
    class Slow(torch.utils.data.Dataset):
        def __len__(self):
            return 100

        def __getitem__(self, index):
            return torch.full((1,), float(sum(range(20_000))))

    batches = iter(torch.utils.data.DataLoader(Slow(), batch_size=8))
    assert diagnose(read(record(lambda: next(batches) + 1, tmp_path / "trace.json"))).cause == "loading"


# ---- the command ----------------------------------------------------------------------------------------------------


def test_the_file_works_alone(tmp_path):
    """Copied into an empty folder, without this site's packages or torch; the trace is packed."""
    (tmp_path / "diagnosis.py").write_text(FILE.read_text())
    matrix().write(tmp_path / "trace.json.gz", packed=True)
    command = [sys.executable, "-I", "-S", "diagnosis.py", "trace.json.gz", "--memory", "4000", "--bfloat16", "700"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "mostly matrix" in done.stdout and "% of its ceiling" in done.stdout


@pytest.mark.parametrize("text", ["", "[]", "{}", "no json", '{"traceEvents": []}'])
def test_what_is_no_trace_is_refused(tmp_path, text, capsys):
    path = tmp_path / "trace.json"
    path.write_text(text)
    assert diagnosis.main([str(path)]) == 2
    assert "diagnosis: " in capsys.readouterr().err
    assert diagnosis.main([str(tmp_path / "missing.json")]) == 2
