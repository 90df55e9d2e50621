"""A graph that someone recorded computes what the kernel does: torch.export, make_fx, jit.trace, CUDA graphs."""

import itertools
from collections.abc import Callable

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from tests.benchmarks.sides import tupled
from tests.kernels.promises.inputs import needs_gpu
from tests.kernels.promises.stated import Stated


class _Module(torch.nn.Module):
    """A function as torch.export takes it."""

    def __init__(self, function: Callable):
        super().__init__()
        self.function = function

    def forward(self, *arguments):
        return self.function(*arguments)


# Who records a graph of a function. Each gets the arguments, too.
RECORDERS: dict[str, Callable] = {
    "export": lambda function, given: torch.export.export(_Module(function), given, strict=True).module(),
    "export, not strict": lambda function, given: (
        torch.export.export(_Module(function), given, strict=False).run_decompositions().module()
    ),
    "make_fx": lambda function, given: make_fx(function)(*given),
    "make_fx before autograd": lambda function, given: make_fx(function, pre_dispatch=True)(*given),
    "jit.trace": lambda function, given: torch.jit.trace(function, given, check_trace=False),
}


class Recording(Stated):
    @pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore:`torch.jit.trace:DeprecationWarning")
    def test_a_recorded_graph_keeps_the_gradient(self, device):
        """Whoever recorded it, and whether the example then needed a gradient."""
        arguments = self.make((3, 100), torch.float32, device)
        expected = self.run(self.function, arguments)
        for asked, (recorder, record) in itertools.product((False, True), RECORDERS.items()):
            given = tuple(
                t.detach().requires_grad_(asked and index < len(self.inputs)) for index, t in enumerate(arguments)
            )
            ours = self.run(record(lambda *given: self.function(*given), given), arguments)
            for name, t in expected.items():
                torch.testing.assert_close(ours[name], t, msg=lambda text, name=name: f"{recorder}, {name}: {text}")  # noqa: B023

    def test_a_recorded_backward_has_no_second_derivative(self, device):
        arguments = self.make((3, 100), torch.float32, device)
        leaves = tuple(t.requires_grad_() if index < len(self.inputs) else t for index, t in enumerate(arguments))

        def step(*given):
            torch.manual_seed(0)
            outputs = tupled(self.function(*given))
            return torch.autograd.grad(sum(y.square().sum() for y in outputs), given[: len(self.inputs)])

        graph = make_fx(step)(*leaves)
        torch.manual_seed(0)
        grads = graph(*leaves)
        for name, ours, t in zip(self.inputs, grads, step(*leaves), strict=True):
            torch.testing.assert_close(ours, t, msg=lambda text, name=name: f"{name}: {text}")
        with pytest.raises(RuntimeError, match=f"{self.name}: expected a backward without create_graph=True, got one"):
            torch.autograd.grad(sum(t.sum() for t in grads), leaves[0])

    @needs_gpu
    def test_cuda_graph_replays_on_new_inputs(self, path, device):
        arguments = self.make((300, path), torch.bfloat16, device)
        grads = self.incoming([t for n, t in self.run(self.function, arguments).items() if n in self.outputs])
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):  # forward too: autograd runs a backward on its forward's stream
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=stream):
                results = self.run(self.function, arguments, grads)
        torch.cuda.current_stream().wait_stream(stream)
        for seed in (1, 2):
            for t, new in zip(arguments, self.make((300, path), torch.bfloat16, device, seed=seed), strict=True):
                t.copy_(new)
            for t in results.values():
                t.fill_(float("nan"))  # a replay that does nothing must not pass
            graph.replay()
            self.assert_equal(results, self.run(self.function, arguments, grads))
