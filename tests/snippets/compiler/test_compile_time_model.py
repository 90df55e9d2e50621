"""Each way to compile is the same function, in as many graphs as the page says."""

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend

from snippets.compiler.compile_time_model import Block, Region, Stack, compile_model

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
