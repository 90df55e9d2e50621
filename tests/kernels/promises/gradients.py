"""Gradients are those that autograd asks for, and no others."""

import itertools

import torch
from torch.utils.checkpoint import checkpoint

from tests.benchmarks import stand_ins
from tests.benchmarks.sides import tupled
from tests.kernels.promises.inputs import SOME, randn
from tests.kernels.promises.launches import Launcher
from tests.kernels.promises.stated import Stated


class Gradients(Stated):
    def test_gradient_only_where_it_is_asked_for(self, path, device):
        arguments = self.make((SOME, path), torch.float32, device)
        expected = self.run(self.function, arguments)
        grads = self.incoming([expected[name] for name in self.outputs])
        for index, name in enumerate(self.inputs):
            leaf = arguments[index].detach().requires_grad_()
            returned = self.function(*arguments[:index], leaf, *arguments[index + 1 :])
            outputs = tupled(returned)
            assert torch.equal(torch.autograd.grad(outputs, leaf, grads)[0], expected[f"{name}.grad"]), name
        for returned in (self.function(*arguments), self.without_gradients(arguments)):
            outputs = tupled(returned)
            for name, y in zip(self.outputs, outputs, strict=True):
                assert not y.requires_grad and torch.equal(y, expected[name]), name

    def without_gradients(self, arguments):
        with torch.no_grad():
            return self.function(arguments[0].detach().requires_grad_(), *arguments[1:])

    def test_frozen_parameters_cost_nothing(self, path, device):
        """Where only what has rows asks for a gradient, nothing is kept or added up for the others."""
        arguments = self.make((SOME, path), torch.bfloat16, device)
        launched = []
        spies = {
            name: Launcher(kernel, lambda name=name: launched.append(name))
            for name, kernel in stand_ins.kernels_of(self.kernel).items()
        }
        with stand_ins.replaced(self.kernel, **spies):
            self.run_frozen(arguments)
        assert len(launched) > 1 and not set(launched) & set(self.SUMS)

    def test_optional_inputs_may_be_none(self, path, device):
        arguments = self.make((SOME, path), torch.bfloat16, device)
        for count in range(1, len(self.OPTIONAL) + 1):
            for missing in itertools.combinations(self.OPTIONAL, count):
                _Without(self, missing).check(
                    [t for name, t in zip(self.inputs, arguments, strict=True) if name not in missing]
                )

    def test_an_output_that_is_not_used_gives_no_gradient(self, device):
        """None, as PyTorch's operators do, and not zeros; also where what used it has no gradient for it."""
        arguments = self.make((3, 100), torch.float32, device)

        class Unused(torch.autograd.Function):
            @staticmethod
            def forward(ctx, y):
                return y.clone()

            @staticmethod
            def backward(ctx, dy):
                return None

        for used in (*range(len(self.outputs)), None):
            missing = []
            for function in (self.function, self.plain):
                leaves = [t.detach().requires_grad_() for t in arguments[: len(self.inputs)]]
                outputs = tupled(function(*leaves, *arguments[len(self.inputs) :]))
                y = Unused.apply(outputs[0]) if used is None else outputs[used]
                grads = torch.autograd.grad(y.square().sum(), leaves, allow_unused=True)
                missing.append([name for name, grad in zip(self.inputs, grads, strict=True) if grad is None])
            assert missing[0] == missing[1], used

    def test_backward_twice_through_one_graph(self, path, device):
        arguments = self.make((SOME, path), torch.float32, device)
        leaves = [t.detach().requires_grad_() for t in arguments[: len(self.inputs)]]
        returned = self.function(*leaves, *arguments[len(self.inputs) :])
        outputs = tupled(returned)
        grads = self.incoming(outputs)
        first = [t.clone() for t in torch.autograd.grad(outputs, leaves, grads, retain_graph=True)]
        for once, again in zip(first, torch.autograd.grad(outputs, leaves, grads), strict=True):
            assert torch.equal(once, again)

    def test_gradients_do_not_share_memory(self, device):
        arguments = self.make((3, 100), torch.float32, device)
        leaves = [t.detach().requires_grad_() for t in arguments[: len(self.inputs)]]
        returned = self.function(*leaves, *arguments[len(self.inputs) :])
        outputs = tupled(returned)
        torch.autograd.backward(outputs, self.incoming(outputs))
        assert len({t.grad.data_ptr() for t in leaves}) == len(leaves)

    def test_gradients_in_batches(self, device):
        arguments = self.make((3, 100), torch.float32, device)
        leaves = [t.detach().requires_grad_() for t in arguments[: len(self.inputs)]]
        outputs = tupled(self.function(*leaves, *arguments[len(self.inputs) :]))
        batches = [randn((2, *y.shape), y.dtype, device, seed) for seed, y in enumerate(outputs)]
        together = torch.autograd.grad(outputs, leaves, batches, retain_graph=True, is_grads_batched=True)
        mapped = torch.func.vmap(lambda *grads: torch.autograd.grad(outputs, leaves, grads, retain_graph=True))(
            *batches
        )
        for name, one, other in zip(self.inputs, together, mapped, strict=True):
            assert torch.equal(one, other), name
        for index in range(2):
            single = torch.autograd.grad(outputs, leaves, [t[index] for t in batches], retain_graph=True)
            for name, all_of_them, once in zip(self.inputs, together, single, strict=True):
                assert torch.equal(all_of_them[index], once), name

    def test_activation_checkpointing(self, device):
        arguments = self.make((3, 100), torch.bfloat16, device)
        checkpointed = self.run(lambda *a: checkpoint(self.function, *a, use_reentrant=False), arguments)
        self.assert_equal(checkpointed, self.run(self.function, arguments))


class _Without(Stated):
    """The same promises of a function some of whose inputs are None; as summands they count as ones."""

    def __init__(self, promises: Stated, missing: tuple[str, ...]):
        self.promises, self.all = promises, promises.inputs
        self.inputs = tuple(name for name in self.all if name not in missing)
        self.outputs = promises.outputs

    def filled(self, given, other=lambda: None) -> list:
        """The arguments of all inputs, where `given` has those that are there."""
        present = dict(zip(self.inputs, given[: len(self.inputs)], strict=True))
        return [present[name] if name in present else other() for name in self.all]

    def function(self, *given):
        return self.promises.function(*self.filled(given))

    def plain(self, *given):
        return self.promises.plain(*self.filled(given))

    def summands(self, arguments, grads, reference):
        ones = torch.ones_like(arguments[0][0])
        found = self.promises.summands(self.filled(arguments, lambda: ones), grads, reference)
        return {name: value for name, value in found.items() if name in reference}
