"""What a start is made of."""

import time
from types import SimpleNamespace

import pytest
import torch

from snippets.compiler.compile_time_model import SIZES
from snippets.compiler.compile_time_start import inside, start


@pytest.fixture(autouse=True)
def usual_threads():
    """A start on a CPU sets their number."""
    usual = torch.get_num_threads()
    yield
    torch.set_num_threads(usual)


def test_a_start_has_every_stage_and_the_second_one_finds_what_the_first_left(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    torch.compiler.reset()
    torch._dynamo.utils.counters.clear()
    torch._dynamo.utils.clear_compilation_metrics()
    began = time.time() - 100
    cold = start(began, "whole", 2, SIZES["cpu"], save=str(tmp_path / "artifacts"))
    assert (cold.compilations, cold.hits, cold.misses) == (1, 0, 1)
    assert cold.stages["import torch"] >= 100 and cold.total > 100
    assert cold.inside["Inductor"] > 0 and cold.inside["cache"] == 0
    assert sum(cold.inside.values()) <= cold.stages["first step"]

    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "elsewhere"))
    torch.compiler.reset()
    torch._dynamo.utils.counters.clear()
    torch._dynamo.utils.clear_compilation_metrics()
    warm = start(began, "whole", 2, SIZES["cpu"], load=str(tmp_path / "artifacts"))
    assert (warm.compilations, warm.hits, warm.misses) == (1, 1, 0)
    assert warm.inside["cache"] > 0 and not warm.inside["Inductor"] and not warm.inside["AOTAutograd"]


def metrics(*microseconds: int | None) -> SimpleNamespace:
    names = ("dynamo", "aot_autograd", "inductor")
    found = {f"{name}_cumulative_compile_time_us": value for name, value in zip(names, microseconds, strict=False)}
    return SimpleNamespace(**found, triton_compile_time_us=microseconds[3])


def test_stages_that_dynamo_counts_one_in_another_are_counted_once(monkeypatch):
    compiled, read = metrics(10_000_000, 9_000_000, 7_000_000, 4_000_000), metrics(2_000_000, 500_000, None, 100_000)
    monkeypatch.setattr(torch._dynamo.utils, "get_compilation_metrics", lambda: [compiled, read])
    count, seconds = inside()
    assert count == 2
    expected = {"Dynamo": 1 + 1.5, "AOTAutograd": 2, "Inductor": 3, "kernels": 4, "cache": 0.5}
    assert seconds == pytest.approx(expected) and list(seconds) == list(expected)
