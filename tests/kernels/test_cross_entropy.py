"""kernels/cross_entropy.py: the same function as F.cross_entropy, and no guess shows in what it computes."""

from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from tests.kernels import compiled
from tests.kernels.compiled import AHEAD, POWER, SWEPT, MachineCode
from tests.kernels.conftest import load
from tests.kernels.promises import DTYPES, GPU, Promises, needs_gpu, placed, randn, strided

INF, NAN = float("inf"), float("nan")
REDUCTIONS = ("mean", "sum", "none")
X, T = torch.ones(2, 8), torch.zeros(2, dtype=torch.int64)
MACHINE_CODE = MachineCode(
    known=(
        ("_forward_wide_kernel", "return tl.exp2(x * 1.4426950408889634)", *POWER),
        ("_forward_wide_kernel", "target = tl.load(target_ptr + row * target_stride)", r"LDG\.E\.64", "load_dwordx2"),
        ("_backward_wide_kernel", 'x = tl.load(x_ptr + place, mask=inside, other=float("-inf")', *AHEAD),
    ),
    spills={
        ("_forward_wide_kernel", "sm_80"): (8, SWEPT),
        ("_forward_wide_kernel", "sm_100"): (16, SWEPT),
    },
    narrow=14,
    small=("_prepare_kernel",),
    share=0.75,  # the compiler moves work of its loop over the rows, and forgets whose it was
)
OWN = {  # definitions of the kernel file: see tests/pages/test_copies.py
    "_Once _checked _count _gradient _look _options _rows": "logits and a target, from which comes one loss",
}


class CrossEntropy(Promises):
    kernel = load("cross_entropy")
    name = "cross_entropy"
    inputs = ("x",)
    ROWS = 37
    PATHS = (100, 1500, 4104, 4101, *((20000, 50257, 131072) if GPU else ()))
    LAUNCHES = 3
    NESTED = False
    OTHER_DTYPES = False
    LARGEST = 1e37

    def plain(self, x, target, **options):
        return F.cross_entropy(x, target, **options)

    def function(self, x, target, **options):
        return self.kernel.cross_entropy(x, target, **options)

    def make(self, shape, dtype, device, other=None, seed=0):
        target = torch.randint(0, shape[-1], shape[:-1], generator=torch.Generator().manual_seed(seed))
        return randn(shape, dtype, device, seed) * 3, target.to(device)

    def summands(self, arguments, grads, reference):
        """Of the gradient p - 1 at the target, in units of the row's factor: neither of the two is above that."""
        return {"x.grad": max(g.abs().max().item() / self.counted(arguments) for g in grads)} if grads else {}

    def counted(self, arguments):
        return max(arguments[1].numel(), 1)

    def beyond_count(self, device):
        for rows, columns in ((2**30 + 1, 1), (1, 2**30 + 1)):
            logits, target = self.make((1, 1), torch.bfloat16, device)[:2]
            yield logits.expand(rows, columns), target.expand(rows)

    def opchecks(self, device):
        x, target = self.make((3, 100), torch.bfloat16, device)
        target[1] = -100
        dloss = torch.full((), 0.5, device=device)
        forward, kernel = self.kernel._forward_op, self.kernel
        yield forward, (x, target, -100, 0.0, "mean", torch.float32, False, False)
        yield forward, (x[:, :50], target.clamp(max=49), -100, 0.1, "none", x.dtype, True, False)
        yield forward, (x[0], target[0], -100, 0.0, "sum", x.dtype, True, True)
        _, notes, state, dx = forward(x, target, -100, 0.1, "mean", torch.float32, True, True)
        saved = (dloss, x, target, notes, state, -100, 0.1, "mean")
        yield kernel._backward_op, saved
        yield kernel._correct_op, (dx, *saved)

    # ---- inherited, where rows of logits differ from rows of anything -----------------------------------------------

    @pytest.mark.parametrize("shape", ((8,), (1, 8), (5, 8)), ids=str)
    def test_any_leading_shape(self, shape, device):
        """Those that F.cross_entropy takes with the classes last."""
        super().test_any_leading_shape(shape, device)

    def test_leading_dimensions_that_no_view_joins(self, device):
        x, target = self.make((4, 40), torch.float32, device)
        self.check((x.t().contiguous().t(), target))
        self.check((x, target.repeat_interleave(3)[::3]))

    @pytest.mark.parametrize("shape", ((0, 8), (0, 2000)), ids=str)
    def test_empty_input(self, shape, device):
        x, target = torch.zeros(shape, device=device), torch.zeros(0, dtype=torch.int64, device=device)
        for reduction in REDUCTIONS:
            ours, plain = (self.run(partial(f, reduction=reduction), (x, target)) for f in (self.function, self.plain))
            assert torch.equal(ours["output"].nan_to_num(7), plain["output"].nan_to_num(7))
            assert ours["x.grad"].shape == shape

    def test_a_row_without_columns_has_no_class(self, device):
        x, target = torch.zeros(3, 0, device=device), torch.tensor([0, -100, 1], device=device)
        ours = self.run(partial(self.function, reduction="none"), (x, target))
        assert ours["output"].isnan().tolist() == [True, False, True]

    def test_nan_and_inf_as_pytorch_and_in_their_row(self, path, device):
        """Each in a row beside the target, and in a row at it; clean rows between them. No row's result has others."""
        x, target = self.make((13, path), torch.bfloat16, device)
        target[1::2] = 7
        odd = x.clone()
        odd[1:6:2, 5] = odd[7:12:2, 7] = torch.tensor((NAN, INF, -INF), device=device, dtype=x.dtype)
        for smoothing in (0.0, 0.1):
            options = {"reduction": "none", "label_smoothing": smoothing}
            ours, plain = (partial(f, **options) for f in (self.function, self.plain))
            clean, mine, theirs = (
                self.run(ours, (x, target)),
                self.run(ours, (odd, target)),
                self.run(plain, (odd, target)),
            )
            for name, t in theirs.items():
                assert torch.equal(mine[name].isnan(), t.isnan()), (name, smoothing)
                assert torch.equal(mine[name].isinf(), t.isinf()), (name, smoothing)
                assert torch.equal(mine[name][::2], clean[name][::2]), name

    @needs_gpu
    @pytest.mark.parametrize("wide", (1000, 131072))
    def test_more_than_2_to_the_31_elements(self, wide, device):
        rows = 2**31 // wide + 3
        x, target = self.make((7, wide), torch.bfloat16, device)
        many = x.repeat(rows // 7 + 1, 1)[:rows], target.repeat(rows // 7 + 1)[:rows]
        few, ours = (
            self.run(partial(self.function, reduction="none"), a, (torch.ones_like(a[1], dtype=x.dtype),))
            for a in ((x, target), many)
        )
        for name, t in few.items():
            assert torch.equal(ours[name][:7], t), name
            assert torch.equal(ours[name][rows - 7 :], t.roll(-((rows - 7) % 7), 0)), name

    def test_rows_that_8_divides_and_16_does_not_are_read_in_16_bytes(self):
        """And those that 8 does not divide."""
        for facts in compiled.ahead(type(self), "sm_90", (9000, 9001)):
            if facts["kernel"] != "_prepare_kernel":
                assert "128" in facts["loads"], facts


class Losses(CrossEntropy):
    """The function is F.cross_entropy, with its options."""

    @pytest.mark.parametrize("reduction", REDUCTIONS)
    @pytest.mark.parametrize("smoothing", (0.0, 0.1, 1.0))
    def test_options(self, reduction, smoothing, path, device):
        x, target = self.make((5, path), torch.float32, device)
        target[3] = 2
        for ignored in (-100, 2):
            target[1] = ignored
            options = {"reduction": reduction, "label_smoothing": smoothing, "ignore_index": ignored}
            ours, plain = (partial(f, **options) for f in (self.function, self.plain))
            dloss = randn((5,) if reduction == "none" else (), x.dtype, device)
            exact = self.run(plain, (x.double(), target), (dloss.double(),))
            mine, theirs = self.run(ours, (x, target), (dloss,)), self.run(plain, (x, target), (dloss,))
            for name, t in theirs.items():
                scale = max(1.0, exact[name].abs().max().item())
                bound = 2 * (t - exact[name]).abs().max() + 4e-7 * scale
                assert (mine[name] - exact[name]).abs().max() <= bound, name
            assert not mine["x.grad"][target == ignored].any()

    def test_numbers_of_numpy_are_numbers(self, device):
        x, target = self.make((3, 8), torch.float32, device)
        options = {"ignore_index": np.int64(target[1].item()), "label_smoothing": np.float32(0.125)}
        torch.testing.assert_close(self.function(x, target, **options), self.plain(x, target, **options))

    def test_a_target_of_shape_1_for_a_row_without_a_batch(self, device):
        x, target = self.make((8,), torch.float32, device)
        for reduction in REDUCTIONS:
            assert self.function(x, target[None], reduction=reduction).shape == ()

    @pytest.mark.parametrize("reduction", REDUCTIONS)
    def test_all_rows_ignored(self, reduction, path, device):
        x = randn((3, path), torch.float32, device)
        target = torch.full((3,), -100, device=device)
        ours, plain = (self.run(partial(f, reduction=reduction), (x, target)) for f in (self.function, self.plain))
        assert torch.equal(ours["output"].nan_to_num(7), plain["output"].nan_to_num(7))
        assert not ours["x.grad"].any()

    def test_an_ignored_row_is_not_looked_at(self, path, device):
        """Its gradient is zero, whatever its logits; PyTorch's would be NaN."""
        x, target = self.make((3, path), torch.float32, device)
        target[1], x[1] = -100, NAN
        ours = self.run(self.function, (x, target))
        assert ours["output"].isfinite() and not ours["x.grad"][1].any() and ours["x.grad"].isfinite().all()

    def test_a_class_that_does_not_exist_is_nan_and_reads_nothing(self, path, device):
        x, _ = self.make((4, path), torch.float32, device)
        target = torch.tensor([path, -1, 2**40, 0], device=device)
        ours = self.run(partial(self.function, reduction="none"), (x, target))
        assert ours["output"].isnan().tolist() == [True, True, True, False]
        assert ours["x.grad"].isnan().all(1).tolist() == [True, True, True, False]
        assert self.function(x, target).isnan()

    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    def test_large_logits(self, dtype, path, device):
        """What counts is how far they are apart."""
        x, target = self.make((4, path), dtype, device)
        x += torch.tensor([[1e4], [-1e4], [0.0], [100.0]], device=device, dtype=dtype)
        for smoothing in (0.0, 0.1):
            options = {"reduction": "none", "label_smoothing": smoothing}
            ours, plain = (partial(f, **options) for f in (self.function, self.plain))
            exact = self.run(plain, (x.double(), target))
            mine, theirs = self.run(ours, (x, target)), self.run(plain, (x, target))
            for name, t in exact.items():
                allowed = 2 * (theirs[name] - t).abs().max() + 4 * torch.finfo(dtype).eps * t.abs().max()
                assert (mine[name] - t).abs().max() <= allowed, name

    def test_masked_classes(self, path, device):
        """Masked with -inf, or with the smallest number there is."""
        x, target = self.make((4, path), torch.float32, device)
        target[:] = 1
        for masked in (-INF, torch.finfo(x.dtype).min):
            x[:, 2 : path - 2] = masked
            self.check((x, target))
        x[:] = masked
        torch.testing.assert_close(self.function(x, target), self.plain(x, target))


class TestCrossEntropy(Losses):
    """Beside these, the guess: the forward writes the gradient for the incoming one that it expects."""

    @pytest.mark.parametrize("reduction", ("mean", "none"))
    def test_the_guess_changes_no_bit(self, reduction, path, device):
        """Right, wrong, no number, zero or minus zero, for all rows or for some."""
        x, target = self.make((3, path), torch.bfloat16, device)
        target[2] = -100
        values = (0.125, 0.0, -0.0, INF, NAN)
        for index, value in enumerate(values):
            dloss = torch.full((3,) if reduction == "none" else (), value, device=device, dtype=x.dtype)
            if reduction == "none":
                dloss[1] = values[index - 1]
            results = []
            for guess in (value, values[index - 1]):
                self.kernel._guess(x.device).fill_(guess)
                ours = self.run(partial(self.function, reduction=reduction), (x, target), (dloss,))
                results.append(ours["x.grad"].nan_to_num(7).view(torch.int16))
            assert torch.equal(*results), value

    def test_the_next_guess_is_the_gradient_seen_last(self, path, device):
        x, target = self.make((3, path), torch.float32, device)
        for value in (0.25, 3.0, 3.0):
            dloss = torch.tensor(value, device=device)
            self.run(self.function, (x, target), (dloss,))
            assert self.kernel._guess(x.device).item() == value

    def test_a_right_guess_writes_nothing(self, path, device):
        """Seen by what is put into the gradient between forward and backward: it must still be there."""
        x, target = self.make((3, path), torch.float32, device)
        for value, kept in ((0.5, True), (0.25, False)):
            self.kernel._guess(x.device).fill_(0.5)
            loss = self.function(x.requires_grad_(), target)
            loss.grad_fn.saved_tensors[-1].data.fill_(7)
            (dx,) = torch.autograd.grad(loss, x, torch.tensor(value, device=device))
            assert (dx == 7).all().item() == kept

    def test_a_second_backward_leaves_the_first_gradient_alone(self, path, device):
        x, target = self.make((3, path), torch.float32, device)
        expected = [
            self.run(self.function, (x, target), (torch.tensor(v, device=device),))["x.grad"] for v in (1.0, 2.0)
        ]
        loss = self.function(x.requires_grad_(), target)
        loss.backward(torch.tensor(1.0, device=device), retain_graph=True)
        first, x.grad = x.grad, None
        first.mul_(0.5)  # as gradient clipping does
        loss.backward(torch.tensor(2.0, device=device), retain_graph=True)
        assert torch.equal(x.grad, expected[1]) and torch.equal(first, expected[0] * 0.5)
        loss.backward(torch.tensor(1.0, device=device))
        assert torch.equal(x.grad, expected[0] + expected[1]) and torch.equal(first, expected[0] * 0.5)

    def test_logits_changed_in_place_are_seen(self, device):
        x, target = self.make((3, 100), torch.float32, device)
        y = x.requires_grad_() * 1
        loss = self.function(y, target)
        y.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()

    @pytest.mark.parametrize("reduction", ("sum", "none"))
    def test_strides_of_the_incoming_gradient(self, reduction, path, device):
        x, target = self.make((4, path), torch.float32, device)
        ours = partial(self.function, reduction="none")
        odd = strided("transposed", (4, 4), x.dtype, device)[:, 1]
        if reduction == "sum":
            odd = odd[:1].expand(4)
        self.assert_equal(self.run(ours, (x, target), (odd,)), self.run(ours, (x, target), (odd.clone(),)))

    def test_strided_target(self, path, device):
        """Where the guess is right, and where the backward reads the targets, too."""
        x, target = self.make((4, path), torch.float32, device)
        for guess in (1.0, 7.0):
            results = []
            for same in (target.repeat_interleave(2)[::2], target):
                self.kernel._guess(x.device).fill_(guess)
                results.append(self.run(self.function, (x, same), (torch.tensor(1.0, device=device),)))
            self.assert_equal(*results)

    def test_many_rows_are_counted_and_added_in_shares(self, device):
        x, target = self.make((5000, 3), torch.float32, device)
        target[::3] = -100
        self.check((x, target))
        if GPU:
            x, target = self.make((100_003, 3), torch.float32, device)
            target[::3] = -100
            self.check((x, target))

    @needs_gpu
    def test_two_streams_that_disagree(self, path, device):
        x, target = self.make((300, path), torch.bfloat16, device)
        values = [torch.tensor(v, device=device, dtype=x.dtype) for v in (1.0, 0.125)]
        expected = [self.run(self.function, (x, target), (v,)) for v in values]
        streams = [torch.cuda.Stream(), torch.cuda.Stream()]
        torch.cuda.synchronize()
        for _ in range(20):
            results = []
            for stream, value in zip(streams, values, strict=True):
                with torch.cuda.stream(stream):
                    results.append(self.run(self.function, (x, target), (value,)))
            torch.cuda.synchronize()
            for ours, right in zip(results, expected, strict=True):
                self.assert_equal(ours, right)

    @needs_gpu
    def test_replays_whose_incoming_gradient_changes(self, path, device):
        x, target = self.make((300, path), torch.bfloat16, device)
        dloss = torch.ones((), device=device, dtype=x.dtype)
        self.run(self.function, (x, target), (dloss,))
        stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream), torch.cuda.graph(graph, stream=stream):
            results = self.run(self.function, (x, target), (dloss,))
        torch.cuda.current_stream().wait_stream(stream)
        for value in (1.0, 1.0, 0.5, 2.0, 2.0, 1.0):
            dloss.fill_(value)
            results["x.grad"].fill_(NAN)
            graph.replay()
            self.assert_equal(results, self.run(self.function, (x, target), (dloss.clone(),)))

    @needs_gpu
    def test_a_capture_that_comes_first(self, device):
        """The guess is then made in the graph's memory, and holds anything until the first replay."""
        self.kernel._guesses.clear()
        x, target = self.make((300, 4096), torch.bfloat16, device)
        try:
            stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream), torch.cuda.graph(graph, stream=stream):
                results = self.run(self.function, (x, target), (torch.ones((), device=device, dtype=x.dtype),))
            torch.cuda.current_stream().wait_stream(stream)
            before = self.run(self.function, (x, target), (torch.ones((), device=device, dtype=x.dtype),))
            graph.replay()
            self.assert_equal(results, before)
        finally:
            torch.cuda.synchronize()
            self.kernel._guesses.clear()

    def test_compiled_code_writes_no_gradient_ahead(self, device):
        """Its backward may be replayed, retained or changed by the compiler: it reads no guess, and leaves none."""
        torch._dynamo.reset()
        x, target = self.make((3, 100), torch.float32, device)
        expected = self.run(self.function, (x, target), (torch.tensor(0.5, device=device),))
        self.kernel._guess(x.device).fill_(7)
        compiled = torch.compile(self.function, fullgraph=True, backend="aot_eager")
        ours = self.run(compiled, (x, target), (torch.tensor(0.5, device=device),))
        self.assert_equal(ours, expected)
        assert self.kernel._guess(x.device).item() == 7

    @pytest.mark.parametrize(
        "x, target, options, error, message",
        (
            (X.int(), T, {}, TypeError, "logits: expected .*fp32.* got torch.int32"),
            ([1.0], T, {}, TypeError, "logits: expected .*tensor, got <class 'list'>"),
            (X, T.numpy(), {}, TypeError, "target: expected an int64 .* got <class 'numpy.ndarray'>"),
            (X, X, {}, TypeError, "target: expected an int64 .*not of probabilities.* got torch.float32"),
            (X, T.byte(), {}, TypeError, "target: expected an int64 .* got torch.uint8"),
            (X, None, {}, TypeError, "target: expected an int64 .* got <class 'NoneType'>"),
            (X[0, 0], T[0], {}, ValueError, "logits: expected one or two dimensions, got 0"),
            (X[None], T[None], {}, ValueError, "logits: expected one or two dimensions, got 3"),
            (X, T[:1], {}, ValueError, r"target: expected shape \[2\], got \[1\]"),
            (X, T.to("meta"), {}, ValueError, "target: expected on .*, where logits is, got meta"),
            (X, T, {"label_smoothing": 1.5}, ValueError, "label_smoothing: expected from 0 to 1, got 1.5"),
            (X, T, {"label_smoothing": NAN}, ValueError, "label_smoothing: expected from 0 to 1, got nan"),
            (X, T, {"label_smoothing": None}, TypeError, "label_smoothing: expected a number, got <class 'NoneType'>"),
            (X, T, {"label_smoothing": X[0, 0]}, TypeError, "label_smoothing: expected a number, got .*Tensor"),
            (X, T, {"ignore_index": None}, TypeError, "ignore_index: expected an integer .* got <class 'NoneType'>"),
            (X, T, {"ignore_index": -100.0}, TypeError, "ignore_index: expected an integer .* got <class 'float'>"),
            (X, T, {"ignore_index": X[0]}, TypeError, "ignore_index: .*class weights, .* are not supported.*Tensor"),
            (X, T, {"ignore_index": T[0]}, TypeError, "ignore_index: expected an integer .* got .*Tensor"),  # on a GPU
            (X, T, {"reduction": "max"}, ValueError, "reduction: expected one of 'none', 'mean', 'sum', got 'max'"),
            (X, T, {"reduction": None}, ValueError, "reduction: expected one of 'none', 'mean', 'sum', got None"),
            (X, T, {"reduction": X}, ValueError, "reduction: expected one of 'none', 'mean', 'sum', got tensor"),
        ),
    )
    def test_wrong_input_is_named(self, x, target, options, error, message, device):
        with pytest.raises(error, match=message):
            self.function(placed(x, device), placed(target, device), **options)
