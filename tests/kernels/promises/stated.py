"""What a subclass states of its kernel, and how the function of the kernel is run and compared."""

from collections.abc import Iterable, Mapping
from types import ModuleType

import torch
from torch import Tensor

from snippets.validation.equivalence import check, compare
from tests import gpu
from tests.benchmarks.sides import tupled
from tests.kernels.promises.inputs import randn

# Bytes of a GPU for each element of the first argument, while results are compared with float64: at most, RoPE in fp32.
PEAK = 162


class Stated:
    """Subclass as TestNAME and state what the kernel is.

    Attributes:
        kernel: the module, from `conftest.load`.
        name: of the public function.
        inputs: names of the arguments that get a gradient: the first ones, in order. Others follow them.
        outputs: names of what is returned.
        GRID: row lengths at which errors are held against the bound.
        EDGES: those of them that are also held where no kernel is compiled: a tile with one column at the row's end.
        ROWS: how many rows are held there where no kernel is compiled, if short: more than programs have at once.
        STRIDED: row lengths that are held with any strides; of the last, rows of a wider tensor alone.
        PATHS: a row length for each way that the launch table can go; small ones, for they are used often.
        LARGEST: magnitude up to which the formula stays in the range of fp32.
        OTHER_DTYPES: whether the arguments after the first may have another dtype than the first.
        MOST_COLUMNS: the longest row that is not refused.
        WAITING: row lengths at which programs wait for each other.
        WRAPS: whether integers are meant to leave their range, as those of a generator of random bits do.
        LAUNCHES: fewest kernels that forward and backward launch.
        OPTIONAL: names of those inputs that may be None.
        NESTED: whether nested tensors are taken, as PyTorch's operators take them.
        SUMS: names of the kernels that serve the gradients of parameters alone.
    """

    kernel: ModuleType
    name: str
    inputs: tuple[str, ...] = ("x",)
    outputs: tuple[str, ...] = ("output",)
    GRID: tuple[int, ...] = (1, 2, 3, 127, 192, 760, 1000, 1128, 4097, 9000, 16384, 32000, 65537, 128256, 262144)
    EDGES: tuple[int, ...] = (4097, 65537)
    ROWS = 19
    STRIDED: tuple[int, int, int] = (40, 2500, 8200)
    PATHS: tuple[int, ...] = (100, 4096, 9000)
    LARGEST = 1e17
    OTHER_DTYPES = True
    MOST_COLUMNS = 2**30
    WAITING: tuple[int, ...] = ()
    WRAPS = False
    LAUNCHES = 2
    OPTIONAL: tuple[str, ...] = ()
    NESTED = True
    SUMS: tuple[str, ...] = ()

    # ---- what a subclass states ---------------------------------------------------------------------------------

    def function(self, *arguments):
        """Ours."""
        return getattr(self.kernel, self.name)(*arguments)

    def plain(self, *arguments):
        """PyTorch's, in any dtype."""
        raise NotImplementedError

    def make(self, shape, dtype, device, other=None, seed=0) -> tuple[Tensor, ...]:
        """The arguments, seeded: the first of `shape` and `dtype`, the others of dtype `other` or else `dtype`."""
        raise NotImplementedError

    def public(self, arguments) -> tuple[Tensor, ...]:
        """The arguments as the public function takes them, where that is not how `make` makes them."""
        return arguments

    def summands(self, arguments, grads, reference) -> Mapping[str, float]:
        """The largest summand of results whose terms cancel, by result name ("x.grad"); all given in float64.

        `grads` are the incoming gradients, `reference` the exact results by name.
        """
        return {}

    def opchecks(self, device) -> Iterable[tuple[object, tuple]]:
        """(op, arguments) for `torch.library.opcheck`: each op of the file, in each of its ways."""
        raise NotImplementedError

    # ---- running ------------------------------------------------------------------------------------------------

    def incoming(self, outputs, seed=100) -> tuple[Tensor, ...]:
        """Incoming gradients for these outputs."""
        return tuple(randn(y.shape, y.dtype, y.device, seed + index) for index, y in enumerate(outputs))

    def run(self, function, arguments, grads=None) -> dict[str, Tensor]:
        """Outputs and gradients by name; the arguments keep their strides and stay free of graphs."""
        leaves = [t.detach().requires_grad_() for t in arguments[: len(self.inputs)]]
        returned = function(*leaves, *arguments[len(self.inputs) :])
        outputs = tupled(returned)
        grads = self.incoming(outputs) if grads is None else grads
        gradients = torch.autograd.grad(outputs, leaves, grads)
        names = (*self.outputs, *(f"{name}.grad" for name in self.inputs))
        return dict(zip(names, (*(y.detach() for y in outputs), *gradients), strict=True))

    def run_frozen(self, arguments) -> None:
        """Only what has rows asks for a gradient."""
        rows = self.rows_of(arguments)
        given = [t.detach().requires_grad_() if index in rows else t for index, t in enumerate(arguments)]
        outputs = tupled(self.function(*given))
        torch.autograd.grad(outputs, [given[index] for index in rows], self.incoming(outputs))

    def check(self, arguments, grads=None) -> dict[str, Tensor]:
        """Hold ours against the bound of snippets/validation/equivalence.py; returns ours."""
        with gpu.room(PEAK * arguments[0].numel()):
            return self._check(arguments, grads)

    def _check(self, arguments, grads) -> dict[str, Tensor]:
        if grads is None:
            with torch.no_grad():
                grads = self.incoming(tupled(self.plain(*arguments)))
        baseline = self.run(self.plain, arguments, grads)
        exact = [t.double() if t.is_floating_point() else t for t in arguments]
        exact_grads = [t.double() for t in grads]
        reference = self.run(self.plain, exact, exact_grads)
        ours = self.run(self.function, arguments, grads)
        summands = self.summands(exact, exact_grads, reference)
        # Where all sums cancel to zero, the exact result does not tell how evenly errors are spread. To even ones the
        # check allows 4.25 eps of a summand by RMS in fp32, and 2 eps to the largest: there the second alone is held.
        fp32 = {name for name, result in ours.items() if result.dtype == torch.float32}
        cancelled = {name for name in fp32 & reference.keys() if not reference[name].any()}
        for name in cancelled:
            agreement = compare(ours[name], baseline[name], reference[name], summands.get(name))
            assert not agreement.problem and agreement.error <= agreement.bound, f"{name}: {agreement}"
        held = ({n: result for n, result in side.items() if n not in cancelled} for side in (ours, baseline, reference))
        check(*held, summands)
        return ours

    def assert_equal(self, ours, expected) -> None:
        """To the bit."""
        for name in expected:
            assert torch.equal(ours[name], expected[name]), name

    def rows_of(self, arguments) -> list[int]:
        """Indices of the differentiable arguments that have a row for each row of the first."""
        return [i for i, t in enumerate(arguments[: len(self.inputs)]) if t.shape == arguments[0].shape]
