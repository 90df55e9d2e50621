"""kernels/rms_norm.py: the same function as F.rms_norm, wherever and however it is called."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch._dynamo.testing
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from snippets.validation.equivalence import check
from tests.kernels.conftest import load

kernel = load("rms_norm")
rms_norm = kernel.rms_norm

ROOT = Path(__file__).parents[2]
GPU = torch.cuda.is_available()
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
NAMES = ("output", "x.grad", "weight.grad")
EPS = 1e-6
needs_gpu = pytest.mark.skipif(not GPU, reason="needs a GPU")


def plain(x, weight, eps=EPS):
    return F.rms_norm(x, x.shape[-1:], weight, eps)


def make(shape, dtype, device, weight_dtype=None, seed=0):
    """x, weight and dy, seeded."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=generator).to(device, dtype)
    weight = (torch.randn(shape[-1], generator=generator) + 1).to(device, weight_dtype or dtype)
    dy = torch.randn(shape, generator=generator).to(device, dtype)
    return x, weight, dy


def run(function, x, weight, dy):
    """Output and both gradients; the arguments keep their strides and stay free of graphs."""
    x, weight = x.detach().requires_grad_(), weight.detach().requires_grad_()
    y = function(x, weight)
    return y.detach(), *torch.autograd.grad(y, (x, weight), dy)


def check_against_float64(x, weight, dy):
    """The bound of snippets/validation/equivalence.py, with the largest summands of the kernel's formulas."""
    exact = [t.double() for t in (x, weight, dy)]
    reference = run(plain, *exact)
    rstd = (exact[0].square().mean(-1, keepdim=True) + EPS).rsqrt()
    x_hat, g = exact[0] * rstd, exact[2] * exact[1]
    mean = (g * x_hat).mean(-1, keepdim=True)
    summands = {
        "x.grad": (torch.maximum(g.abs(), (x_hat * mean).abs()) * rstd).max().item(),
        # a partial sum is a summand too; the last one is the result
        "weight.grad": max((exact[2] * x_hat).abs().max().item(), reference[2].abs().max().item()),
    }
    ours, baseline = run(rms_norm, x, weight, dy), run(plain, x, weight, dy)
    check(*(dict(zip(NAMES, results, strict=True)) for results in (ours, baseline, reference)), summands)
    return ours


# a thread's tile, a row tile and both limits of the launch table lie between these
COLUMNS = (1, 2, 3, 127, 192, 760, 1000, 1128, 4097, 9000, 16384, 32768, 65537, 128256, 262144)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("columns", COLUMNS)
def test_error_within_the_bound(columns, dtype, device):
    if not GPU and columns > 2048 and dtype != torch.bfloat16:
        pytest.skip("interpreted, wide rows are slow: one dtype")
    rows = 1021 if GPU else 37 if columns < 2048 else 3 if columns < 65536 else 2
    check_against_float64(*make((rows, columns), dtype, device))


@pytest.mark.parametrize("columns", (192, 1024, 9000))
def test_every_row_is_written_whatever_the_number_of_rows(columns, device):
    for rows in (1, 2, 5, 2049) if GPU else (1, 2, 5):
        check_against_float64(*make((rows, columns), torch.bfloat16, device, seed=rows))


@pytest.mark.parametrize("shape", ((8,), (1, 8), (2, 3, 8), (2, 1, 3, 2, 8)), ids=str)
def test_any_leading_shape(shape, device):
    y, dx, dweight = check_against_float64(*make(shape, torch.float32, device))
    assert y.shape == dx.shape == shape and dweight.shape == shape[-1:]


@pytest.mark.parametrize("shape", ((0, 8), (2, 0, 8), (3, 0)), ids=str)
def test_empty_input(shape, device):
    x, weight, dy = make(shape, torch.float32, device)
    y, dx, dweight = run(rms_norm, x, weight, dy)
    assert y.shape == dx.shape == shape
    assert torch.equal(dweight, torch.zeros_like(weight))


@pytest.mark.parametrize("weight_dtype", DTYPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.filterwarnings("ignore:Mismatch dtype")  # F.rms_norm's, on its own speed
def test_mixed_dtypes_and_autocast_as_pytorch(dtype, weight_dtype, device):
    x, weight, dy = make((5, 48), dtype, device, weight_dtype)
    check_against_float64(x, weight, dy)
    for enabled in (False, True):
        with torch.autocast(device.type, torch.bfloat16, enabled=enabled):
            expected = plain(x, weight)
            dy = dy.to(expected.dtype)
            ours, theirs = run(rms_norm, x, weight, dy), run(plain, x, weight, dy)
        assert [t.dtype for t in ours] == [t.dtype for t in theirs], f"{enabled=}"


def strided(name, shape, dtype, device):
    """A tensor of this shape with these strides."""
    rows, columns = shape
    base = torch.randn(2 * rows, 2 * columns, generator=torch.Generator().manual_seed(1)).to(device, dtype)
    return {
        "rows of a wider tensor": lambda: base[:rows, columns // 2 : columns // 2 + columns],
        "every other row": lambda: base[::2, :columns],
        "every other column": lambda: base[:rows, ::2],
        "transposed": lambda: base.view(2 * columns, 2 * rows)[:columns, :rows].t(),
        "one row expanded": lambda: base[:1, :columns].expand(rows, columns),
        "one number expanded": lambda: base[0, 0].expand(rows, columns),
    }[name]()


STRIDES = ("rows of a wider tensor", "every other row", "every other column", "transposed", "one row expanded",
           "one number expanded")  # fmt: skip


@pytest.mark.parametrize("strides, columns", [(s, n) for s in STRIDES for n in (40, 2500)] + [(STRIDES[0], 8200)])
def test_any_strides_of_x_and_of_the_incoming_gradient(strides, columns, device):
    shape, dtype = (4, columns), torch.bfloat16
    x, weight, dy = make(shape, dtype, device)
    odd = strided(strides, shape, dtype, device)
    assert not odd.is_contiguous()
    for inputs in ((odd, weight, dy), (x, weight, odd)):
        assert run(rms_norm, *inputs)[0].is_contiguous()
        check_against_float64(*inputs)


def test_strided_weight_and_leading_dimensions_that_no_view_joins(device):
    x, _, dy = make((3, 4, 40), torch.float32, device)
    weight = torch.randn(80, generator=torch.Generator().manual_seed(2)).to(device)[::2]
    check_against_float64(x.transpose(0, 1), weight, dy.transpose(0, 1))


@pytest.mark.parametrize("rows, apart", ((2, 2**31 + 16), (3, 2**30 + 16)))  # the second: strides of int32, offsets not
@pytest.mark.parametrize("columns", (64, 4096, 16384))
def test_rows_more_than_2_to_the_31_elements_apart(columns, rows, apart, device):
    x, weight, dy = make((rows, columns), torch.bfloat16, device)
    far = []
    for t in (x, dy):
        memory = torch.empty((rows - 1) * apart + columns, dtype=t.dtype, device=device)  # untouched pages cost nothing
        far.append(memory.as_strided(t.shape, (apart, 1)).copy_(t))
    for ours, expected in zip(run(rms_norm, far[0], weight, far[1]), run(rms_norm, x, weight, dy), strict=True):
        assert torch.equal(ours, expected)


@needs_gpu
@pytest.mark.parametrize("columns", (1000, 32768, 131072))
def test_more_than_2_to_the_31_elements(columns, device):
    rows = 2**31 // columns + 3
    x = torch.randn(7, columns, device=device).bfloat16().repeat(rows // 7 + 1, 1)[:rows]
    weight = torch.ones(columns, device=device, dtype=torch.bfloat16)
    assert x.numel() > 2**31
    y, dx, _ = run(rms_norm, x, weight, x)
    for part in (slice(0, 7), slice(rows - 7, rows)):
        few = run(rms_norm, x[part], weight, x[part])
        assert torch.equal(y[part], few[0]) and torch.equal(dx[part], few[1])


@pytest.mark.parametrize("columns", (128, 3000, 9000))
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_extreme_values(dtype, columns, device):
    x, weight, dy = make((4, columns), dtype, device)
    largest = min(torch.finfo(dtype).max / 8, 1e17)  # beyond, the sum of squares leaves the range of fp32
    x[0], x[1], x[2] = 0, x[1] * 1e-4, x[2].clamp(-1, 1) * largest
    check_against_float64(x, weight, dy)


@pytest.mark.parametrize("value", (float("nan"), float("inf")), ids=str)
def test_nan_and_inf_stay_in_their_row(value, device):
    x, weight, dy = make((3, 4096), torch.bfloat16, device)
    clean = run(rms_norm, x, weight, dy)
    x[1, 5] = value
    y, dx, dweight = run(rms_norm, x, weight, dy)
    assert torch.equal(y[::2], clean[0][::2]) and torch.equal(dx[::2], clean[1][::2])
    assert torch.equal(y[1].isnan(), plain(x, weight)[1].isnan())
    assert dx[1].isnan().any() and dweight.isnan().any()


def test_scale_of_the_row_does_not_matter(device):
    x, weight, _ = make((5, 1000), torch.float32, device)
    assert torch.equal(rms_norm(x, weight, eps=0.0), rms_norm(x * 2.0**20, weight, eps=0.0))


def test_eps(device):
    x, weight, _ = make((5, 1000), torch.float32, device)
    for eps in (1e-6, 1, 0.5):
        torch.testing.assert_close(rms_norm(x, weight, eps), plain(x, weight, eps))
    torch.testing.assert_close(rms_norm(x, weight), plain(x, weight, 1e-6))
    wide = x.repeat(1, 9)
    torch.testing.assert_close(rms_norm(wide, weight.repeat(9), 0.5), plain(wide, weight.repeat(9), 0.5))


@pytest.mark.parametrize(
    "x, weight, error, message",
    (
        (torch.ones(2, 8, dtype=torch.int32), torch.ones(8), TypeError, "x: expected .*fp32.* got torch.int32"),
        (torch.ones(2, 8), torch.ones(8).double(), TypeError, "weight: expected .*fp32.* got torch.float64"),
        (torch.ones(2, 8), None, TypeError, "weight: expected .*tensor, got <class 'NoneType'>"),
        ([1.0], torch.ones(1), TypeError, "x: expected .*tensor, got <class 'list'>"),
        (torch.ones(2, 8), torch.ones(7), ValueError, r"weight: expected shape \[8\], got \[7\]"),
        (torch.ones(2, 8), torch.ones(2, 8), ValueError, r"weight: expected shape \[8\], got \[2, 8\]"),
        (torch.ones(()), torch.ones(()), ValueError, "x: expected at least one dimension, got none"),
        (torch.ones(2, 8), torch.ones(8, device="meta"), ValueError, "weight: expected on .*, where x is, got meta"),
    ),
)  # fmt: skip
def test_wrong_input_is_named(x, weight, error, message, device):
    def there(t):
        return t.to(device) if isinstance(t, torch.Tensor) and t.device.type != "meta" else t

    with pytest.raises(error, match=message):
        rms_norm(there(x), there(weight))


def test_inputs_are_not_touched(device):
    for columns in (100, 4096, 9000):
        x, weight, dy = make((4, columns), torch.bfloat16, device)
        before = [t.clone() for t in (x, weight, dy)]
        run(rms_norm, x, weight, dy)
        for t, copy in zip((x, weight, dy), before, strict=True):
            assert torch.equal(t, copy) and t._version == 0


def test_gradient_only_where_it_is_asked_for(device):
    x, weight, dy = make((4, 100), torch.float32, device)
    _, dx, dweight = run(rms_norm, x, weight, dy)
    assert torch.equal(torch.autograd.grad(rms_norm(x.requires_grad_(), weight), x, dy)[0], dx)
    x = x.detach()
    assert torch.equal(torch.autograd.grad(rms_norm(x, weight.requires_grad_()), weight, dy)[0], dweight)
    for columns in (100, 3000):  # without gradients rstd is not stored, and the output is the same
        x, weight, dy = make((4, columns), torch.float32, device)
        y = rms_norm(x, weight)
        assert not y.requires_grad and torch.equal(y, run(rms_norm, x, weight, dy)[0])
        with torch.no_grad():
            assert not rms_norm(x.requires_grad_(), weight).requires_grad


@pytest.mark.parametrize("columns", (1000, 4096, 9000))
def test_bitwise_the_same_in_every_run(columns, device):
    inputs = make((5000 if GPU else 40, columns), torch.bfloat16, device)
    first = run(rms_norm, *inputs)
    for _ in range(20 if GPU else 1):
        for once, again in zip(first, run(rms_norm, *inputs), strict=True):
            assert torch.equal(once, again)


@pytest.mark.parametrize("loss", (torch.sum, lambda y: y.square().sum()), ids=("linear", "square"))
def test_double_backward_is_refused(loss, device):
    """Also where dy needs no gradient: torch's once_differentiable lets that pass, and its gradient is lost."""
    x, weight, _ = make((3, 100), torch.float32, device)
    x.requires_grad_()
    with pytest.raises(RuntimeError, match="rms_norm: expected a backward without create_graph=True, got one with"):
        torch.autograd.grad(loss(rms_norm(x, weight)), x, create_graph=True)


def test_activation_checkpointing(device):
    x, weight, dy = make((3, 100), torch.bfloat16, device)
    checkpointed = run(lambda x, w: checkpoint(rms_norm, x, w, use_reentrant=False), x, weight, dy)
    for ours, expected in zip(checkpointed, run(rms_norm, x, weight, dy), strict=True):
        assert torch.equal(ours, expected)


def test_opcheck(device):
    x, weight, dy = make((3, 100), torch.bfloat16, device)
    torch.library.opcheck(kernel._forward_op, (x, weight, EPS, x.dtype, False))
    torch.library.opcheck(kernel._forward_op, (x[:, :50], weight[:50], EPS, torch.float32, True))
    rstd = kernel._forward_op(x, weight, EPS, x.dtype, True)[1]
    torch.library.opcheck(kernel._backward_op, (dy, x, weight, rstd))


@pytest.mark.parametrize("dynamic", (False, True))
def test_compiles_as_one_graph(dynamic, device):
    torch._dynamo.reset()
    counter = torch._dynamo.testing.CompileCounterWithBackend("inductor" if GPU else "aot_eager")

    def step(x, weight):
        return rms_norm(x * 2, weight) + 1

    compiled = torch.compile(step, fullgraph=True, dynamic=dynamic, backend=counter)
    graphs = None
    for shape in ((3, 100), (5, 100), (3, 200)) if dynamic else ((3, 100),):
        inputs = make(shape, torch.float32, device)
        for ours, expected in zip(run(compiled, *inputs), run(step, *inputs), strict=True):
            torch.testing.assert_close(ours, expected)
        assert counter.frame_count == (graphs or counter.frame_count), "one graph for all sizes"
        graphs = counter.frame_count
    with torch.autocast(device.type, torch.bfloat16):
        x, weight, _ = make((3, 100), torch.bfloat16, device)
        assert torch.compile(rms_norm, fullgraph=True, backend="eager")(x, weight).dtype == plain(x, weight).dtype


@needs_gpu
@pytest.mark.parametrize("columns", (1000, 4096, 16384, 65536))
def test_cuda_graph_replays_on_new_inputs(columns, device):
    inputs = make((300, columns), torch.bfloat16, device)
    run(rms_norm, *inputs)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):  # forward too: autograd runs a backward on its forward's stream
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            results = run(rms_norm, *inputs)
    torch.cuda.current_stream().wait_stream(stream)
    for seed in (1, 2):
        fresh = make((300, columns), torch.bfloat16, device, seed=seed)
        for t, new in zip(inputs, fresh, strict=True):
            t.copy_(new)
        for t in results:
            t.fill_(float("nan"))  # a replay that does nothing must not pass
        graph.replay()
        for ours, expected in zip(results, run(rms_norm, *fresh), strict=True):
            assert torch.equal(ours, expected)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
@pytest.mark.parametrize("columns", (1000, 4096, 16384, 65536))
def test_on_a_device_that_is_not_the_current_one(columns):
    assert torch.cuda.current_device() == 0
    check_against_float64(*make((300, columns), torch.bfloat16, torch.device("cuda:1")))
    assert torch.cuda.current_device() == 0


@pytest.mark.parametrize("columns", (100, 2048, 9000, 40000))
def test_every_launch_is_on_the_device_of_x(columns, device, monkeypatch):
    """Triton launches on the current device, so a guard for x's must be there: seen with one device, too."""
    guards, launches = [], []

    @contextlib.contextmanager
    def device_of(tensor):
        guards.append(tensor.device)
        with real(tensor):
            yield
        guards.pop()

    class Launcher:
        def __init__(self, function):
            self.function = function

        def __getitem__(self, grid):
            launches.append(guards[-1:])
            return self.function[grid]

    real = torch.cuda.device_of
    monkeypatch.setattr(torch.cuda, "device_of", device_of)
    for name in [name for name in vars(kernel) if name.endswith("_kernel")]:
        monkeypatch.setattr(kernel, name, Launcher(getattr(kernel, name)))
    x, weight, dy = make((2, columns), torch.float32, device)
    run(rms_norm, x, weight, dy)
    assert len(launches) >= 3 and all(guard == [x.device] for guard in launches)


def test_launches_fit_any_gpu(monkeypatch):
    for warp_size in (32, 64):
        monkeypatch.setattr(kernel, "_device", lambda device, warp_size=warp_size: (132, warp_size))
        for columns in (1, 3, 100, 2048, 2049, 5120, 8192, 8193, 20000, 32768, 32769, 262144):
            for bits in (16, 32):
                device = torch.device("cuda", warp_size + columns + bits)  # a key of its own in the caches
                _, backward = kernel._backward_launch(columns, bits, device)
                for options in (kernel._forward_launch(columns, device), backward, kernel._sum_launch(columns, device)):
                    warps = options["num_warps"]
                    assert 1 <= warps * warp_size <= 1024 and warps & (warps - 1) == 0, (columns, options)


# --- what only a process of its own can show ---


def in_a_process_of_its_own(code: str, *arguments: str, cwd: Path = ROOT, isolated: bool = False) -> str:
    command = [sys.executable, *(["-I"] if isolated else []), "-c", code, *arguments]
    done = subprocess.run(
        command, cwd=cwd, env={**os.environ, "TRITON_INTERPRET": "0"}, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_stands_alone_and_reloads_and_refuses_a_cpu(tmp_path):
    shutil.copy(kernel.__file__, tmp_path / "rms_norm.py")
    code = """
import importlib, sys, torch
sys.path.insert(0, sys.argv[1])
import rms_norm
importlib.reload(rms_norm)
try:
    rms_norm.rms_norm(torch.ones(2, 8), torch.ones(8))
except ValueError as error:
    print(error)
"""
    said = in_a_process_of_its_own(code, str(tmp_path), cwd=tmp_path, isolated=True)
    assert said.strip() == "x: expected a GPU tensor, got one on the CPU (which needs TRITON_INTERPRET=1)"


@pytest.mark.skipif("RIDGEPOINT_KERNELS" in os.environ, reason="is that run")
def test_copied_alone_it_passes_its_tests(tmp_path):
    shutil.copy(kernel.__file__, tmp_path / "rms_norm.py")
    subset = "leading or empty or autocast or untouched or refused or checkpointing or opcheck or wrong_input or 1000"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", __file__, "-k", subset],
        cwd=ROOT, env={**os.environ, "RIDGEPOINT_KERNELS": str(tmp_path)}, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0 and " passed" in done.stdout, done.stdout


TYPES = dict.fromkeys(("x_ptr", "dy_ptr", "weight_ptr", "y_ptr", "dx_ptr", "dweight_ptr"), "*bf16")
TYPES |= dict.fromkeys(("rstd_ptr", "share_ptr"), "*fp32") | {"mean_ptr": None, "eps": "fp32"}
TYPES |= dict.fromkeys(("x_stride", "dy_stride", "M", "N", "P"), "i32")
COMPILE = """
import json, sys, torch
from tests.kernels.compiled import binary
from tests.kernels.conftest import load
types, jobs = json.loads(sys.argv[1])
kernel, facts = load("rms_norm"), []
for target, columns in jobs:
    device = torch.device("cuda", len(facts))
    kernel._device = lambda device: (132, 64 if target.startswith("gfx") else 32)
    for way in ("forward", "backward"):
        if way == "forward":
            name, options = "" if columns <= kernel._SHORT else "_wide", kernel._forward_launch(columns, device)
        else:
            name = "" if columns <= kernel._ONE_LOOK else "_wide"
            options = kernel._backward_launch(columns, 16, device)[1]
            options = options | ({} if name else {"WHOLE": True})
        facts.append((target, columns, way, binary(getattr(kernel, f"_{way}{name}_kernel"), types, options, target)))
print(json.dumps(facts))
"""


def compile_ahead(jobs):
    return json.loads(in_a_process_of_its_own(COMPILE, json.dumps([TYPES, jobs])))


def test_machine_code_at_the_published_shapes():
    for target, columns, way, facts in compile_ahead([("sm_90", n) for n in (1024, 4096, 16384, 32768)]):
        where = f"{way} at {columns} columns on {target}: {facts}"
        assert facts["stack"] == 0, where
        accesses = facts["accesses"]
        assert not any(kind.startswith(("LDL", "STL")) for kind in accesses), where  # to local memory: a spill
        assert any(kind.startswith("LDG") and kind.endswith("128") for kind in accesses), where
        assert any(kind.startswith("STG") and kind.endswith("128") for kind in accesses), where
        narrow = {kind: count for kind, count in accesses.items() if not kind.endswith("128")}
        ahead = sum(narrow.pop(kind) for kind in list(narrow) if kind.startswith("LDGSTS"))
        assert ahead <= 3 and sum(narrow.values()) <= 2, (
            where
        )  # rstd, one number a row; weight under several short rows


@pytest.mark.parametrize("target, shared", (("sm_80", 99 * 1024), ("sm_100", 99 * 1024), ("gfx942", 64 * 1024)))
def test_compiles_for_other_gpus_within_their_shared_memory(target, shared):
    for _, columns, way, facts in compile_ahead([(target, n) for n in (1000, 8192, 12288)]):
        assert facts["shared"] <= shared, (target, columns, way, facts)
        assert facts.get("stack", 0) == 0, (target, columns, way, facts)
