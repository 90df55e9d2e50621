"""What every kernel in kernels/ promises. A test file states its function in a subclass and inherits the tests.

The conftest beside it gives `columns` the values of the class's GRID, and `path` those of its PATHS.
"""

import contextlib
import importlib.util
import inspect
import itertools
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import ModuleType

import pytest
import torch
import torch._dynamo.testing
import triton.language as tl
from torch import Tensor
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.checkpoint import checkpoint
from triton.backends.amd.compiler import HIPOptions
from triton.backends.compiler import GPUTarget

from snippets.validation.compiled_code import TARGETS
from snippets.validation.equivalence import check, compare
from tests import gpu
from tests.benchmarks import stand_ins
from tests.benchmarks.sides import tupled
from tests.kernels import compiled, starving

GPU = torch.cuda.is_available()
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
SOME = 4 if GPU else 2  # rows, where their number does not matter: interpreted, each takes its time
COUNTS = ("TILES", "PARTS", "PROGRAMS", "KEPT")  # in launch tables, what grows with the row
UNSEEN = ("AHEAD", "SLOTS", "num_warps", "maxnreg", "enable_fp_fusion", "STORE", "W1", "W2")  # by the interpreter
STRIDES = ("rows of a wider tensor", "every other row", "every other column", "transposed", "one row expanded",
           "one number expanded")  # fmt: skip
# x, weight and bias that a layer norm must refuse, with what, and saying what
NO_LAYER_NORM = (
    (torch.ones(2, 8).int(), torch.ones(8), torch.ones(8), TypeError, "x: expected .*fp32.* got torch.int32"),
    (torch.ones(2, 8), torch.ones(8).double(), torch.ones(8), TypeError, "weight: .* got torch.float64"),
    (torch.ones(2, 8), torch.ones(8), torch.ones(8).int(), TypeError, "bias: .* got torch.int32"),
    (torch.ones(2, 8), [1.0] * 8, torch.ones(8), TypeError, "weight: expected .*tensor, got <class 'list'>"),
    (torch.ones(2, 8), torch.ones(8), 1e-5, TypeError, "bias: expected .*tensor, got <class 'float'>"),
    ([1.0], torch.ones(1), torch.ones(1), TypeError, "x: expected .*tensor, got <class 'list'>"),
    (torch.ones(2, 8), torch.ones(7), torch.ones(8), ValueError, r"weight: expected shape \[8\], got \[7\]"),
    (torch.ones(2, 8), torch.ones(8), torch.ones(2, 8), ValueError, r"bias: expected shape \[8\], got \[2, 8"),
    (torch.ones(()), torch.ones(()), torch.ones(()), ValueError, "x: expected at least one dimension, got no"),
    (torch.ones(2, 8), torch.ones(8), torch.ones(8, device="meta"), ValueError, "bias: expected on .*, where "),
)  # fmt: skip
# Bytes of a GPU for each element of the first argument, while results are compared with float64: at most, RoPE in fp32.
PEAK = 162
COPIES = itertools.count()
needs_gpu = pytest.mark.skipif(not GPU, reason="needs a GPU")


def randn(shape, dtype, device, seed=0, offset=0.0) -> Tensor:
    """Normal numbers, the same on every device."""
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(shape, generator=generator) + offset).to(device, dtype)


def placed(argument: object, device) -> object:
    """An argument on the device; what is no tensor, or is elsewhere on purpose, as it is."""
    return argument.to(device) if isinstance(argument, Tensor) and argument.device.type != "meta" else argument


def largest_partial_sum(terms: Tensor) -> float:
    """Of the sums over all rows: each is a summand of the next one."""
    return terms.reshape(-1, terms.shape[-1]).cumsum(0).abs().max().item()


def strided(name: str, shape, dtype, device) -> Tensor:
    """A tensor of this shape (rows, columns) with these strides."""
    rows, columns = shape
    base = randn((2 * rows, 2 * columns), dtype, device, seed=1)
    return {
        "rows of a wider tensor": lambda: base[:rows, columns // 2 : columns // 2 + columns],
        "every other row": lambda: base[::2, :columns],
        "every other column": lambda: base[:rows, ::2],
        "transposed": lambda: base.view(2 * columns, 2 * rows)[:columns, :rows].t(),
        "one row expanded": lambda: base[:1, :columns].expand(rows, columns),
        "one number expanded": lambda: base[0, 0].expand(rows, columns),
    }[name]()


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


class _Launcher:
    """Calls `seen` at each launch of a Triton kernel."""

    def __init__(self, kernel, seen):
        self.kernel, self.seen = kernel, seen

    def __getitem__(self, grid):
        self.seen()
        return self.kernel[grid]


class Promises:
    """Subclass as TestNAME and state what the kernel is.

    Attributes:
        kernel: the module, from `conftest.load`.
        name: of the public function.
        inputs: names of the arguments that get a gradient: the first ones, in order. Others follow them.
        outputs: names of what is returned.
        GRID: row lengths at which errors are held against the bound.
        EDGES: those of them that are also held where no kernel is compiled: a tile with one column at the row's end.
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

    # ---- correct ------------------------------------------------------------------------------------------------

    @classmethod
    def held(cls) -> list[tuple[int, torch.dtype]]:
        """Row lengths and dtypes at which errors are held against the bound.

        Interpreted, wide rows take their time: of those for which a dtype has the same launches, but for their counts
        of tiles and programs, one, beside EDGES.
        """
        if GPU:
            return list(itertools.product(cls.GRID, DTYPES))
        kept = []
        for dtype in DTYPES:
            seen = set()
            for columns in cls.GRID:
                launches = cls.launched(columns, dtype)
                if columns <= 2048 or columns in cls.EDGES or launches not in seen:
                    kept.append((columns, dtype))
                seen.add(launches)
        return kept

    @classmethod
    def launched(cls, columns: int, dtype: torch.dtype) -> tuple:
        """What tells the launches at a row length from others: their constants, counts as none, one or many."""
        launches = (cls.kernel._forward_launch, cls.kernel._backward_launch)
        options = [launch(columns, 8 * dtype.itemsize, torch.device("cpu")) for launch in launches]
        return tuple(
            (name, min(value, 2) if name in COUNTS else value)
            for launch in options
            for name, value in launch.items()
            if name not in UNSEEN
        )

    def test_error_within_the_bound(self, columns, dtype, device):
        rows = (1021 if columns < 65536 else 569) if GPU else 37 if columns < 2048 else 3 if columns < 65536 else 2
        self.check(self.make((rows, columns), dtype, device))  # on a GPU more than run at once, four a multiprocessor

    def test_every_row_is_written_whatever_the_number_of_rows(self, path, device):
        for rows in (1, 2, 5, 2049) if GPU else (1, 2, 5):
            self.check(self.make((rows, path), torch.bfloat16, device, seed=rows))

    @pytest.mark.parametrize("shape", ((8,), (1, 8), (2, 3, 8), (2, 1, 3, 2, 8)), ids=str)
    def test_any_leading_shape(self, shape, device):
        arguments = self.make(shape, torch.float32, device)
        ours, plain = self.check(arguments), self.run(self.plain, arguments)
        assert {name: t.shape for name, t in ours.items()} == {name: t.shape for name, t in plain.items()}

    @pytest.mark.parametrize("shape", ((0, 8), (2, 0, 8), (3, 0)), ids=str)
    def test_empty_input(self, shape, device):
        arguments = self.make(shape, torch.float32, device)
        ours, plain = self.run(self.function, arguments), self.run(self.plain, arguments)
        for name, t in plain.items():
            assert torch.equal(ours[name], t), name

    @pytest.mark.parametrize("other", DTYPES, ids=str)
    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    @pytest.mark.filterwarnings("ignore:Mismatch dtype")  # F.rms_norm's, on its own speed
    def test_mixed_dtypes_and_autocast_as_pytorch(self, dtype, other, device):
        if other != dtype and not self.OTHER_DTYPES:
            pytest.skip("one dtype for all arguments")
        arguments = self.make((5, 48), dtype, device, other)
        self.check(arguments)
        for enabled in (False, True):
            with torch.autocast(device.type, torch.bfloat16, enabled=enabled):
                ours, plain = self.run(self.function, arguments), self.run(self.plain, arguments)
            assert {n: t.dtype for n, t in ours.items()} == {n: t.dtype for n, t in plain.items()}, f"{enabled=}"

    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    def test_extreme_values(self, path, dtype, device):
        """Rows of zeros, tiny, huge, all equal, and far from zero."""
        first, *others = self.make((6, path), dtype, device)
        largest = min(torch.finfo(dtype).max / 8, self.LARGEST)
        first[0], first[1], first[2] = 0, first[1] * 1e-4, first[2].clamp(-1, 1) * largest
        first[3], first[4] = 3, first[4] + 1000
        self.check((first, *others))

    def test_nan_and_inf_as_pytorch_and_in_their_row(self, path, device):
        arguments = self.make((3, path), torch.bfloat16, device)
        clean = self.run(self.function, arguments)
        for value in (float("nan"), float("inf"), -float("inf")):
            first = arguments[0].clone()
            first[1, 5] = value
            ours, plain = (self.run(f, (first, *arguments[1:])) for f in (self.function, self.plain))
            for name, t in plain.items():
                assert torch.equal(ours[name].isnan(), t.isnan()), (name, value)
                if t.shape == first.shape:
                    assert torch.equal(ours[name][::2], clean[name][::2]), (name, value)

    # ---- memory -------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("columns_, strides", [(n, s) for s in STRIDES for n in (40, 2500)] + [(8200, STRIDES[0])])
    def test_any_strides_of_inputs_and_of_incoming_gradients(self, strides, columns_, device):
        shape, dtype = (4, columns_), torch.bfloat16
        arguments = self.make(shape, dtype, device)
        odd = strided(strides, shape, dtype, device)
        assert not odd.is_contiguous()
        for index in self.rows_of(arguments):
            self.check((*arguments[:index], odd, *arguments[index + 1 :]))
        outputs = [self.run(self.plain, arguments)[name] for name in self.outputs]
        if all(y.shape == shape for y in outputs):
            self.check(arguments, tuple(odd for _ in outputs))

    def test_rows_apart_on_every_path(self, path, device):
        """Each tensor at a distance of its own, and what comes back at another."""
        arguments = self.make((3, path), torch.bfloat16, device)
        outputs = [self.run(self.plain, arguments)[name] for name in self.outputs]

        def apart(t, further):
            if t.shape != arguments[0].shape:
                return t
            return torch.empty((3, path + further), dtype=t.dtype, device=device)[:, :path].copy_(t)

        leaves = [apart(t, 8 * index) for index, t in enumerate(arguments, 1)]
        self.check(leaves, [apart(t, 80 + 8 * index) for index, t in enumerate(self.incoming(outputs))])

    @pytest.mark.parametrize("layout", (torch.jagged, torch.strided), ids=str)
    def test_nested_tensors_are_taken_or_refused(self, layout, device):
        """As the tensors that they hold."""
        arguments = self.make((5, 100), torch.float32, device)
        offsets = torch.tensor([0, 2, 5], device=device)

        def nested(t):
            if t.shape[:1] != (5,):
                return t
            if layout == torch.jagged:
                return torch.nested.nested_tensor_from_jagged(t, offsets)
            return torch.nested.as_nested_tensor([t[:2], t[2:]])

        def function(*given):
            outputs = tupled(self.function(*map(nested, given)))
            assert all(y.layout == layout for y in outputs)
            return tuple(y.values() if layout == torch.jagged else torch.cat(y.unbind()) for y in outputs)

        if not self.NESTED:
            public = getattr(self.kernel, self.name)
            with pytest.raises(TypeError, match=r"^\w+: expected a plain tensor, got a nested one[^\n]*$"):
                public(*map(nested, arguments))
            return
        ours, expected = self.run(function, arguments), self.run(self.function, arguments)
        for name, t in expected.items():
            torch.testing.assert_close(ours[name], t, msg=lambda text, name=name: f"{name}: {text}")
        for index, name in enumerate(self.inputs[1:], 1):
            with pytest.raises((TypeError, ValueError), match=rf"^{name}: expected [^\n]*$"):
                self.function(*arguments[:index], nested(arguments[0]), *arguments[index + 1 :])

    def test_leading_dimensions_that_no_view_joins(self, device):
        first, *others = self.make((3, 4, 40), torch.float32, device)
        turned = [t.transpose(0, 1) if t.shape == first.shape else t for t in (first, *others)]
        self.check(turned)

    @pytest.mark.parametrize("rows, further", ((2, 2**31), (3, 2**30)))  # the second: strides of int32 only
    def test_rows_more_than_2_to_the_31_elements_apart(self, path, rows, further, device):
        """To the bit: what divides their distance, and with it the width of an access, is as it was."""
        apart = path + further
        arguments = self.make((rows, path), torch.bfloat16, device)
        near = self.run(self.function, arguments)
        grads = self.incoming([near[name] for name in self.outputs])

        def far(t):
            if t.shape != arguments[0].shape:
                return t
            memory = torch.empty(
                (rows - 1) * apart + path, dtype=t.dtype, device=device
            )  # untouched pages cost nothing
            return memory.as_strided(t.shape, (apart, 1)).copy_(t)

        self.assert_equal(self.run(self.function, [far(t) for t in arguments], [far(t) for t in grads]), near)

    @needs_gpu
    @pytest.mark.parametrize("wide", (1000, 131072))
    def test_more_than_2_to_the_31_elements(self, wide, device):
        rows = 2**31 // wide + 3
        few = self.make((7, wide), torch.bfloat16, device)
        many = [t.repeat(rows // 7 + 1, 1)[:rows] if t.shape == few[0].shape else t for t in few]
        assert many[0].numel() > 2**31
        expected = self.run(self.function, few)
        grads = [expected[name] for name in self.outputs]
        expected = self.run(self.function, few, grads)
        ours = self.run(self.function, many, [t.repeat(rows // 7 + 1, 1)[:rows] for t in grads])
        for name, t in expected.items():
            if t.shape == few[0].shape:
                last = (rows - 7) % 7
                assert torch.equal(ours[name][:7], t), name
                assert torch.equal(ours[name][rows - 7 :], t.roll(-last, 0)), name

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

    def test_inputs_are_not_touched(self, path, device):
        arguments = self.make((SOME, path), torch.bfloat16, device)
        before = [t.clone() for t in arguments]
        ours = self.run(self.function, arguments)
        grads = self.incoming([ours[name] for name in self.outputs])
        kept = [t.clone() for t in grads]
        self.run(self.function, arguments, grads)
        for t, copy in zip((*arguments, *grads), (*before, *kept), strict=True):
            assert torch.equal(t, copy) and t._version == 0

    # ---- autograd -----------------------------------------------------------------------------------------------

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
            name: _Launcher(kernel, lambda name=name: launched.append(name))
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

    def test_bitwise_the_same_in_every_run(self, path, device):
        rows = min(5000, 2**27 // path) if GPU else max(3, min(40, 2**16 // path))
        arguments = self.make((rows, path), torch.bfloat16, device)
        first = self.run(self.function, arguments)
        grads = self.incoming([first[name] for name in self.outputs])
        for _ in range(20 if GPU else 1):
            self.assert_equal(self.run(self.function, arguments, grads), first)

    @pytest.mark.parametrize("loss", (torch.sum, lambda y: y.square().sum()), ids=("linear", "square"))
    def test_double_backward_is_refused(self, loss, device):
        """Also where dy needs no gradient: torch's once_differentiable lets that pass, and its gradient is lost."""
        arguments = self.make((3, 100), torch.float32, device)
        leaf = arguments[0].requires_grad_()
        returned = self.function(*arguments)
        outputs = tupled(returned)
        with pytest.raises(RuntimeError, match=f"{self.name}: expected a backward without create_graph=True, got one"):
            torch.autograd.grad(sum(loss(y) for y in outputs), leaf, create_graph=True)

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

    def test_forward_mode_and_torch_func_are_refused(self, device):
        """The operators would return results without a derivative, and gradients of zero."""
        arguments = self.make((3, 100), torch.float32, device)
        first, *others = arguments

        def function(x):
            return tupled(self.function(x, *others))[0]

        refused = pytest.raises(RuntimeError, match=f"{self.name}: expected a call outside torch.func")
        for transformed in (
            lambda: torch.func.jvp(function, (first,), (torch.ones_like(first),)),
            lambda: torch.func.jacfwd(function)(first),
            lambda: torch.func.grad(lambda x: function(x).sum())(first),
            lambda: torch.func.jacrev(function)(first),
            lambda: torch.func.vmap(function)(first[None]),
        ):
            with refused:
                transformed()
            with refused:
                torch.compile(transformed, backend="eager")()
        compiled_function = torch.compile(function, backend="eager")
        leaf = first.clone().requires_grad_()
        y = function(leaf)
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(first, torch.ones_like(first))
            for call in (function, compiled_function):
                with refused:
                    call(dual)
            for index, t in enumerate(others, 1):
                if t.is_floating_point():
                    t = forward_ad.make_dual(t.clone(), torch.ones_like(t))
                    with refused:
                        self.function(*arguments[:index], t, *arguments[index + 1 :])
            with refused:
                torch.autograd.grad(y, leaf, forward_ad.make_dual(torch.ones_like(y), torch.ones_like(y)))
            function(first)  # without a tangent

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

    @contextlib.contextmanager
    def copied(self) -> Iterator[None]:
        """With another copy of the file, just imported."""
        name = f"another_package_{next(COPIES)}.{self.name}"  # operators have names, and stay
        spec = importlib.util.spec_from_file_location(name, self.kernel.__file__)
        copy = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(copy)
        original, self.kernel = self.kernel, copy
        try:
            yield
        finally:
            self.kernel = original

    def test_another_copy_of_the_file_in_the_same_process(self, device):
        """As where two packages both carry it."""
        arguments = self.make((3, 100), torch.float32, device)
        expected = self.run(self.function, arguments)
        with self.copied():
            self.assert_equal(self.run(self.function, arguments), expected)

    def test_default_dtype_and_device_change_nothing(self, path, device):
        """Not a bit."""
        arguments = self.make((SOME, path), torch.float32, device)
        expected = self.run(self.function, arguments)
        grads = self.incoming([expected[name] for name in self.outputs])
        with self.other_defaults(), self.copied():
            self.assert_equal(self.run(self.function, arguments, grads), expected)

    def test_default_dtype_and_device_change_no_launch(self, path):
        """What a kernel gets, where the bits may hide it."""
        arguments = self.make((SOME, path), torch.float32, torch.device("cpu"))
        dtypes, grads = [], None
        for defaults in (contextlib.nullcontext, self.other_defaults):
            with defaults(), self.copied(), compiled.recording(self.kernel, "sm_90") as launches:
                results = self.run(self.function, arguments, grads)
            grads = self.incoming([results[name] for name in self.outputs])
            dtypes.append([[getattr(t, "dtype", None) for t in launch.arguments] for launch in launches])
        assert dtypes[0] and dtypes[0] == dtypes[1]

    @contextlib.contextmanager
    def other_defaults(self) -> Iterator[None]:
        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.bfloat16)
        try:
            with torch.device("meta"):
                yield
        finally:
            torch.set_default_dtype(before)

    def test_activation_checkpointing(self, device):
        arguments = self.make((3, 100), torch.bfloat16, device)
        checkpointed = self.run(lambda *a: checkpoint(self.function, *a, use_reentrant=False), arguments)
        self.assert_equal(checkpointed, self.run(self.function, arguments))

    # ---- compiled and captured ----------------------------------------------------------------------------------

    def test_opcheck(self, device):
        for op, arguments in self.opchecks(device):
            torch.library.opcheck(op, arguments)

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

    # ---- in company -----------------------------------------------------------------------------------------------

    @pytest.mark.skipif(GPU, reason="a GPU starts programs in an order of its own")
    @pytest.mark.parametrize("order", ("reversed", "random"))
    def test_programs_may_start_in_any_order(self, order, path, device):
        from tests.kernels import interpreter

        if not self.WAITING and path != self.PATHS[0]:
            pytest.skip("no program waits for another: one path is enough")
        arguments = self.make((3, path), torch.bfloat16, device)
        expected = self.run(self.function, arguments)

        def numbers(count):
            return (
                list(reversed(range(count)))
                if order == "reversed"
                else random.Random(count).sample(range(count), count)
            )

        with interpreter.programs_in(numbers):
            self.assert_equal(self.run(self.function, arguments), expected)

    @needs_gpu
    @pytest.mark.parametrize("free", (16, 2, 1))
    def test_finishes_where_few_multiprocessors_are_free(self, free, device):
        """To the bit: whoever has to wait for long does the others' work, in the same order."""
        lengths = {*self.PATHS, *self.GRID[-5:], *self.WAITING}
        inputs = [self.make((rows, columns), torch.bfloat16, device) for columns in lengths for rows in (1, 40)]

        def runs():
            return [
                starving.finished(lambda arguments=arguments: self.run(self.function, arguments))
                for arguments in inputs
            ]

        expected = runs()  # and all is compiled, loaded and allocated
        with starving.all_but(free):
            ours = runs()
        for arguments, once, again in zip(inputs, expected, ours, strict=True):
            assert again is not None, f"{list(arguments[0].shape)} did not finish"
            self.assert_equal(again, once)

    @needs_gpu
    def test_streams_of_mixed_priorities(self, device):
        if not self.WAITING:
            pytest.skip("no program waits for another")
        inputs = [
            self.make((64, columns), torch.bfloat16, device, seed=seed) for seed in range(6) for columns in self.WAITING
        ]
        starving.on_streams([lambda arguments=arguments: self.function(*arguments) for arguments in inputs], 600)

    # ---- devices ------------------------------------------------------------------------------------------------

    @pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
    def test_on_a_device_that_is_not_the_current_one(self, path):
        assert torch.cuda.current_device() == 0
        self.check(self.make((300, path), torch.bfloat16, torch.device("cuda:1")))
        assert torch.cuda.current_device() == 0

    def test_every_launch_is_on_the_device_of_x(self, path, device, monkeypatch):
        """Triton launches on the current device, so a guard for x's must be there: seen with one device, too."""
        guards, launches = [], []

        @contextlib.contextmanager
        def device_of(tensor):
            guards.append(tensor.device)
            with real(tensor):
                yield
            guards.pop()

        real = torch.cuda.device_of
        monkeypatch.setattr(torch.cuda, "device_of", device_of)
        launchers = {
            name: _Launcher(kernel, lambda: launches.append(guards[-1:]))
            for name, kernel in stand_ins.kernels_of(self.kernel).items()
        }
        arguments = self.make((2, path), torch.float32, device)
        with stand_ins.replaced(self.kernel, **launchers):
            self.run(self.function, arguments)
        assert len(launches) >= self.LAUNCHES and all(guard == [arguments[0].device] for guard in launches)

    def test_no_launch_compares_a_constant(self):
        """Triton compares the global constants of a kernel with what they were, at each launch."""
        assert not [name for name, value in vars(self.kernel).items() if isinstance(value, tl.constexpr)]

    def test_launches_fit_any_gpu(self):
        every = (1, 3, 100, 2048, 2049, 5120, 8192, 8193, 20000, 32768, 32769, 262144)
        for warp_size in (32, 64):
            with stand_ins.replaced(self.kernel, _device=lambda device, warp_size=warp_size: (132, warp_size)):
                for columns, bits in itertools.product(every, (16, 32)):
                    for launch in (self.kernel._forward_launch, self.kernel._backward_launch):
                        options = launch(columns, bits, torch.device("cuda"))
                        warps = options["num_warps"]
                        assert 1 <= warps * warp_size <= 1024 and warps & (warps - 1) == 0, (columns, options)

    @pytest.mark.parametrize("warp", (32, 64))
    def test_an_amd_gpu_gets_no_option_that_its_backend_refuses(self, warp, monkeypatch):
        target = f"gfx-{warp}"
        for table, value in (
            (TARGETS, GPUTarget("hip", target, warp)),
            (stand_ins.MULTIPROCESSORS, 96),
            (stand_ins.SHARED_MEMORY, 64 * 1024),
        ):
            monkeypatch.setitem(table, target, value)
        monkeypatch.setattr(torch.version, "hip", "7.0")
        odd = () if all(columns % 2 == 0 for columns in self.GRID) else (9001, 25001)
        for columns in {*self.PATHS, *self.GRID[-5:], *odd}:
            arguments = self.make((3, columns), torch.bfloat16, torch.device("cpu"))
            for run in (lambda: self.run(self.function, arguments), lambda: self.run_frozen(arguments)):  # noqa: B023
                for launch in compiled.recorded(self.kernel, run, target):
                    known = {*launch.kernel.arg_names, *HIPOptions.__dataclass_fields__}
                    assert launch.keywords.keys() <= known, (columns, launch.keywords)

    def of_length(self, columns: int, largest: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Arguments with rows of this length, in the memory of longer ones."""

        def cut(t):
            return t.flatten()[: t[..., 0].numel() * columns].view(*t.shape[:-1], columns)

        return tuple(cut(t) if t.shape[-1:] == largest[0].shape[-1:] else t for t in largest)

    @pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float32), ids=str)
    def test_row_lengths_share_compiled_kernels(self, dtype):
        """1,000 lengths, from 65 to 2^18. A launch table has a row for each doubling of the length at least, as tiles
        have powers of two: in a doubling there are at most 12 variants for each direction."""
        largest = self.make((3, 2**18 if self.MOST_COLUMNS >= 2**18 else 2**13), dtype, torch.device("cpu"))
        for octave, count in ((octave, 84 if octave < 10 else 83) for octave in range(6, 18)):
            found: dict[str, set] = {"forward": set(), "backward": set()}
            for i in range(count):
                columns = 2**octave + 1 + (2**octave - 1) * i // (count - 1)
                arguments = self.of_length(columns - columns % (1, 8, 2, 64)[i % 4], largest)
                leaves = [t.detach().requires_grad_() for t in arguments[: len(self.inputs)]]
                with compiled.recording(self.kernel, "sm_90") as launches:
                    outputs = tupled(self.function(*leaves, *arguments[len(self.inputs) :]))
                    forward = len(launches)
                    torch.autograd.grad(outputs, leaves, [torch.empty_like(y) for y in outputs])
                for direction, of in (("forward", launches[:forward]), ("backward", launches[forward:])):
                    found[direction].update(compiled.variant(launch, "sm_90") for launch in of)
            assert all(len(variants) <= 12 for variants in found.values()), (octave, found)

    # ---- machine code, with no GPU ------------------------------------------------------------------------------

    def launches(self, columns: int, target: str) -> list[compiled.Launch]:
        """What forward and backward launch at a row length, in bf16; nothing runs."""
        arguments = self.make((160, columns), torch.bfloat16, torch.device("cpu"))
        return compiled.recorded(self.kernel, lambda: self.run(self.function, arguments), target)


class _Without(Promises):
    """The same promises of a function some of whose inputs are None; as summands they count as ones."""

    def __init__(self, promises: Promises, missing: tuple[str, ...]):
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
