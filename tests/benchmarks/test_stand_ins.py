"""Every kernel file keeps to the protocol, and what stood in is gone afterwards, answers that were kept included."""

import importlib
from pathlib import Path

import pytest
import torch

from tests.benchmarks import stand_ins
from tests.benchmarks.source import ROOT

KERNELS = sorted({path.stem for path in Path(ROOT / "kernels").glob("[a-z]*.py") if path.stem[-5:] != "_cuda"})
CPU = torch.device("cpu")


def test_every_kernel_file_has_the_names_of_the_protocol():
    modules = [importlib.import_module(f"kernels.{name}") for name in KERNELS]
    missing = [
        f"{module.__name__}: {name}" for module in modules for name in stand_ins.REQUIRED if not hasattr(module, name)
    ]
    assert not missing, f"expected these, as {stand_ins.__file__} says: {missing}"
    assert all(map(stand_ins.kernels_of, modules))


@pytest.mark.parametrize("name", KERNELS)
def test_a_launch_table_answers_for_the_gpu_that_stands_in_and_then_for_the_device(name):
    kernel = importlib.import_module(f"kernels.{name}")
    for target in stand_ins.MULTIPROCESSORS:
        before, own = dict(vars(kernel)), dict(kernel._forward_launch(4096, 16, CPU))
        with stand_ins.on(kernel, target):
            size = kernel._device(CPU)
            assert size == (stand_ins.MULTIPROCESSORS[target], 64 if target == "gfx942" else 32)
            warps = kernel._forward_launch(4096, 16, CPU)["num_warps"]
            if target == "gfx942":
                assert warps == max(1, own["num_warps"] // 2), "a warp has twice the threads there"
        assert vars(kernel) == before and kernel._forward_launch(4096, 16, CPU) == own


def test_a_table_s_answer_is_noted_or_replaced_for_one_direction():
    kernel = importlib.import_module("kernels.softmax")
    before = dict(vars(kernel))
    with stand_ins.noting(kernel) as answers:
        options = kernel._backward_launch(4096, 16, CPU)
    assert answers == {"backward": ((4096, 16), options)}
    with stand_ins.launching(kernel, "forward", {"num_warps": 7}):
        assert kernel._forward_launch(4096, 16, CPU) == {"num_warps": 7}
        assert kernel._backward_launch(4096, 16, CPU) == options
    assert vars(kernel) == before


def test_what_a_kernel_file_does_not_have_cannot_be_replaced():
    kernel = importlib.import_module("kernels.swiglu")
    with pytest.raises(AttributeError, match="_shared_memory"), stand_ins.replaced(kernel, _shared_memory=None):
        pass
