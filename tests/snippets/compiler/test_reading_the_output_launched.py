"""What is noted of launches is what Inductor chose, the trace is read rightly, and each kernel gets its line."""

import math
import re

import pytest
import torch

from snippets.compiler import reading_the_output_launched
from snippets.compiler.reading_the_output_launched import launch_table, profile_table, trial_table
from snippets.compiler.reading_the_output_noted import Configuration, noted
from snippets.compiler.reading_the_output_profiled import Ran, profiled
from snippets.compiler.reading_the_output_provenance import lines_of_kernels
from snippets.compiler.reading_the_output_triton import block

SMALL = Configuration((("XBLOCK", 512),), 8, 1)
LARGE = Configuration((("XBLOCK", 1024),), 4, 1)

gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def ran(name: str, seconds: float = 1e-6) -> Ran:
    return Ran(name, (2048, 1, 1), (256, 1, 1), 40, seconds)


def test_the_launches_are_laid_beside_what_the_gpu_got():
    text = launch_table([("triton_poi_0", SMALL)], [ran("nvjet_tst"), ran("triton_poi_0")])
    assert re.search(r"^triton_poi_0 +2048 +256 +40\n +XBLOCK 512 +num_warps +8 +num_stages 1$", text, re.M)
    two = Ran("triton_poi_0", (64, 3, 1), (128, 1, 1), 40, 1e-6)
    assert " 64x3 " in launch_table([("triton_poi_0", SMALL)], [two])
    with pytest.raises(RuntimeError, match="expected triton_poi_0 to be launched, the profiler saw triton_red_1"):
        launch_table([("triton_poi_0", SMALL)], [ran("triton_red_1")])


def test_the_fastest_that_was_tried_has_a_star():
    name, slow, fast = trial_table({"triton_poi_0": {LARGE: 2e-6, SMALL: 1e-6}}).splitlines()
    assert name == "triton_poi_0" and "*" not in slow and fast.startswith("  * XBLOCK 512") and fast.endswith("1.0 us")


def test_every_kernel_has_its_line_where_each_launch_is_one_kernel():
    graphs = [{"extern_kernels.mm:1": ["f.py:4: y = x @ w"], "triton_poi_0:2": ["f.py:5: return y * 2"]}]
    lines = profile_table([ran("nvjet_tst", 3e-6), ran("triton_poi_0")], graphs).splitlines()[1:]
    assert [line.split()[2] for line in lines] == ["75.0%", "25.0%"]
    assert lines[0].endswith("y = x @ w") and lines[1].endswith("return y * 2")
    split = [ran("nvjet_tst_splitK"), ran("splitKreduce"), ran("triton_poi_0")]
    lines = profile_table(split, graphs).splitlines()[1:]
    assert not any(line.endswith("w") for line in lines) and lines[2].endswith("return y * 2")


@pytest.mark.skipif(torch.cuda.is_available(), reason="what a machine without a GPU says")
def test_without_a_gpu_the_script_says_so(capsys):
    reading_the_output_launched.main()
    assert capsys.readouterr().out.startswith("needs a GPU")


@gpu
def test_the_grid_is_what_the_configuration_says():
    shapes = (4096, 256), (256, 512), (512,), (512, 256)
    inputs = [torch.randn(shape, device="cuda").bfloat16().requires_grad_() for shape in shapes]
    compiled = torch.compile(block, dynamic=False)

    def step() -> None:
        compiled(*inputs).float().square().sum().backward()

    graphs = lines_of_kernels(step)
    with noted() as (launches, _):
        kernels = profiled(step)
    generated = [kernel for kernel in kernels if kernel.name.startswith("triton_")]
    assert [kernel.name for kernel in generated] == [name for name, _ in launches] and len(launches) >= 5
    for (name, chosen), kernel in zip(launches, generated, strict=True):
        assert math.prod(kernel.threads) == 32 * chosen.warps
        if name == "triton_poi_fused_mul_silu_0":
            assert kernel.grid[0] == 4096 * 512 // dict(chosen.sizes)["XBLOCK"]
    named = {launch.partition(":")[0] for graph in graphs for launch in graph}
    assert {name for name, _ in launches} <= named
