"""What each mode of torch.compile is in this version."""

import inspect
from types import SimpleNamespace

import pytest
import torch
from torch._inductor import utils as inductor_utils

from snippets.compiler import modes_options
from snippets.compiler.modes_options import MODES


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
    modes_options.compiled(abs, "max-autotune")
    assert seen["options"] == MODES["max-autotune"] and seen["options"] is not MODES["max-autotune"]
    modes_options.compiled(abs, "freezing")
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
