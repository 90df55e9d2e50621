"""Results are right: within the bound, of any shape and dtype, the same in every run."""

import itertools

import pytest
import torch

from tests.kernels.promises.inputs import DTYPES, GPU, SOME
from tests.kernels.promises.stated import Stated

COUNTS = ("TILES", "PARTS", "PROGRAMS", "KEPT")  # in launch tables, what grows with the row
UNSEEN = ("AHEAD", "SLOTS", "num_warps", "maxnreg", "enable_fp_fusion", "STORE", "W1", "W2")  # by the interpreter


class Results(Stated):
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
        short, long = (1021, 569) if GPU else (self.ROWS if columns < 2048 else 3, 2)
        rows = short if columns < 65536 else long  # on a GPU more than run at once, four a multiprocessor
        self.check(self.make((rows, columns), dtype, device))

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

    def test_bitwise_the_same_in_every_run(self, path, device):
        rows = min(5000, 2**27 // path) if GPU else max(3, min(40, 2**16 // path))
        arguments = self.make((rows, path), torch.bfloat16, device)
        first = self.run(self.function, arguments)
        grads = self.incoming([first[name] for name in self.outputs])
        for _ in range(20 if GPU else 1):
            self.assert_equal(self.run(self.function, arguments, grads), first)

    def test_inputs_are_not_touched(self, path, device):
        arguments = self.make((SOME, path), torch.bfloat16, device)
        before = [t.clone() for t in arguments]
        ours = self.run(self.function, arguments)
        grads = self.incoming([ours[name] for name in self.outputs])
        kept = [t.clone() for t in grads]
        self.run(self.function, arguments, grads)
        for t, copy in zip((*arguments, *grads), (*before, *kept), strict=True):
            assert torch.equal(t, copy) and t._version == 0
