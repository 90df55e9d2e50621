"""kernels/softmax.py: the same function as F.softmax over the last dimension, wherever and however it is called."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from tests.benchmarks import stand_ins
from tests.kernels.compiled import INVERSE, POWER, STORE, SWEPT, MachineCode
from tests.kernels.conftest import load
from tests.kernels.promises import DTYPES, GPU, SOME, Promises, randn

INF = float("inf")
MACHINE_CODE = MachineCode(
    known=(
        ("_forward_row_kernel", "return tl.exp2(x * LOG2E)", *POWER),
        ("_forward_row_kernel", "scale = 1 / total", *INVERSE),
        ("_backward_row_kernel", "tl.store(dx_ptr + cols + tile * BLOCK", *STORE),
    ),
    spills={
        ("_forward_row_kernel", "sm_100"): (24, SWEPT),
        ("_backward_row_kernel", "sm_80"): (16, SWEPT),
        ("_backward_row_kernel", "sm_100"): (16, SWEPT),
    },
)
OWN = {  # definitions of the kernel file: see tests/pages/test_copies.py
    "_all_kept _arrived _exp _kept _look _lowest _missing _pairs _part_from_memory _receive "
    "_row_from_memory _send _together": "a maximum and a sum instead of a mean and squares; what is not there is -inf",
    "_nested _rows": "any dimension may be ragged, and rows may lie apart",
    "_Once": "cross_entropy",
    "_options": "layer_norm",
}


@pytest.mark.filterwarnings("ignore:(invalid|overflow|divide):RuntimeWarning:triton")  # numpy's, on rows made for it
class TestSoftmax(Promises):
    kernel = load("softmax")
    name = "softmax"
    PATHS = (100, 2048, 9000, 40000, *((20000, 70000) if GPU else ()))
    WAITING = (40001, 65536, 131072, 524287)

    def plain(self, x):
        return F.softmax(x, -1)

    def make(self, shape, dtype, device, other=None, seed=0):
        return (randn(shape, dtype, device, seed),)

    def summands(self, arguments, grads, reference):
        y, dy = reference["output"], grads[0]
        terms = torch.maximum((y * dy).abs(), (y * (y * dy).sum(-1, keepdim=True)).abs())
        return {"x.grad": terms.nan_to_num().max().item()}

    def opchecks(self, device):
        (x,), dy = self.make((3, 100), torch.bfloat16, device), randn((3, 100), torch.bfloat16, device)
        forward, backward = self.kernel._forward_op, self.kernel._backward_op
        return (
            (forward, (x, x.dtype)),
            (forward, (x[:, :50], torch.float32)),
            (backward, (dy, forward(x, x.dtype), x.dtype)),
            (backward, (dy.float(), forward(x, torch.float32), x.dtype)),
        )

    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    def test_infinities_as_pytorch(self, path, dtype, device):
        """-inf masks an entry out, at the start of a row, at its end, all but one or all; +inf takes the row along."""
        (x,) = self.make((8, path), dtype, device)
        x[0, : path // 2], x[1, path // 2 :], x[2, ::2], x[3, :-1], x[4] = -INF, -INF, -INF, -INF, -INF
        x[5, 7], x[6] = INF, INF
        x[6, 0] = -INF
        ours = self.check((x,))
        y, dx = ours["output"], ours["x.grad"]
        assert y[4:7].isnan().all() and dx[4:7].isnan().all()
        assert (y[:4][x[:4] == -INF] == 0).all() and (dx[:4][x[:4] == -INF] == 0).all()
        assert y[3, -1] == 1

    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    def test_ends_of_the_range(self, path, dtype, device):
        """Rows at either end of the dtype's range, in which differences overflow."""
        (x,) = self.make((4, path), dtype, device)
        largest = torch.finfo(dtype).max
        x[0], x[1], x[2, ::2], x[2, 1::2] = largest, -largest, largest, -largest
        x[3, 1:] = -largest
        ours = self.check((x,))["output"]
        assert torch.equal(ours[0], ours[1]) and (ours[2, 1::2] == 0).all() and (ours[3, 1:] == 0).all()

    def test_shift_of_the_row_does_not_matter(self, path, device):
        x = (self.make((SOME, path), torch.float32, device)[0] * 256).round() / 256  # the shifted row is exact as well
        assert torch.equal(self.function(x), self.function(x + 1024))

    def test_rows_sum_to_one(self, path, device):
        (x,) = self.make((SOME, path), torch.float32, device)
        assert (self.function(10 * x).double().sum(-1) - 1).abs().max() < 5e-6

    def test_a_gradient_that_is_the_same_in_a_row_gives_none(self, path, device):
        (x,) = self.make((SOME, path), torch.float32, device)
        dx = self.run(self.function, (x,), (torch.full_like(x, 3.0),))["x.grad"]
        assert dx.abs().max() <= 1e-6 * self.function(x).max()

    @pytest.mark.parametrize("width", (16384, 40000))
    def test_rows_that_begin_at_odd_addresses(self, width, device):
        """They cannot be read as words of two numbers."""
        (x,) = self.make((3, width), torch.bfloat16, device)
        odd = torch.empty(3 * width + 1, dtype=x.dtype, device=device)[1:].view_as(x).copy_(x)
        self.check((odd,))

    @pytest.mark.parametrize("width", (40000, 40960))
    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    def test_rows_whose_parts_cannot_wait_are_looked_at_twice(self, dtype, width, device):
        """As the widest are, and all above 32768 columns on an AMD GPU. Tiles fill the row, or do not."""
        (x,) = self.make((3, width), dtype, device)
        x[0, :20000], x[1, 20000:] = -INF, -INF
        with stand_ins.replaced(self.kernel, _parts=lambda *_: 0):
            for launch in (self.kernel._forward_launch, self.kernel._backward_launch):
                assert "LANES" in launch(width, 8 * x.element_size(), x.device)
            self.check((x,))

    @pytest.mark.parametrize(
        "x, error, message",
        (
            (torch.ones(2, 8, dtype=torch.int32), TypeError, "x: expected .*fp32.* got torch.int32"),
            (torch.ones(2, 8, dtype=torch.float64), TypeError, "x: expected .*fp32.* got torch.float64"),
            ([1.0], TypeError, "x: expected .*tensor, got <class 'list'>"),
            (np.ones(2, "f"), TypeError, "x: expected .*tensor, got <class 'numpy.ndarray'>"),
            (torch.ones(()), ValueError, "x: expected at least one dimension, got none"),
        ),
    )
    def test_wrong_input_is_named(self, x, error, message, device):
        with pytest.raises(error, match=message):
            self.function(x.to(device) if isinstance(x, torch.Tensor) else x)
