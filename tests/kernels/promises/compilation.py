"""torch.compile takes the kernel as one operator, forward and backward."""

import itertools
import os

import pytest
import torch
import torch._dynamo.testing
from torch import Tensor

from tests.benchmarks.sides import tupled
from tests.kernels.promises.inputs import GPU
from tests.kernels.promises.stated import Stated


class Compilation(Stated):
    def test_opcheck(self, device):
        """Of a copy of the file, what is quick and calls all functions of its operators."""
        quick = {"test_utils": ("test_schema", "test_faketensor")} if "RIDGEPOINT_KERNELS" in os.environ else {}
        for op, arguments in self.opchecks(device):
            torch.library.opcheck(op, arguments, **quick)

    @pytest.mark.parametrize("dynamic", (False, True))
    def test_compiles_as_one_graph(self, dynamic, device):
        torch._dynamo.reset()
        counter = torch._dynamo.testing.CompileCounterWithBackend("inductor" if GPU else "aot_eager")

        def step(first, *others):
            returned = self.function(first * 2, *others)
            return returned + 1 if isinstance(returned, Tensor) else tuple(y + 1 for y in returned)

        compiled_step = torch.compile(step, fullgraph=True, dynamic=dynamic, backend=counter)
        graphs = None
        for shape in ((3, 100), (5, 100), (3, 200)) if dynamic else ((3, 100),):
            arguments = self.make(shape, torch.float32, device)
            ours, expected = self.run(compiled_step, arguments), self.run(step, arguments)
            for name, t in expected.items():
                torch.testing.assert_close(ours[name], t, msg=lambda text, name=name: f"{name}: {text}")
            assert counter.frame_count == (graphs or counter.frame_count), "one graph for all sizes"
            graphs = counter.frame_count
        with torch.autocast(device.type, torch.bfloat16):
            arguments = self.make((3, 100), torch.bfloat16, device)
            ours = torch.compile(self.function, fullgraph=True, backend="eager")(*arguments)
            assert tupled(ours)[0].dtype == tupled(self.plain(*arguments))[0].dtype

    @pytest.mark.parametrize("compiled_autograd", (False, True))
    def test_backward_inside_compiled_code(self, compiled_autograd, device):
        arguments = self.make((3, 100), torch.float32, device)
        expected = self.run(self.function, arguments)
        grads = self.incoming([expected[name] for name in self.outputs])

        def loss(*given):
            return sum((y * g).sum() for y, g in zip(tupled(self.function(*given)), grads, strict=True))

        for backend, forward in itertools.product(
            ("eager", "inductor") if GPU else ("eager",), ("in it, too", "eager")
        ):
            torch._dynamo.reset()
            leaves = [t.detach().requires_grad_() for t in arguments[: len(self.inputs)]]
            given = (*leaves, *arguments[len(self.inputs) :])
            torch.manual_seed(0)
            with torch._dynamo.config.patch(compiled_autograd=compiled_autograd):
                if forward == "eager":
                    torch.compile(lambda value: value.backward(), backend=backend)(loss(*given))
                else:
                    torch.compile(lambda *given: loss(*given).backward(), backend=backend)(*given)
            for name, leaf in zip(self.inputs, leaves, strict=True):
                t = expected[f"{name}.grad"]
                torch.testing.assert_close(leaf.grad, t, msg=lambda text, name=name: f"{backend}, {name}: {text}")  # noqa: B023
