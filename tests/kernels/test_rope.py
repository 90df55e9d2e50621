"""kernels/rope.py: the same function as the rotary embedding written out in PyTorch, in every layout."""

import itertools
import math

import numpy as np
import pytest
import torch

from tests.kernels import compiled
from tests.kernels.compiled import LOAD, PRODUCT, STORE, MachineCode
from tests.kernels.conftest import load
from tests.kernels.promises import DTYPES, GPU, Promises, needs_gpu, placed, randn

kernel = load("rope")
ORDERS = tuple(itertools.permutations(range(3)))  # of batch, heads and tokens in memory, outermost first
BHSD, BSHD = (0, 1, 2), (0, 2, 1)
MACHINE_CODE = MachineCode(
    known=(
        ("_rope_kernel", "t_1s = t_1s + (tl.load(", *LOAD),
        ("_rope_kernel", "tl.store(out + step * HEADS * out_h + HALF", *STORE),
        ("_rope_kernel", "b, s = (token // S).to(tl.int64)", *PRODUCT),
    ),
)
OWN = {  # definitions of the kernel file: see tests/pages/test_copies.py
    "_INTERPRETED _tile": "one kernel for both directions, of heads",
}


def plain(q, k, cos, sin):
    """As LLaMA's code has it."""

    def rotate_half(t):
        first, second = t.chunk(2, -1)
        return torch.cat((-second, first), -1)

    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    return q * cos + rotate_half(q) * sin, k * cos + rotate_half(k) * sin


def laid_out(shape, order, dtype, device, seed=0):
    """A tensor (B, H, S, D) whose B, H and S follow each other in memory as `order` says."""
    inverse = [order.index(dim) for dim in range(3)]
    return randn([*(shape[dim] for dim in order), shape[3]], dtype, device, seed).permute(*inverse, 3)


def order_of(t):
    return tuple(sorted(range(3), key=lambda dim: -t.stride(dim)))


class Rope(Promises):
    """What every kernel promises, of one head: its rows are the tokens, its columns the head dimension."""

    kernel = kernel
    name = "rope"
    inputs = ("q", "k")
    outputs = ("q_out", "k_out")
    GRID = (2, 6, 64, 80, 96, 128, 192, 256, 512, 760, 1000, 1128, 4098, 9000, 32000, 65538, 128256, 262144)  # even
    EDGES = (4098,)
    ROWS = 37
    PATHS = (100, 128)
    NESTED = False

    def public(self, arguments):
        q, k, cos, sin = (t.reshape(math.prod(t.shape[:-1]), t.shape[-1]) for t in arguments)
        return q[None, None], k[None, None], cos[None], sin[None]

    def function(self, q, *others):
        return tuple(y.reshape(q.shape) for y in self.kernel.rope(*self.public((q, *others))))

    def plain(self, q, *others):
        return tuple(y.reshape(q.shape) for y in plain(*self.public((q, *others))))

    def make(self, shape, dtype, device, other=None, seed=0):
        dtypes = (dtype, *[other or dtype] * 3)
        return tuple(randn(shape, dtype, device, seed + 10 * index) for index, dtype in enumerate(dtypes))

    def of_length(self, columns, largest):
        """So many tokens: a model has one head dimension, and the kernel is compiled for it."""
        return tuple(t.flatten()[: 2 * columns].view(columns, 2) for t in largest)

    def heads(self, device, dtype=torch.float32, order=BSHD, B=2, H=5, K=3, S=7, D=48, tables=1, seed=0):
        """q, k, cos and sin as the public function takes them. The two halves of cos and of sin differ."""
        return (
            laid_out((B, H, S, D), order, dtype, device, seed),
            laid_out((B, K, S, D), order, dtype, device, seed + 1),
            randn((tables, S, D), dtype, device, seed + 2),
            randn((tables, S, D), dtype, device, seed + 3),
        )

    def check_heads(self, arguments, grads=None):
        return Natural().check(arguments, grads)

    def beyond_count(self, device):
        tokens = 2**30 + 1
        q, k, cos, sin = (randn(shape, torch.bfloat16, device) for shape in ((1, 1, 1, 2),) * 2 + ((1, 1, 2),) * 2)
        yield q.expand(1, 1, tokens, 2), k.expand(1, 1, tokens, 2), cos.expand(1, tokens, 2), sin.expand(1, tokens, 2)

    def opchecks(self, device):
        q, k, cos, sin = self.heads(device, torch.bfloat16)
        forward, backward = self.kernel._forward_op, self.kernel._backward_op
        return (
            (forward, (q, k, cos, sin, torch.bfloat16, torch.bfloat16, 1, 1)),
            (forward, (q.float(), k, cos, sin, torch.float32, torch.bfloat16, 4, 0)),
            (backward, (q, k, cos, sin, torch.bfloat16, torch.float32, 0, 1)),
        )

    def test_rows_that_8_divides_and_16_does_not_are_read_in_16_bytes(self):
        """Tokens 8 * 17 elements apart; a half whose length 8 does not divide has every second one elsewhere."""
        for facts in compiled.ahead(Uneven, "sm_90", (128,)):
            assert facts["loads"].keys() == facts["stores"].keys() == {"128"}, facts

    @pytest.mark.parametrize("other", DTYPES, ids=str)
    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    def test_mixed_dtypes_and_autocast_as_pytorch(self, dtype, other, device):
        """Nothing in it is autocast. But in a region of bf16 PyTorch's cat refuses fp16."""
        arguments = self.make((5, 48), dtype, device, other)
        self.check(arguments)
        expected = {name: t.dtype for name, t in self.run(self.plain, arguments).items()}
        with torch.autocast(device.type, torch.bfloat16):
            assert {name: t.dtype for name, t in self.run(self.function, arguments).items()} == expected
            if torch.float16 not in (dtype, other):
                assert {name: t.dtype for name, t in self.run(self.plain, arguments).items()} == expected


class Heads(Rope):
    """Any number of heads, tokens and tables."""

    @pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16), ids=str)
    @pytest.mark.parametrize("tables", (1, 3))
    @pytest.mark.parametrize("H, K", ((5, 3), (8, 1), (1, 4), (17, 17)))
    def test_any_number_of_heads_and_a_table_for_each_batch(self, H, K, tables, dtype, device):
        self.check_heads(self.heads(device, dtype, B=3, H=H, K=K, tables=tables))

    @pytest.mark.parametrize("S, D", ((1, 128), (300, 16), (129, 2), (2, 6), (3, 2064)))
    def test_tiles_that_end_anywhere_in_a_token(self, S, D, device):
        self.check_heads(self.heads(device, B=2, H=3, K=1, S=S, D=D, tables=2))

    def test_more_heads_than_a_program_has_at_one_time(self, device):
        """Turns are taken only where there are enough programs for the GPU."""
        self.check_heads(self.heads(device, B=1, H=32, K=9, S=14000 if GPU else 210, D=80))

    def test_a_table_for_cos_and_one_for_each_batch_for_sin(self, device):
        q, k, cos, _ = self.heads(device)
        self.check_heads((q, k, cos, randn((2, *cos.shape[1:]), torch.float32, device, seed=9)))

    def test_position_0_stays_and_lengths_stay(self, device):
        q, k, _, _ = self.heads(device, S=50)
        angles = torch.arange(50, device=device)[:, None] * 100.0 ** -torch.linspace(0, 1, 24, device=device)
        cos, sin = (torch.cat((t, t), -1)[None] for t in (angles.cos(), angles.sin()))
        for t, out in zip((q, k), self.kernel.rope(q, k, cos, sin), strict=True):
            assert torch.equal(out[:, :, 0], t[:, :, 0])
            torch.testing.assert_close(out.norm(dim=-1), t.norm(dim=-1))

    def test_scores_depend_on_the_distance_alone(self, device):
        q, k = (randn((1, 1, 1, 48), torch.float32, device, seed).expand(-1, -1, 60, -1) for seed in (1, 2))
        angles = torch.arange(60, device=device)[:, None] * 100.0 ** -torch.linspace(0, 1, 24, device=device)
        cos, sin = (torch.cat((t, t), -1)[None] for t in (angles.cos(), angles.sin()))
        q, k = self.kernel.rope(q, k, cos, sin)
        near, far = ((q[0, 0, start] * k[0, 0, start + 5]).sum() for start in (1, 50))
        torch.testing.assert_close(near, far, rtol=1e-4, atol=1e-4)

    @pytest.mark.parametrize("sizes", ({"B": 0}, {"H": 0}, {"K": 0}, {"S": 0}, {"D": 0}, {"H": 0, "K": 0}), ids=str)
    def test_empty_heads(self, sizes, device):
        arguments = self.heads(device, **sizes)
        ours, expected = (Natural().run(f, arguments) for f in (self.kernel.rope, plain))
        for name, t in expected.items():
            assert ours[name].shape == t.shape
            torch.testing.assert_close(ours[name], t)


class Places(Rope):
    """Heads and tables may lie in memory as they like, and what comes back lies as what came."""

    @pytest.mark.parametrize("order", ORDERS, ids=str)
    def test_results_and_gradients_keep_the_layout(self, order, device):
        """Whatever the layout of the incoming gradient: a gradient goes where its input came from."""
        q, k, cos, sin = self.heads(device, order=order)
        for incoming in (BHSD, BSHD):
            grads = tuple(laid_out(t.shape, incoming, t.dtype, device, seed=7) for t in (q, k))
            ours = self.check_heads((q, k, cos, sin), grads)
            for name, t in ours.items():
                assert t.stride() == (q if name.startswith("q") else k).stride(), name
        expected = plain(q, k, cos, sin)
        assert ours["q_out"].stride() == expected[0].stride() and ours["k_out"].stride() == expected[1].stride()

    def test_parts_of_one_projection_run_where_they_are(self, device, monkeypatch):
        packed = randn((2, 7, 11, 48), torch.bfloat16, device).transpose(1, 2)
        q, k = packed[:, :5], packed[:, 5:8]
        _, _, cos, sin = self.heads(device, torch.bfloat16)
        seen = []

        class Launcher:
            def __init__(self, function):
                self.function = function

            def __getitem__(self, grid):
                return lambda *a, **kw: (seen.append([t.data_ptr() for t in a[:4]]), self.function[grid](*a, **kw))

        monkeypatch.setattr(self.kernel, "_rope_kernel", Launcher(self.kernel._rope_kernel))
        q_out, k_out = self.kernel.rope(q, k, cos, sin)
        assert seen == [[t.data_ptr() for t in (q, k, cos, sin)]]
        assert order_of(q_out) == order_of(k_out) == BSHD and q_out.numel() == q_out.untyped_storage().size() // 2
        self.check_heads((q, k, cos, sin))

    def test_tables_with_any_strides(self, device):
        q, k, cos, sin = self.heads(device, B=2, tables=2)
        one = randn((1, 1, 48), torch.float32, device)
        wide = randn((2, 7, 96), torch.float32, device)
        for odd in (
            one.expand(2, 7, 48),
            wide[:, :, 24:72],
            wide[:, :, ::2],
            wide.view(2, 96, 7)[:, :48].transpose(1, 2),
        ):
            self.check_heads((q, k, odd, sin))
            self.check_heads((q, k, cos, odd))

    @pytest.mark.parametrize("dim", (0, 1, 2), ids=("batches", "heads", "tokens"))
    @pytest.mark.parametrize("apart", (2**31 + 16, 2**31 + 1, 2**30 + 16), ids=str)
    def test_steps_of_more_than_2_to_the_31_elements(self, dim, apart, device):
        count = 3 if apart < 2**31 else 2
        sizes = {"BHS"[dim]: count, **({"K": count} if dim == 1 else {})}
        near = self.heads(device, torch.bfloat16, order=BHSD, **{"B": 1, "H": 1, "K": 1, "S": 1, **sizes})

        def far(t):
            strides = list(t.stride())
            strides[dim] = apart
            memory = torch.empty((count - 1) * apart + 48, dtype=t.dtype, device=device)
            return memory.as_strided(t.shape, strides).copy_(t)

        expected = Natural().run(self.kernel.rope, near)
        ours = Natural().run(self.kernel.rope, (*(far(t) for t in near[:2]), *near[2:]))
        self.assert_equal(ours, expected)

    def test_heads_wider_than_is_counted_are_refused(self, device):
        """Of so few chunks that their number is no reason."""
        D = 2**31 + 16
        memory = torch.empty(D, dtype=torch.bfloat16, device=device)  # untouched pages cost nothing
        q, table = memory.view(1, 1, 1, D), memory.view(1, 1, D)
        with pytest.raises(ValueError, match=r"q: expected .* pairs of numbers in a head,.* 1073741832 and 13421"):
            self.kernel.rope(q, q[:, :0], table, table)

    @needs_gpu
    @pytest.mark.parametrize("order", (BHSD, BSHD), ids=str)
    def test_more_than_2_to_the_31_elements_in_many_heads(self, order, device):
        few = self.heads(device, torch.bfloat16, order=order, B=1, H=32, K=8, S=4096, D=128)
        many = [t.repeat(130, 1, 1, 1) if t.dim() == 4 else t for t in few]
        if order == BSHD:
            many[:2] = (t.transpose(1, 2).contiguous().transpose(1, 2) for t in many[:2])
        assert many[0].numel() > 2**31
        for ours, expected in zip(self.kernel.rope(*many), self.kernel.rope(*few), strict=True):
            assert torch.equal(ours[:1], expected) and torch.equal(ours[-1:], expected)


class TestRope(Places, Heads):
    """Beside these, what is of the public function alone: its gradients, compiled code and errors."""

    def test_one_result_that_nothing_uses(self, device):
        q, k, cos, sin = self.heads(device)
        q, k = q.requires_grad_(), k.requires_grad_()
        for index in (0, 1):
            ours, expected = (f(q, k, cos, sin)[index].square().sum() for f in (self.kernel.rope, plain))
            for a, b in zip(torch.autograd.grad(ours, (q, k), materialize_grads=True),
                            torch.autograd.grad(expected, (q, k), materialize_grads=True), strict=True):  # fmt: skip
                torch.testing.assert_close(a, b)

    @pytest.mark.parametrize("name", ("cos", "sin"))
    def test_a_table_that_requires_a_gradient_is_refused(self, name, device):
        arguments = dict(zip(("q", "k", "cos", "sin"), self.heads(device), strict=True))
        arguments[name].requires_grad_()
        with pytest.raises(ValueError, match=f"{name}: expected a tensor that does not require a gradient"):
            self.kernel.rope(**arguments)
        with torch.no_grad():
            assert not self.kernel.rope(**arguments)[0].requires_grad

    @pytest.mark.parametrize("dynamic", (False, True))
    def test_compiled_the_layout_stays(self, dynamic, device):
        torch._dynamo.reset()

        def step(q, k, cos, sin):
            q_out, k_out = self.kernel.rope(q * 2, k * 2, cos, sin)
            return q_out + 1, k_out + 1

        backend = "inductor" if GPU else "aot_eager"
        compiled_step = torch.compile(step, fullgraph=True, dynamic=dynamic, backend=backend)
        for order, S in ((BSHD, 7), (BSHD, 12), (BHSD, 12)):
            arguments = self.heads(device, order=order, S=S)
            ours, expected = (Natural().run(f, arguments) for f in (compiled_step, step))
            for name, t in expected.items():
                torch.testing.assert_close(ours[name], t)
                assert ours[name].stride() == t.stride(), name

    # ---- errors -------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize(
        "changed, error, message",
        (
            ({"q": torch.ones(2, 3, 4, 8).int()}, TypeError, "q: expected .*fp32.* got torch.int32"),
            ({"k": None}, TypeError, "k: expected .*tensor, got <class 'NoneType'>"),
            ({"k": np.ones(3, "f")}, TypeError, "k: expected .*tensor, got <class 'numpy.ndarray'>"),
            ({"cos": torch.ones(1, 4, 8).double()}, TypeError, "cos: expected .*fp32.* got torch.float64"),
            ({"q": torch.ones(3, 4, 8)}, ValueError, r"q: expected shape \(B, H, S, D\) with D even, got \[3, 4, 8\]"),
            ({"q": torch.ones(2, 3, 4, 7)}, ValueError, r"q: expected .* with D even, got \[2, 3, 4, 7\]"),
            ({"k": torch.ones(2, 5, 8)}, ValueError, r"k: expected shape \(2, K, 4, 8\), .* got \[2, 5, 8\]"),
            ({"k": torch.ones(1, 5, 4, 8)}, ValueError, r"k: expected shape \(2, K, 4, 8\), .* got \[1, 5, 4, 8\]"),
            ({"k": torch.ones(2, 5, 3, 8)}, ValueError, r"k: expected shape \(2, K, 4, 8\)"),
            ({"k": torch.ones(2, 5, 4, 6)}, ValueError, r"k: expected shape \(2, K, 4, 8\)"),
            ({"cos": torch.ones(4, 8)}, ValueError, r"cos: expected shape \(1 or 2, 4, 8\), .* got \[4, 8\]"),
            ({"cos": torch.ones(3, 4, 8)}, ValueError, r"cos: expected shape \(1 or 2, 4, 8\), .* got \[3, 4, 8\]"),
            ({"sin": torch.ones(1, 4, 4)}, ValueError, r"sin: expected shape \(1 or 2, 4, 8\), .* got \[1, 4, 4\]"),
            ({"sin": torch.ones(1, 4, 8, device="meta")}, ValueError, "sin: expected on .*, where q is, got meta"),
        ),
    )  # fmt: skip
    def test_wrong_input_is_named(self, changed, error, message, device):
        right = {"q": torch.ones(2, 3, 4, 8), "k": torch.ones(2, 5, 4, 8)} | dict.fromkeys(
            ("cos", "sin"), torch.ones(1, 4, 8)
        )

        with pytest.raises(error, match=message):
            self.kernel.rope(**{name: placed(t, device) for name, t in (right | changed).items()})


class Natural(TestRope):
    """The same, called as the public function is."""

    __test__ = False

    def function(self, *arguments):
        return self.kernel.rope(*arguments)

    def plain(self, *arguments):
        return plain(*arguments)


class Uneven(Natural):
    """q, k and what comes back to them with tokens 8 * 17 elements apart."""

    def launches(self, columns, target):
        q, k, cos, sin = self.heads(torch.device("cpu"), torch.bfloat16, B=2, H=32, K=8, S=512, D=columns)

        def wider(t):
            rows = t.transpose(1, 2)
            wide = t.new_empty(*rows.shape[:2], rows.shape[2] * columns + 8)[..., 8:]
            return wide.unflatten(2, (-1, columns)).transpose(1, 2)

        arguments = wider(q), wider(k), cos, sin
        return compiled.recorded(self.kernel, lambda: self.run(self.kernel.rope, arguments, arguments[:2]), target)
