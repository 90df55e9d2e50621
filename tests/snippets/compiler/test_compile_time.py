"""What a start is made of, that each way to compile is the same function, and what the page says of its tables."""

import math
import re
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend

from snippets.compiler import compile_time
from snippets.compiler.compile_time import (
    SIZES,
    Block,
    Region,
    Stack,
    Start,
    at_depth,
    break_even,
    compile_model,
    inside,
    start,
)
from tests.benchmarks.captures import contents, sections

MODULE = "snippets.compiler.compile_time"
LAYERS = 3


@pytest.fixture(autouse=True)
def one_thread():
    """As the script has it on a CPU."""
    usual = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.compiler.reset()
    yield
    torch.set_num_threads(usual)


def stack(kind: type[nn.Module] = Block) -> Stack:
    torch.manual_seed(0)
    return Stack([kind(64, 2) for _ in range(LAYERS)])


@torch.inference_mode()
def compiled(way: str, graph_of: str = "aot_eager") -> CompileCounterWithBackend:
    """How a way of compiling captured the model; its result is that of the model as it is."""
    model, counter = stack(Region if way == "nested" else Block), CompileCounterWithBackend(graph_of)
    x = torch.randn(1, 16, 64)
    expected = model(x)
    compile_model(model, way, backend=counter)
    torch.testing.assert_close(model(x), expected)
    model(x)
    return counter


def calls(graph: torch.fx.GraphModule, target: str) -> int:
    return sum(target in str(node.target) for node in graph.graph.nodes)


def test_whole_is_one_graph_of_all_layers():
    (graph,) = compiled("whole").graphs
    assert calls(graph, "scaled_dot_product_attention") == LAYERS


def test_each_layer_is_one_graph_that_the_layers_share():
    (graph,) = compiled("regional").graphs
    assert calls(graph, "scaled_dot_product_attention") == 1


def test_a_nested_region_stands_once_in_the_graph_and_is_called_for_every_layer():
    (graph,) = compiled("nested").graphs
    assert calls(graph, "invoke_subgraph") == LAYERS and not calls(graph, "scaled_dot_product_attention")
    (region,) = [module for name, module in graph.named_children()]
    assert calls(region, "scaled_dot_product_attention") == 1


def test_an_input_from_outside_of_inference_mode_is_compiled_for_by_itself():
    """The first layer gets it, and the second what the first made inside."""
    model, counter = stack(), CompileCounterWithBackend("eager")
    compile_model(model, "regional", backend=counter)
    x = torch.randn(1, 16, 64)
    with torch.inference_mode():
        model(x)
    assert len(counter.graphs) == 2


def test_sequential_compiled_in_place_is_compiled_layer_by_layer():
    """Why the model is a class of ours."""
    found = {}
    for what, model in (("ours", stack()), ("Sequential", nn.Sequential(*stack().layers))):
        counter = CompileCounterWithBackend("eager")
        torch.compiler.reset()
        model.compile(backend=counter)
        with torch.no_grad():
            model(torch.randn(1, 16, 64))
        found[what] = [calls(graph, "scaled_dot_product_attention") for graph in counter.graphs]
    assert found == {"ours": [LAYERS], "Sequential": [1]}
    counter = CompileCounterWithBackend("eager")
    torch.compile(nn.Sequential(*stack().layers), backend=counter)(torch.randn(1, 16, 64))
    assert [calls(graph, "scaled_dot_product_attention") for graph in counter.graphs] == [LAYERS]


def test_sequential_of_layers_of_pytorch_compiled_in_place_is_not_compiled():
    model, counter = nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.Linear(4, 4)), CompileCounterWithBackend("eager")
    torch.compiler.reset()
    model.compile(backend=counter)
    model(torch.randn(2, 4))
    assert counter.frame_count == 0
    torch.compile(model.forward, backend=counter)(torch.randn(2, 4))
    assert counter.frame_count == 1


def test_a_layer_that_differs_is_captured_by_itself():
    """On torch 2.11 as a region of its own; 2.13 writes a region that is used once into the graph around it."""
    model, counter = stack(Region), CompileCounterWithBackend("eager")
    model.layers[1].heads = 4
    compile_model(model, "nested", backend=counter)
    with torch.inference_mode():
        model(torch.randn(1, 16, 64))
    (graph,) = counter.graphs
    regions = {node.args[1] for node in graph.graph.nodes if "invoke_subgraph" in str(node.target)}
    inside, alone = len(regions), calls(graph, "scaled_dot_product_attention")
    assert inside + alone == 2
    known = {"2.11": (2, 0), "2.13": (1, 1)}
    assert (inside, alone) == known.get(torch.__version__[:4], (inside, alone))


# ---- a start --------------------------------------------------------------------------------------------------------


def test_a_start_has_every_stage_and_the_second_one_finds_what_the_first_left(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    torch._dynamo.utils.counters.clear()
    torch._dynamo.utils.clear_compilation_metrics()
    began = compile_time.time.time() - 100
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


def test_a_new_process_is_told_of_its_cache_and_of_no_other(monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_FORCE_DISABLE_CACHES", "1")
    monkeypatch.setenv("TRITON_CACHE_DIR", "/elsewhere")
    variables = compile_time.environment("/here", TORCHINDUCTOR_COMPILE_THREADS="1")
    told = {name: value for name, value in variables.items() if name.startswith(("TORCH", "TRITON"))}
    assert told == {"TORCHINDUCTOR_CACHE_DIR": "/here", "TORCHINDUCTOR_COMPILE_THREADS": "1"}


def test_a_process_that_fails_is_said_in_one_line(tmp_path):
    with pytest.raises(RuntimeError, match=r"^whole, 1 layers: FileNotFoundError.*missing"):
        compile_time.measured("whole", 1, SIZES["cpu"], str(tmp_path), load=str(tmp_path / "missing"))


# ---- the exercises --------------------------------------------------------------------------------------------------


def taking(first: float, later: float = 0.0) -> Start:
    return Start(stages={"import torch": 1.0, "first step": first}, later=later)


def test_compiling_pays_once_the_steps_have_saved_what_the_start_cost():
    eager, fast = taking(0.0, later=3e-3), taking(10.0, later=1e-3)
    assert break_even(eager, fast) == pytest.approx(5000)
    assert break_even(eager, taking(10.0, later=3e-3)) == math.inf
    assert break_even(taking(20.0, later=3e-3), fast) == 0


def test_a_deeper_model_is_on_the_line_through_the_two_deepest():
    starts = {1: taking(100.0), 4: taking(5.0), 16: taking(11.0)}
    assert at_depth(starts, 64) == pytest.approx(11 + 48 * 0.5)


# ---- the script, and what the page says of its tables ---------------------------------------------------------------


def rows(text: str, section: str) -> list[str]:
    return sections(text)[section].splitlines()


def test_cold_is_cold_and_warm_is_warm(script):
    done = script(MODULE)
    assert done.returncode == 0, done.stderr
    found = [
        re.match(r"(.*?) +compilations (\d+) +cache hits (\d+) +misses (\d+)", row)
        for row in rows(done.stdout, "graphs")
    ]
    counts = {match[1]: tuple(map(int, match.groups()[1:])) for match in found if match}
    assert set(counts) == {"whole, cold", "nested, cold", "each layer, cold", "whole, warm", "each layer, artifacts"}
    cold = 1 + torch.cuda.is_available()  # there the first call also times launch settings, which counts as one
    for what, count in counts.items():
        assert count == ((cold, 0, 1) if what.endswith("cold") else (1, 1, 0)), what


# What the page says of the tables of the GPU, in words: whoever stores new ones learns here what no longer holds.


def stored(name: str) -> list[str]:
    """The lines of a stored table."""
    script = "compiler/compile_time_workers" if name == "workers" else "compiler/compile_time"
    return contents(script, "cuda")[name].splitlines()


def numbers(name: str, row: str) -> dict[str, list[float]]:
    """The numbers of a stored table's rows, by what `row` matches at the start of a line."""
    found = ((match[0], line[match.end() :]) for line in stored(name) if (match := re.match(row, line)))
    return {
        " ".join(what.split()): [float(number) for number in re.findall(r"\d+(?:\.\d+)?", rest)] for what, rest in found
    }


WAYS = r"eager|(?:whole|nested|each layer), \w+"
DYNAMO, AUTOGRAD, INDUCTOR, KERNELS, CACHE, REST, FIRST = range(7)


def test_a_warm_step_has_no_stage_after_dynamo_and_is_shorter():
    seconds = numbers("seconds", r" *\d+ (?:cold|warm)")
    for layers in (1, 4, 16):
        cold, warm = (seconds[f"{layers} {state}"] for state in ("cold", "warm"))
        assert warm[AUTOGRAD] == warm[INDUCTOR] == warm[KERNELS] == 0 < warm[DYNAMO]
        assert warm[FIRST] < cold[FIRST]


def test_waiting_for_kernels_grows_less_with_depth_than_the_compilers_python():
    growth = numbers("growth", r"[A-Za-z]+(?= +\d)")
    assert growth["kernels"][0] < min(growth[stage][0] for stage in ("Dynamo", "AOTAutograd", "Inductor"))


def test_each_step_of_the_ladder_is_shorter_than_the_one_before():
    in_all = {what: row[-3] for what, row in numbers("starts", WAYS).items()}
    assert in_all["each layer, artifacts"] < in_all["each layer, cold"] < in_all["whole, cold"]
    assert in_all["each layer, artifacts"] < in_all["whole, warm"] < in_all["whole, cold"]
    assert in_all["nested, cold"] < in_all["whole, cold"]
    assert in_all["eager"] == min(in_all.values())


def test_with_a_warm_cache_most_of_a_start_is_not_in_its_steps():
    *before, steps, in_all, _, _ = numbers("starts", WAYS)["whole, warm"]
    assert steps < in_all / 2 and all(stage > 0 for stage in before[:4])


def test_compiling_the_whole_makes_later_steps_shorter():
    later = {what: row[-1] for what, row in numbers("starts", WAYS).items()}
    assert all(later[what] < later["eager"] for what in ("whole, cold", "whole, warm"))


def test_workers_help_once_they_are_there_and_alike_is_compiled_once():
    workers = numbers("workers", r"32 (?:distinct|alike) +(?:1 |as they start|all there)")
    kernels = {what: row[1] for what, row in workers.items()}
    assert kernels["32 distinct all there"] < kernels["32 distinct as they start"]
    assert kernels["32 distinct all there"] < kernels["32 distinct 1"]
    assert workers["32 distinct 1"][-2:] == [0, 32] and workers["32 alike as they start"][-1] == 1
