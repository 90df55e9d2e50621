"""The bars and arrows of a step, on synthetic traces."""

import json
from types import SimpleNamespace

import pytest
import torch

from snippets.validation.profiling import read, record, steps_of
from snippets.validation.profiling_timeline import timeline
from tests.snippets.validation.traces import ahead, launching, replayed, waiting


@pytest.fixture
def path(tmp_path):
    return tmp_path / "trace.json"


def lanes_of(step) -> dict:
    return {lane["name"]: lane["bars"] for lane in json.loads(timeline(step))["lanes"]}


@pytest.mark.parametrize("trace", [launching, waiting, replayed, ahead])
def test_the_site_draws_each(trace, path):
    figure = pytest.importorskip("docs.publish.macros.timelines").figure  # not on every GPU machine
    step = trace().steps(path)[1]
    assert figure(SimpleNamespace(script="a/b", section="x", content=timeline(step)), "A step").startswith("<svg")


def test_bars_have_kinds(path):
    lanes = lanes_of(waiting().steps(path)[1])
    assert list(lanes) == ["named by record_function", "operations", "CUDA calls", "GPU"]
    assert [bar[2:] for bar in lanes["CUDA calls"]] == [
        ["cudaLaunchKernel", "launch"], ["cudaStreamSynchronize", "wait"], ["cudaLaunchKernel", "launch"],
    ]  # fmt: skip
    assert lanes["GPU"][1] == [610, 20, "add (vectorized_elementwise_kernel)", "kernel"]
    lanes = lanes_of(replayed().steps(path)[1])
    assert [bar[3] for bar in lanes["GPU"]] == ["compiled", "kernel", "compiled"]
    assert lanes["operations"] == [[10, 10, "Torch-Compiled Region: 0/0", "compiled"]]


def test_of_a_cuda_graph_only_the_first_kernel_has_an_arrow(path):
    assert json.loads(timeline(replayed().steps(path)[1]))["arrows"] == [[12, 20]]
    assert len(json.loads(timeline(launching().steps(path)[1]))["arrows"]) == 3


@pytest.mark.skipif(torch.cuda.is_available(), reason="has a GPU")
def test_without_a_gpu_there_are_two_lanes(path):
    record(lambda: torch.ones(64).add(1), path)
    assert list(lanes_of(steps_of(read(path))[1])) == ["named by record_function", "operations"]
