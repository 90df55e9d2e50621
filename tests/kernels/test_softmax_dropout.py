"""kernels/softmax_dropout.py: F.dropout of F.softmax, but for the mask, which is as random and is never stored."""

import functools
import math

import numpy as np
import pytest
import torch
import torch._inductor.config
import torch.nn.functional as F
import triton
import triton.language as tl
from torch.utils.checkpoint import checkpoint

from tests.benchmarks import stand_ins
from tests.kernels.compiled import POWER, PRODUCT, STORE, MachineCode
from tests.kernels.conftest import load
from tests.kernels.promises import GPU, SOME, Promises, needs_gpu, placed, randn

kernel = load("softmax_dropout")
philox = kernel._philox
P = 0.3
ELEMENTS = 10_000_000 if GPU else 200_000  # of a mask whose statistics are looked at
SIGMAS = 5.5  # one chance in 26 million for each comparison, were the seeds not fixed
MACHINE_CODE = MachineCode(
    known=(
        ("_forward_wide_kernel", "a, b = c0.to(tl.uint64) * 0xD2511F53", *PRODUCT),
        ("_forward_wide_kernel", "return tl.exp2(x * 1.4426950408889634)", *POWER),
        ("_backward_kernel", "tl.store(dx_ptr + rows[:, None] * N", *STORE),
    ),
    narrow=3,
)
OWN = {  # definitions of the kernel file: see tests/pages/test_copies.py
    "_exp _tile": "a mask is drawn in the same pass",
    "_Once": "cross_entropy",
    "_nested": "softmax",
}


def share(p):
    """What stays: 1 - p of the p that 16 bits can decide."""
    return 1 - round(p * 2**16) / 2**16


def scale(p):
    """By what the kernel multiplies what stays."""
    return 1 / share(p) if share(p) else 0.0


def masks(shape, device, p=P, calls=1, **options):
    """What stays, in calls one after the other: softmax(0) is positive everywhere."""
    zeros = torch.zeros(shape, device=device)
    kept = [kernel.softmax_dropout(zeros, p, **options) != 0 for _ in range(calls)]
    return kept[0] if calls == 1 else kept


@functools.lru_cache(maxsize=1)  # one comparison asks for the same mask three times
def mask_of_seed_0(shape, device):
    torch.manual_seed(0)
    return masks(shape, device)


def independent(a, b, p=P):
    """Whether two masks agree as often as independent ones do."""
    rate = share(p)
    both, n = (a & b).double().mean().item(), a.numel()
    return abs(both - rate**2) < SIGMAS * math.sqrt(rate**2 * (1 - rate**2) / n)


class SoftmaxDropout(Promises):
    """Seeded alike before each call, ours has one mask, and with that mask PyTorch's softmax is the reference."""

    kernel = kernel
    name = "softmax_dropout"
    OTHER_DTYPES = False
    WRAPS = True
    PATHS = (100, 2048, 2500, 32800)

    def function(self, x):
        if not torch.compiler.is_compiling():
            torch.manual_seed(0)
        return self.kernel.softmax_dropout(x, P)

    def plain(self, x):
        factor = mask_of_seed_0(x.shape, x.device) * scale(P)
        s = F.softmax(x, -1)
        return (s * (factor.double() if x.dtype == torch.float64 else factor)).to(s.dtype)

    def make(self, shape, dtype, device, other=None, seed=0):
        return (randn(shape, dtype, device, seed),)

    def run(self, function, arguments, grads=None):
        torch.manual_seed(0)  # for what is compiled, in which no seed can be set
        return super().run(function, arguments, grads)

    def summands(self, arguments, grads, reference):
        g_s = self.plain(*arguments) * grads[0]
        return {
            "x.grad": max(g_s.abs().max().item(), (F.softmax(arguments[0], -1) * g_s.sum(-1, True)).abs().max().item())
        }

    def opchecks(self, device):
        x, dy = (randn((3, 100), torch.bfloat16, device, seed) for seed in (0, 1))
        forward, backward = kernel._forward_op, kernel._backward_op
        for p in (0.0, P, 1.0):
            seed = torch.tensor([1], device=device) if 0 < p < 1 else None
            yield forward, (x, seed, p, x.dtype, False)
            yield forward, (x[:, :50], seed, p, torch.float32, True)
            yield backward, (dy, x, forward(x, seed, p, x.dtype, True)[1], seed, p)

    # ---- the same promises, where the mask of every row or call is another ----------------------------------------

    @needs_gpu
    @pytest.mark.parametrize("wide", (1000, 131072))
    def test_more_than_2_to_the_31_elements(self, wide, device):
        """Each with bits of its own."""
        rows = 2**31 // wide + 300
        x = randn((300, wide), torch.bfloat16, device).repeat(rows // 300 + 1, 1)[:rows].requires_grad_()
        y = kernel.softmax_dropout(x, P)
        (dx,) = torch.autograd.grad(y, x, x.detach())
        assert x.numel() > 2**31 and independent(y[:300] != 0, y[rows - 300 :] != 0)
        for part in (slice(0, 7), slice(rows - 7, rows)):
            exact = x[part].detach().double().requires_grad_()
            expected = F.softmax(exact, -1) * (y[part] != 0) * scale(P)
            torch.testing.assert_close(y[part].double(), expected, rtol=1e-2, atol=1e-9)
            gradient = torch.autograd.grad(expected, exact, exact.detach())[0]
            torch.testing.assert_close(dx[part].double(), gradient, rtol=1e-2, atol=1e-2 * gradient.abs().max().item())

    @pytest.mark.parametrize("dynamic", (False, True))
    def test_compiles_as_one_graph(self, dynamic, device):
        with torch._inductor.config.patch(fallback_random=True):  # so that the compiler draws the seed as torch does
            super().test_compiles_as_one_graph(dynamic, device)

    @pytest.mark.parametrize("layout", (torch.jagged, torch.strided), ids=str)
    def test_nested_tensors_are_taken_or_refused(self, layout, device):
        """A strided one has a mask for each of its tensors."""
        if layout == torch.jagged:
            return super().test_nested_tensors_are_taken_or_refused(layout, device)
        parts = [randn((rows, 100), torch.float32, device).requires_grad_() for rows in (2, 3)]
        torch.manual_seed(0)
        ours = kernel.softmax_dropout(torch.nested.as_nested_tensor(parts), P).unbind()
        torch.manual_seed(0)
        expected = [kernel.softmax_dropout(part, P) for part in parts]
        for y, t, part in zip(ours, expected, parts, strict=True):
            assert torch.equal(y, t)
            assert torch.equal(*(torch.autograd.grad(r.square().sum(), part, retain_graph=True)[0] for r in (y, t)))

    @pytest.mark.parametrize("compiled_autograd", (False, True))
    def test_backward_inside_compiled_code(self, compiled_autograd, device):
        with torch._inductor.config.patch(fallback_random=True):
            super().test_backward_inside_compiled_code(compiled_autograd, device)

    @pytest.mark.parametrize("budget", (1.0, 0.9, 0.5, 0.0))
    def test_compiled_under_any_memory_budget_the_mask_is_the_forwards(self, budget, device):
        x = randn((2, 16, 32), torch.float32, device).requires_grad_()

        def two(x):  # each has a seed
            scores = x @ x.transpose(-1, -2)
            a, b = kernel.softmax_dropout(scores, P), kernel.softmax_dropout(scores, P)
            return ((a @ x).relu() + b @ x).sum(), (a != 0).detach(), (b != 0).detach()

        def in_a_region(x):
            with torch.autograd.graph.region_activation_memory_budget(budget):
                return two(x)

        def with_masks(x, a, b):
            s = F.softmax(x @ x.transpose(-1, -2), -1) * scale(P)
            return (((s * a) @ x).relu() + (s * b) @ x).sum()

        regions = hasattr(torch.autograd.graph, "region_activation_memory_budget")  # from torch 2.13 on
        for function, everywhere in ((two, budget), *([(in_a_region, 1.0)] if regions else [])):
            torch._dynamo.reset()
            with torch._functorch.config.patch(activation_memory_budget=everywhere):
                compiled = torch.compile(function, fullgraph=True, backend="aot_eager_decomp_partition")
                loss, *kept = compiled(x)
                assert not torch.equal(*kept)
                expected = torch.autograd.grad(with_masks(x, *kept), x)[0]
                torch.testing.assert_close(torch.autograd.grad(loss, x)[0], expected, rtol=1e-4, atol=1e-4)


class Probabilities(SoftmaxDropout):
    """The function is F.dropout of softmax, at any probability."""

    @pytest.mark.parametrize(
        "p", (0, 1e-9, 2**-17, 2**-16, 0.1, 0.5, 0.9, 1 - 2**-16, 1 - 2**-17, 0.999999, 1), ids=str
    )
    def test_any_probability(self, p, path, device):
        """Also those too near to 0 or to 1 for 16 bits: then nothing is dropped, or everything."""
        x = randn((7, path), torch.float32, device).requires_grad_()
        dy = randn((7, path), torch.float32, device, 1)
        y = kernel.softmax_dropout(x, p)
        (dx,) = torch.autograd.grad(y, x, dy)
        exact = x.detach().double().requires_grad_()
        expected = F.softmax(exact, -1) * (y != 0) * scale(p)
        torch.testing.assert_close(y, expected.float())
        torch.testing.assert_close(
            dx, torch.autograd.grad(expected, exact, dy.double())[0].float(), atol=1e-7, rtol=1e-5
        )
        assert p > 2**-17 or (y != 0).all()
        assert p < 1 - 2**-17 or not (y.any() or dx.any())

    def test_compiled_any_probability(self, device):
        """p is rounded there, too, where it is a number of the graph, and another one for each call."""
        torch._dynamo.reset()
        compiled = torch.compile(kernel.softmax_dropout, fullgraph=True, dynamic=True, backend="aot_eager")
        (x,), (dy,) = (self.make((7, 100), torch.float32, device, seed=seed) for seed in (0, 1))
        for p in (0.999999, 0.3, 1e-6, 1 - 2**-16):
            results = []
            for function in (kernel.softmax_dropout, compiled):
                torch.manual_seed(6)
                y = function(x.requires_grad_(), p)
                results.append((y, *torch.autograd.grad(y, x, dy)))
            for ours, expected in zip(*results, strict=True):
                assert torch.equal(ours, expected), p

    @pytest.mark.parametrize("options", ({"training": False}, {"p": 0.0}, {"p": 1e-6}), ids=str)
    def test_without_dropout_it_is_softmax_and_draws_nothing(self, options, path, device):
        x = randn((SOME, path), torch.float32, device)
        before = torch.get_rng_state() if device.type == "cpu" else torch.cuda.get_rng_state(device)
        torch.testing.assert_close(kernel.softmax_dropout(x, **options), F.softmax(x, -1))
        after = torch.get_rng_state() if device.type == "cpu" else torch.cuda.get_rng_state(device)
        assert torch.equal(before, after)

    def test_defaults(self, device):
        x = randn((64, 1000), torch.float32, device)
        torch.manual_seed(1)
        expected = kernel.softmax_dropout(x, 0.1, True)
        torch.manual_seed(1)
        assert torch.equal(kernel.softmax_dropout(x), expected)

    @pytest.mark.parametrize("p", (0.0, P, 1.0))
    def test_rows_that_pytorch_makes_nan_are_nan_where_dropped_too(self, p, path, device):
        x = randn((4, path), torch.float32, device)
        x[0], x[1, 3], x[2, : path // 2] = -float("inf"), float("nan"), -float("inf")
        x.requires_grad_()
        y = kernel.softmax_dropout(x, p)
        (dx,) = torch.autograd.grad(y, x, torch.ones_like(y))
        for t in (y, dx):
            assert t[:2].isnan().all() and not t[2:].isnan().any()
        assert (y[2, : path // 2] == 0).all()

    def test_an_infinite_gradient_of_a_dropped_element_spoils_its_row_as_in_pytorch(self, path, device):
        x = randn((2, path), torch.float32, device).requires_grad_()
        y = kernel.softmax_dropout(x, 0.5)
        dy = torch.ones_like(y)
        dy[0, (y[0] == 0).nonzero()[0]] = float("inf")
        (dx,) = torch.autograd.grad(y, x, dy)
        assert dx[0].isnan().all() and not dx[1].isnan().any()

    @pytest.mark.parametrize("p", (-1, -0.1, 1.1, float("nan"), float("inf")), ids=str)
    def test_p_outside_0_to_1_is_refused(self, p, device):
        for training in (True, False):
            with pytest.raises(ValueError, match=r"^p: expected the probability of dropping an element, .* got .* dim"):
                kernel.softmax_dropout(torch.ones(2, 8, device=device), p, training)

    @pytest.mark.parametrize("p", (None, "0.1", torch.tensor(0.1), torch.float32), ids=str)
    def test_p_that_is_no_number_is_refused(self, p, device):
        with pytest.raises(TypeError, match=r"^p: expected a number, the probability of .*, got <class"):
            kernel.softmax_dropout(torch.ones(2, 8, device=device), placed(p, device))

    @pytest.mark.parametrize("training", (None, 0, 1, "False", torch.tensor(True), np.True_), ids=str)
    def test_training_that_is_no_bool_is_refused(self, training, device):
        """As F.dropout does: a string would be true, and a tensor on a GPU would have to be waited for."""
        with pytest.raises(TypeError, match=r"^training: expected a bool, got <class"):
            kernel.softmax_dropout(torch.ones(2, 8, device=device), 0.1, placed(training, device))

    def test_numbers_of_numpy_are_numbers(self, device):
        x = torch.ones(2, 8, device=device)
        assert not kernel.softmax_dropout(x, np.float32(1)).any() and kernel.softmax_dropout(x, np.int64(0)).all()

    @pytest.mark.parametrize(
        "x, error, message",
        (
            (torch.ones(2, 8, dtype=torch.int32), TypeError, "x: expected .*fp32.* got torch.int32"),
            (torch.ones(2, 8).double(), TypeError, "x: expected .*fp32.* got torch.float64"),
            ([1.0], TypeError, "x: expected .*tensor, got <class 'list'>"),
            (np.ones(2, "f"), TypeError, "x: expected .*tensor, got <class 'numpy.ndarray'>"),
            (torch.ones(()), ValueError, "x: expected at least one dimension, got none"),
        ),
    )  # fmt: skip
    def test_wrong_input_is_named(self, x, error, message, device):
        with pytest.raises(error, match=message):
            kernel.softmax_dropout(x.to(device) if isinstance(x, torch.Tensor) else x)


class Masks(SoftmaxDropout):
    """The mask is random: Philox, independent of rows, calls and neighbours."""

    def test_philox_gives_the_known_answers(self, device):
        """Those of Random123, kat_vectors, philox4x32 with 7 rounds."""
        ones = 0xFFFFFFFF
        known = {
            ((0, 0, 0, 0), 0): (0x5F6FB709, 0x0D893F64, 0x4F121F81, 0x4F730A48),
            ((ones, ones, ones, ones), -1): (0x5207DDC2, 0x45165E59, 0x4D8EE751, 0x8C52F662),
            ((0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344), 0x299F31D0A4093822): (
                0x4DFCCABA, 0x190A87F0, 0xC47362BA, 0xB6B5242A),
        }  # fmt: skip
        for (counter, seed), answer in known.items():
            counters, words = torch.tensor(counter, device=device), torch.empty(4, dtype=torch.int64, device=device)
            _answer_kernel[(1,)](torch.tensor([seed], device=device), counters, words)
            assert tuple(words.tolist()) == answer

    @pytest.mark.parametrize("p", (0.1, 0.5, 0.9))
    def test_keep_rate_overall_and_at_each_of_the_eight_places(self, p, path, device):
        torch.manual_seed(2)
        kept, rate = masks((ELEMENTS // path, path // 8 * 8), device, p), share(p)
        for part in (kept, *(kept[:, place::8] for place in range(8))):
            assert abs(part.double().mean().item() - rate) < SIGMAS * math.sqrt(rate * (1 - rate) / part.numel())

    def test_calls_rows_and_neighbours_are_independent(self, path, device):
        torch.manual_seed(3)
        shape = (ELEMENTS // path + 9, path)
        first, second = masks(shape, device, calls=2)
        assert independent(first, second)
        for rows in (1, 2, 3, 8):
            assert independent(first[rows:], first[:-rows])
        for columns in range(1, 33):  # of one group of eight, then of groups side by side
            assert independent(first[:, columns:], first[:, :-columns])

    def test_seeds_side_by_side_give_independent_masks(self, device):
        x = torch.zeros(400, 1000, device=device)
        first, second, other_half = (
            kernel._forward_op(x, torch.tensor([seed], device=device), P, x.dtype, False)[0] != 0
            for seed in (5, 6, 5 + 2**32)
        )
        assert independent(first, second) and independent(first, other_half)

    def test_a_seed_reproduces_the_mask_and_the_next_call_has_another(self, path, device):
        torch.manual_seed(7)
        first = masks((SOME, path), device, calls=2)
        torch.manual_seed(7)
        again = masks((SOME, path), device, calls=2)
        assert torch.equal(first[0], again[0]) and torch.equal(first[1], again[1])
        assert not torch.equal(first[0], first[1])

    def test_the_gradients_mask_is_the_outputs(self, path, device):
        """With dy = 1 at one element and 0 elsewhere, dx is 0 everywhere if it was dropped, and only then."""
        x = randn((300 if GPU else 60_000 // path + 3, path), torch.float32, device).requires_grad_()
        y = kernel.softmax_dropout(x, 0.5)
        for column in (0, 7, path - 1):
            dy = torch.zeros_like(y)
            dy[:, column] = 1
            (dx,) = torch.autograd.grad(y, x, dy, retain_graph=True)
            assert torch.equal(dx.abs().amax(-1) != 0, y[:, column] != 0)

    @pytest.mark.parametrize("columns_", (1, 24, 2048, 9000))
    def test_the_mask_depends_on_row_and_column_alone(self, columns_, device):
        """Any tile of any kernel, any strides, any number of rows, any dtype."""
        x, seed = torch.zeros(9, columns_, device=device), torch.tensor([11], device=device)

        def mask(x, rows=9):
            return kernel._forward_op(x[:rows], seed, P, x.dtype, False)[0] != 0

        expected = mask(x)
        assert torch.equal(mask(x.half()), expected) and torch.equal(mask(x, rows=4), expected[:4])
        assert torch.equal(mask(x.repeat(1, 2)[:, :columns_]), expected)
        block = max(8, triton.next_power_of_2(columns_))
        for options in (
            {"ROWS": 1, "BLOCK": block, "num_warps": 8},
            {"ROWS": 4, "BLOCK": block, "num_warps": 4},
            {"TILES": -(-columns_ // 1024), "BLOCK": 1024, "num_warps": 4},
            {"PROGRAMS": 0, "BLOCK": 512, "num_warps": 2},
            {"PROGRAMS": 1, "BLOCK": 1024, "num_warps": 4},
        ):
            if options.get("ROWS", 1) * options["BLOCK"] > 65536:
                continue
            with stand_ins.launching(kernel, "forward", options):
                assert torch.equal(mask(x), expected), options

    def test_narrower_rows_have_the_same_mask(self, device):
        """Of two matrices with one seed the one is no part of the other, but nothing hangs on the width."""
        seed = torch.tensor([11], device=device)
        wide, narrow = (
            kernel._forward_op(torch.zeros(5, n, device=device), seed, P, torch.float32, False)[0] != 0
            for n in (9000, 100)
        )
        assert torch.equal(wide[:, :100], narrow)


class TestSoftmaxDropout(Masks, Probabilities):
    """Beside these, the seed: who draws it, and when."""

    def test_checkpointing_meets_the_same_mask_twice(self, path, device):
        x = randn((6, path), torch.float32, device).requires_grad_()
        torch.manual_seed(4)
        y = checkpoint(kernel.softmax_dropout, x, P, use_reentrant=False)
        torch.manual_seed(4)
        expected = kernel.softmax_dropout(x, P)
        dy = torch.ones_like(y)
        assert torch.equal(y, expected)
        assert torch.equal(torch.autograd.grad(y, x, dy)[0], torch.autograd.grad(expected, x, dy)[0])

    @pytest.mark.parametrize("dynamic", (False, True))
    @torch._functorch.config.patch(donated_buffer=False)  # for retain_graph
    def test_compiled_it_draws_anew_for_every_call_in_a_graph_and_for_every_run(self, dynamic, device):
        """Two calls with the same arguments look like one to a compiler."""
        torch._dynamo.reset()

        @torch.compile(fullgraph=True, dynamic=dynamic)
        def twice(x):
            return kernel.softmax_dropout(x, P), kernel.softmax_dropout(x, P)

        x = torch.zeros(300, 200, device=device, requires_grad=True)
        torch.manual_seed(5)
        outputs = [y for _ in range(2) for y in twice(x)]
        kept = [y.detach() != 0 for y in outputs]
        assert all(independent(kept[i], kept[j]) for i in range(4) for j in range(i))
        for y, mask in zip(outputs, kept, strict=True):
            dy = torch.zeros_like(y)
            dy[:, 0] = 1
            (dx,) = torch.autograd.grad(y, x, dy, retain_graph=True)
            assert torch.equal(dx.abs().amax(-1) != 0, mask[:, 0])
        torch.manual_seed(5)
        assert torch.equal(twice(x)[0] != 0, kept[0])

    def test_compiled_checkpointing_meets_the_same_mask_twice(self, device):
        torch._dynamo.reset()

        @torch.compile(fullgraph=True, backend="inductor" if GPU else "aot_eager")
        def step(x):
            return checkpoint(kernel.softmax_dropout, x, 0.5, use_reentrant=False)

        x = torch.zeros(50, 64, device=device, requires_grad=True)
        y = step(x)
        dy = torch.zeros_like(y)
        dy[:, 0] = 1
        (dx,) = torch.autograd.grad(y, x, dy)
        assert torch.equal(dx.abs().amax(-1) != 0, y[:, 0] != 0)

    @needs_gpu
    def test_cuda_graph_replays_on_new_inputs(self, path, device):
        """Every replay has a mask of its own, for output and gradient alike, and the seed decides which."""
        x, dy = (randn((300, path), torch.bfloat16, device, seed) for seed in (0, 1))
        leaf = x.requires_grad_()

        def step():
            y = kernel.softmax_dropout(leaf, P)
            return y, torch.autograd.grad(y, leaf, dy)[0]

        step()
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=stream):
                results = step()
        torch.cuda.current_stream().wait_stream(stream)
        kept = []
        for seed in (8, None, 8):
            if seed is not None:
                torch.manual_seed(seed)
            with torch.no_grad():
                leaf.copy_(randn((300, path), torch.bfloat16, device, seed=len(kept)))
                for t in results:
                    t.fill_(float("nan"))  # a replay that does nothing must not pass
            graph.replay()
            kept.append(results[0] != 0)
            exact = leaf.detach().double().requires_grad_()
            expected = F.softmax(exact, -1) * kept[-1] * scale(P)
            gradient = torch.autograd.grad(expected, exact, dy.double())[0]
            for ours, theirs in zip(results, (expected.detach(), gradient), strict=True):
                torch.testing.assert_close(ours.double(), theirs, rtol=1e-2, atol=1e-2 * theirs.abs().max().item())
        assert independent(kept[0], kept[1]) and torch.equal(kept[0], kept[2])


@triton.jit
def _answer_kernel(seed_ptr, counter_ptr, words_ptr):
    c0, c1 = tl.load(counter_ptr).to(tl.uint32), tl.load(counter_ptr + 1).to(tl.uint32)
    c2, c3 = tl.load(counter_ptr + 2).to(tl.uint32), tl.load(counter_ptr + 3).to(tl.uint32)
    a, b, c, d = philox(tl.load(seed_ptr), c0, c1, c2, c3)
    tl.store(words_ptr, a.to(tl.int64))
    tl.store(words_ptr + 1, b.to(tl.int64))
    tl.store(words_ptr + 2, c.to(tl.int64))
    tl.store(words_ptr + 3, d.to(tl.int64))
