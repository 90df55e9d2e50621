"""kernels/linear_cross_entropy.py: the same function as a linear layer and F.cross_entropy, in chunks or not."""

import itertools
from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from tests.kernels.compiled import LOAD, POWER, STORE, MachineCode
from tests.kernels.conftest import load
from tests.kernels.promises import DTYPES, GPU, Promises, needs_gpu, placed, randn

INF, NAN = float("inf"), float("nan")
REDUCTIONS = ("mean", "sum", "none")
X, W, T = torch.ones(2, 8), torch.ones(5, 8), torch.zeros(2, dtype=torch.int64)
# tokens whose logits the weight's gradient holds, tokens of a chunk, classes of a block
WHOLE, CHUNKS, LENT, LENT_ALL = (0, 1024, 64, 0), (0, 5, 64, 0), (7, 4, 16, 0), (64, 1024, 24, 0)
TWICE = (7, 4, 16, 5)
MACHINE_CODE = MachineCode(
    known=(
        ("_rows_kernel", "return tl.exp2(x * 1.4426950408889634)", *POWER),
        ("_rows_kernel", "x = tl.load(x_ptr + place, mask=place < padded", *LOAD),
        ("_rows_kernel", "tl.store(x_ptr + place, tl.where(counts, dx, 0.0), mask=inside)", *STORE),
    ),
    narrow=10,
    share=0.75,  # the compiler moves work of its loops, and forgets whose it was
)
OWN = {  # definitions of the kernel file: see tests/pages/test_copies.py
    "_options": "cross_entropy",
    "_Once _count _gradient _loss _look _write _scale _factor _parts _plan _slope": "of logits that exist in parts",
    "_OPTIONS _SAVED _INTERPRETED _matrix": "of logits that exist in parts",
}


WRONG = (  # hidden, weight, target, options; what is raised, and saying what
    (X.int(), W, T, {}, TypeError, "hidden: expected .*fp32.* got torch.int32"),
    (X, W.double(), T, {}, TypeError, "weight: expected .*fp32.* got torch.float64"),
    (X, W.half(), T, {}, TypeError, "weight: expected torch.float32, the dtype of hidden, got torch.float16"),
    (X, [1.0], T, {}, TypeError, "weight: expected .*tensor, got <class 'list'>"),
    (X, W, X, {}, TypeError, "target: expected an int64 .*not of probabilities.* got torch.float32"),
    (X, W, None, {}, TypeError, "target: expected an int64 .* got <class 'NoneType'>"),
    (X[0, 0], W, T[0], {}, ValueError, "hidden: expected at least one dimension, got none"),
    (X, W.t(), T, {}, ValueError, r"weight: expected shape \[classes, 8\], .* got \[8, 5\]"),
    (X, W[:0], T, {}, ValueError, r"weight: expected shape \[classes, 8\], with one class or more, got \[0, 8"),
    (X, W, T[:1], {}, ValueError, r"target: expected shape \[2\], got \[1\]"),
    (X, W, T.to("meta"), {}, ValueError, "target: expected on .*, where hidden is, got meta"),
    (X, W, T, {"label_smoothing": 1.5}, ValueError, "label_smoothing: expected from 0 to 1, got 1.5"),
    (X, W, T, {"label_smoothing": None}, TypeError, "label_smoothing: expected a number, got <class 'NoneType"),
    (X, W, T, {"z_loss": -1.0}, ValueError, "z_loss: expected from 0 to any finite number, got -1.0"),
    (X, W, T, {"softcap": INF}, ValueError, "softcap: expected from 0 to any finite number, got inf"),
    (X, W, T, {"softcap": NAN}, ValueError, "softcap: expected from 0 to any finite number, got nan"),
    (X, W, T, {"ignore_index": -100.0}, TypeError, "ignore_index: expected an integer, got <class 'float'>"),
    (X, W, T, {"reduction": "max"}, ValueError, "reduction: expected one of 'none', 'mean', 'sum', got 'max'"),
)  # fmt: skip


def plain(hidden, weight, target, ignore_index=-100, label_smoothing=0.0, z_loss=0.0, softcap=0.0, reduction="mean"):
    """As it would be written, without the loss's own arithmetic in the dtype of the logits."""
    logits = F.linear(hidden, weight)
    if softcap:
        logits = softcap * torch.tanh(logits / softcap)
    if not z_loss and not softcap:
        return F.cross_entropy(logits, target, None, None, ignore_index, None, reduction, label_smoothing)
    logits = logits if logits.dtype == torch.float64 else logits.float()
    losses = F.cross_entropy(logits, target, None, None, ignore_index, None, "none", label_smoothing)
    losses = losses + z_loss * torch.where(target == ignore_index, 0, logits.logsumexp(-1).square())
    if reduction == "mean":
        losses = losses.sum() / (target != ignore_index).sum()
    return (losses.sum() if reduction == "sum" else losses).to(hidden.dtype)


class TestLinearCrossEntropy(Promises):
    kernel = load("linear_cross_entropy")
    name = "linear_cross_entropy"
    inputs = ("hidden", "weight")
    GRID = (1, 3, 127, 760, 1128, *((4097, 9000) if GPU else ()))
    EDGES = ()
    ROWS = 37
    PATHS = (40, 100)
    NESTED = False
    OTHER_DTYPES = False
    LARGEST = 1e4
    CLASSES = 50

    def plain(self, hidden, weight, target, **options):
        return plain(hidden, weight, target, **options)

    def function(self, hidden, weight, target, **options):
        return self.kernel.linear_cross_entropy(hidden, weight, target, **options)

    def make(self, shape, dtype, device, other=None, seed=0, classes=CLASSES):
        target = torch.randint(0, classes, shape[:-1], generator=torch.Generator().manual_seed(seed))
        weight = randn((classes, shape[-1]), torch.float32, "cpu", seed + 1) * 3 / max(shape[-1], 1) ** 0.5
        return randn(shape, dtype, device, seed), weight.to(device, other or dtype), target.to(device)

    def summands(self, arguments, grads, reference):
        """Of a logit's gradient p - 1, in units of the token's factor, times the other matrix's numbers.

        A logit is rounded too, by which p is off: by as many eps as the logit is large, times p (1 - p). Many tokens
        make a sum that is larger than each summand, and the sum is rounded.
        """
        hidden, weight, target = arguments
        if not grads:
            return {}
        factor = max(g.abs().max().item() for g in grads) / max(target.numel(), 1)
        of_hidden = factor * weight.abs().max().item() * max(1.0, F.linear(hidden, weight).abs().max().item() / 4)
        largest = reference["weight.grad"].abs().max().item()
        return {"hidden.grad": of_hidden, "weight.grad": max(factor * hidden.abs().max().item(), largest)}

    def planning(self, monkeypatch, plan):
        monkeypatch.setattr(self.kernel, "_plan", lambda tokens, width, classes: plan)

    @classmethod
    def held(cls):
        return list(itertools.product(cls.GRID, DTYPES))

    def beyond_count(self, device):
        hidden, weight, target = self.make((1, 1), torch.bfloat16, device, classes=1)
        yield hidden.expand(2**30 + 1, 1), weight, target.expand(2**30 + 1)
        yield hidden, weight.expand(2**30 + 1, 1), target

    def opchecks(self, device):
        hidden, weight, target = self.make((3, 20), torch.bfloat16, device)
        target[1] = -100
        kernel, options = self.kernel, (-100, 0.1, 0.01, 5.0)
        for reduction, *wanted in (("mean", True, True), ("sum", False, True), ("none", False, False)):
            given = (hidden, weight, target, *options, reduction)
            yield kernel._forward_op, (*given, torch.float32, *wanted)
            _, state, *_ = kernel._forward_op(*given, torch.float32, *wanted)
            dloss = torch.full((3,) if reduction == "none" else (), 0.5, device=device)
            yield kernel._backward_op, (dloss, hidden, weight, target, state, *options, reduction, True, True)
        dloss = torch.full((), 0.5, device=device)
        yield kernel._scale_op, (hidden.clone(), weight.clone(), dloss)
        yield kernel._recorded_factor, (dloss,)

    # ---- inherited, where tokens of a loss differ from rows of anything ---------------------------------------------

    @pytest.mark.parametrize("shape", ((8,), (1, 8), (5, 8)), ids=str)
    def test_any_leading_shape(self, shape, device):
        """Those that F.cross_entropy takes with the classes last."""
        super().test_any_leading_shape(shape, device)

    def test_batches_of_sequences(self, device):
        hidden, weight, target = self.make((2, 3, 8), torch.float32, device)
        for reduction in REDUCTIONS:
            ours = self.function(hidden, weight, target, reduction=reduction)
            flat = self.function(hidden.flatten(0, 1), weight, target.flatten(), reduction=reduction)
            assert torch.equal(ours.flatten(), flat.flatten()) and ours.shape == (target.shape if ours.dim() else ())

    def test_leading_dimensions_that_no_view_joins(self, device):
        hidden, weight, target = self.make((4, 40), torch.float32, device)
        self.check((hidden.t().contiguous().t(), weight.t().contiguous().t(), target))
        self.check((hidden, weight, target.repeat_interleave(3)[::3]))

    @needs_gpu
    @pytest.mark.parametrize("wide", (1000, 131072))
    def test_more_than_2_to_the_31_elements(self, wide, device):
        """As few tokens get it, but for the order of sums, which cuBLAS chooses by their number."""
        rows = 2**31 // wide + 3
        hidden, weight, target = self.make((7, wide), torch.bfloat16, device)
        many = hidden.repeat(rows // 7 + 1, 1)[:rows], weight, target.repeat(rows // 7 + 1)[:rows]
        each = partial(self.function, reduction="none")
        few, ours = (
            self.run(each, a, (torch.ones(a[2].shape, dtype=torch.bfloat16, device=device),))
            for a in ((hidden, weight, target), many)
        )
        for name in ("output", "hidden.grad"):
            size = few[name].abs().max().item()
            last = few[name].roll(-((rows - 7) % 7), 0)
            for got, want in ((ours[name][:7], few[name]), (ours[name][rows - 7 :], last)):
                torch.testing.assert_close(got, want, rtol=2**-7, atol=2**-6 * size)

    @pytest.mark.parametrize("shape", ((0, 8), (3, 0), (0, 0)), ids=str)
    def test_empty_input(self, shape, device):
        arguments = self.make(shape, torch.float32, device)
        for reduction in REDUCTIONS:
            ours, expected = (self.run(partial(f, reduction=reduction), arguments) for f in (self.function, self.plain))
            for name, t in expected.items():
                torch.testing.assert_close(ours[name], t, equal_nan=True, msg=f"{reduction}: {name}")

    def test_row_lengths_share_compiled_kernels(self):
        """Of logits: those of a launch differ in no other constant."""
        for octave in range(6, 18):
            for bits, table in itertools.product((16, 32), ("_forward_launch", "_backward_launch")):
                launch = getattr(self.kernel, table)
                lengths = range(2**octave + 1, 2 ** (octave + 1), max(1, 2**octave // 80))
                found = {str(launch(length, bits, torch.device("cpu"))) for length in lengths}
                assert len(found) <= 2, (octave, found)

    # ---- what is computed in parts ----------------------------------------------------------------------------------

    @pytest.mark.parametrize("plan", (CHUNKS, LENT, LENT_ALL, TWICE), ids=("chunks", "lent", "lent all", "twice"))
    @pytest.mark.parametrize("classes", (50, 56))
    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    def test_parts_compute_what_the_whole_does(self, plan, classes, dtype, device, monkeypatch):
        """Also where less than half of the tokens leave room for fp32 in the gradient of hidden."""
        self.planning(monkeypatch, plan)
        for tokens in (9, 19):
            hidden, weight, target = self.make((tokens, 16), dtype, device, classes=classes)
            target[2] = -100
            self.check((hidden, weight, target))

    @pytest.mark.parametrize("plan", (CHUNKS, LENT, TWICE), ids=("chunks", "lent", "twice"))
    @pytest.mark.parametrize("frozen", ("hidden", "weight"))
    def test_parts_with_one_gradient(self, plan, frozen, device, monkeypatch):
        self.planning(monkeypatch, plan)
        hidden, weight, target = self.make((19, 16), torch.float32, device)
        exact = self.run(self.plain, (hidden.double(), weight.double(), target), (torch.tensor(1.0).double(),))
        leaf = (weight if frozen == "hidden" else hidden).requires_grad_()
        self.function(hidden, weight, target).backward()
        name = "weight.grad" if frozen == "hidden" else "hidden.grad"
        torch.testing.assert_close(leaf.grad.double(), exact[name], rtol=1e-5, atol=1e-6)

    @pytest.mark.parametrize("reduction", REDUCTIONS)
    @pytest.mark.parametrize(
        "options",
        ({"label_smoothing": 0.1}, {"label_smoothing": 1.0}, {"z_loss": 0.1}, {"softcap": 2.0},
         {"label_smoothing": 0.2, "z_loss": 0.01, "softcap": 5.0, "ignore_index": 2}),
        ids=str,
    )  # fmt: skip
    @pytest.mark.parametrize("plan", (WHOLE, LENT, TWICE), ids=("whole", "lent", "twice"))
    def test_options(self, reduction, options, plan, device, monkeypatch):
        self.planning(monkeypatch, plan)
        hidden, weight, target = self.make((19, 16), torch.float32, device)
        target[1] = options.get("ignore_index", -100)
        ours, theirs = (partial(f, reduction=reduction, **options) for f in (self.function, self.plain))
        dloss = randn((19,) if reduction == "none" else (), torch.float32, device)
        exact = self.run(theirs, (hidden.double(), weight.double(), target), (dloss.double(),))
        mine, baseline = (self.run(f, (hidden, weight, target), (dloss,)) for f in (ours, theirs))
        for name, t in baseline.items():
            scale = max(1.0, exact[name].abs().max().item())
            assert (mine[name] - exact[name]).abs().max() <= 2 * (t - exact[name]).abs().max() + 1e-6 * scale, name
        assert not mine["hidden.grad"][1].any()

    @pytest.mark.parametrize("classes", (1, 7, 1025, 2500, *((32769, 128256) if GPU else ())))
    def test_any_number_of_classes(self, classes, device):
        for dtype in DTYPES:
            self.check(self.make((3, 16), dtype, device, classes=classes))

    def test_wide_rows_take_another_launch(self, device):
        self.check(self.make((2, 4), torch.bfloat16, device, classes=40000))

    @pytest.mark.parametrize("reduction", REDUCTIONS)
    def test_all_tokens_ignored(self, reduction, device):
        hidden, weight, target = self.make((3, 8), torch.float32, device)
        target[:] = -100
        ours, expected = (
            self.run(partial(f, reduction=reduction), (hidden, weight, target)) for f in (self.function, self.plain)
        )
        assert torch.equal(ours["output"].nan_to_num(7), expected["output"].nan_to_num(7))
        assert not ours["hidden.grad"].any() and not ours["weight.grad"].any()

    @pytest.mark.parametrize("plan", (WHOLE, LENT, TWICE), ids=("whole", "lent", "twice"))
    def test_a_class_that_does_not_exist_is_nan_and_reads_nothing(self, plan, device, monkeypatch):
        self.planning(monkeypatch, plan)
        hidden, weight, _ = self.make((9, 16), torch.float32, device)
        target = torch.tensor([self.CLASSES, -1, 2**40, *range(6)], device=device)
        for reduction in ("none", "sum"):
            ours = self.run(partial(self.function, reduction=reduction), (hidden, weight, target))
            assert ours["hidden.grad"].isnan().all(1).tolist() == [True] * 3 + [False] * 6
        losses = self.function(hidden, weight, target, reduction="none")
        assert losses.isnan().tolist() == [True] * 3 + [False] * 6

    def test_large_logits(self, device):
        """What counts is how far they are apart."""
        hidden, weight, target = self.make((4, 8), torch.float32, device)
        hidden[:, 0], weight[:, 0] = 100, 100
        for smoothing in (0.0, 0.1):
            options = {"reduction": "none", "label_smoothing": smoothing}
            ours = self.function(hidden, weight, target, **options)
            exact = self.plain(hidden.double(), weight.double(), target, **options)
            assert (ours - exact).abs().max() <= 4e-7 * 1e4

    @pytest.mark.parametrize("plan", (WHOLE, LENT), ids=("whole", "lent"))
    def test_the_gradient_follows_the_incoming_one(self, plan, device, monkeypatch):
        """Ahead with 1, then scaled: 1 again, none, another one, infinity; the second backward computes its own."""
        self.planning(monkeypatch, plan)
        hidden, weight, target = self.make((19, 16), torch.float32, device)
        once = self.run(self.function, (hidden, weight, target), (torch.tensor(1.0, device=device),))
        leaves = hidden.requires_grad_(), weight.requires_grad_()
        loss = self.function(*leaves, target)
        for value in (0.25, 1.0, 0.0, 3.0, INF):
            dloss = torch.tensor(value, device=device)
            grads = torch.autograd.grad(loss, leaves, dloss, retain_graph=True)
            for name, t in zip(("hidden.grad", "weight.grad"), grads, strict=True):
                assert torch.equal((once[name] * value).nan_to_num(7), t.nan_to_num(7)), (name, value)
                t.fill_(NAN)  # as whoever owns a gradient may

    def test_fp16_scales_before_it_rounds(self, device):
        """As a loss scale needs it: of classes that are no target, the unscaled gradient is too small for fp16."""
        hidden, weight, target = self.make((64, 16), torch.float16, device, classes=20000)
        weight = weight / 8
        ours, exact = (
            self.run(
                f, (hidden.to(dtype), weight.to(dtype), target), (torch.tensor(1024.0, device=device, dtype=dtype),)
            )
            for f, dtype in ((self.function, torch.float16), (self.plain, torch.float64))
        )
        others = torch.ones(20000, dtype=torch.bool, device=device).index_fill(0, target, False)
        mine, t = ours["weight.grad"][others], exact["weight.grad"][others]
        assert (mine - t).norm() <= 2e-3 * t.norm()

    @pytest.mark.parametrize("plan", ((16, 8, 16, 0), (16, 8, 16, 8)), ids=("chunks", "twice"))
    def test_memory_is_a_chunk_beside_the_gradients(self, plan, device, monkeypatch):
        """Whatever a call allocates beside them, no part of it is larger than the logits of a chunk."""
        self.planning(monkeypatch, plan)
        hidden, weight, target = self.make((48, 16), torch.bfloat16, device, classes=400)
        sizes = []
        for name in ("empty", "empty_like"):
            real = getattr(torch, name)

            def noted(*given, real=real, **options):
                t = real(*given, **options)
                sizes.append(t.nbytes)
                return t

            monkeypatch.setattr(torch, name, noted)
        self.function(hidden.requires_grad_(), weight.requires_grad_(), target)
        assert sizes and max(sizes) <= 2 * max(8 * 400, 16 * 16)


def test_numbers_of_numpy_are_numbers(device):
    hidden, weight, target = TestLinearCrossEntropy().make((3, 8), torch.float32, device)
    options = {"ignore_index": np.int64(target[1].item()), "label_smoothing": np.float32(0.125)}
    ours = TestLinearCrossEntropy.kernel.linear_cross_entropy(hidden, weight, target, **options)
    torch.testing.assert_close(ours, plain(hidden, weight, target, **options))


@pytest.mark.parametrize("hidden, weight, target, options, error, message", WRONG)
def test_wrong_input_is_named(hidden, weight, target, options, error, message, device):
    with pytest.raises(error, match=message):
        given = placed(hidden, device), placed(weight, device), placed(target, device)
        TestLinearCrossEntropy.kernel.linear_cross_entropy(*given, **options)
