"""What the kernel cannot do is refused in one clear line: sizes, options, ways to differentiate."""

import inspect
from collections.abc import Iterable
from functools import partial

import pytest
import torch
import torch._dynamo
from torch.autograd import forward_ad

from tests.benchmarks.sides import tupled
from tests.kernels.promises.stated import Stated


class Refusals(Stated):
    def beyond_count(self, device) -> Iterable[tuple]:
        """Arguments with a row, or a column, more than the kernel counts; expanded, they cost nothing."""
        for shape in ((2**30 + 1, 1), (1, self.MOST_COLUMNS + 1)):
            small = self.make((1, 1), torch.bfloat16, device)
            yield tuple(t.expand(shape if t.dim() == 2 else shape[1:]) for t in small)

    def test_more_rows_or_columns_than_are_counted_are_refused(self, device):
        for arguments in self.beyond_count(device):
            with pytest.raises(ValueError, match=r"expected at most .*, got .*(1073741825|67108865)"):
                self.function(*arguments)

    def test_wrong_options_are_named(self, device):
        """By what has a default, whatever it is given: no error of the operator's schema, or of a comparison in it."""
        arguments = self.public(self.make((3, 8), torch.float32, device))
        function = getattr(self.kernel, self.name)
        for name in list(inspect.signature(function).parameters)[len(arguments) :]:
            for wrong in ("nonsense", [1.0], 1j, torch.ones(3, device=device), object()):
                with pytest.raises((TypeError, ValueError), match=f"^{name}: expected .*, got "):
                    function(*arguments, **{name: wrong})

    @pytest.mark.parametrize("loss", (torch.sum, lambda y: y.square().sum()), ids=("linear", "square"))
    def test_double_backward_is_refused(self, loss, device):
        """Also where dy needs no gradient: torch's once_differentiable lets that pass, and its gradient is lost."""
        arguments = self.make((3, 100), torch.float32, device)
        leaf = arguments[0].requires_grad_()
        returned = self.function(*arguments)
        outputs = tupled(returned)
        with pytest.raises(RuntimeError, match=f"{self.name}: expected a backward without create_graph=True, got one"):
            torch.autograd.grad(sum(loss(y) for y in outputs), leaf, create_graph=True)

    def test_forward_mode_and_torch_func_are_refused(self, device):
        """The operators would return results without a derivative, and gradients of zero."""
        first, *others = self.make((3, 100), torch.float32, device)
        function = partial(self.of_first, others)
        for transformed in (
            lambda: torch.func.jvp(function, (first,), (torch.ones_like(first),)),
            lambda: torch.func.jacfwd(function)(first),
            lambda: torch.func.grad(lambda x: function(x).sum())(first),
            lambda: torch.func.jacrev(function)(first),
            lambda: torch.func.vmap(function)(first[None]),
        ):
            with self.refused():
                transformed()
        leaf = first.clone().requires_grad_()
        y = function(leaf)
        with forward_ad.dual_level():
            with self.refused():
                function(forward_ad.make_dual(first, torch.ones_like(first)))
            for index, t in enumerate(others):
                if t.is_floating_point():
                    t = forward_ad.make_dual(t.clone(), torch.ones_like(t))
                    with self.refused():
                        self.function(first, *others[:index], t, *others[index + 1 :])
            with self.refused():
                torch.autograd.grad(y, leaf, forward_ad.make_dual(torch.ones_like(y), torch.ones_like(y)))
            function(first)  # without a tangent

    def test_they_are_in_compiled_code_too(self, device):
        """Each kind of transform alone: what jacfwd and jacrev compose."""
        torch._dynamo.reset()
        first, *others = self.make((3, 100), torch.float32, device)
        function = partial(self.of_first, others)
        for transformed in (
            lambda: torch.func.jvp(function, (first,), (torch.ones_like(first),)),
            lambda: torch.func.grad(lambda x: function(x).sum())(first),
            lambda: torch.func.vmap(function)(first[None]),
        ):
            with self.refused():
                torch.compile(transformed, backend="eager")()
        compiled_function = torch.compile(function, backend="eager")
        with forward_ad.dual_level(), self.refused():
            compiled_function(forward_ad.make_dual(first, torch.ones_like(first)))

    def of_first(self, others, first):
        return tupled(self.function(first, *others))[0]

    def refused(self):
        return pytest.raises(RuntimeError, match=f"{self.name}: expected a call outside torch.func")
