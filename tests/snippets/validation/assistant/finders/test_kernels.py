"""Kernels: large products in fp32."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from snippets.validation.assistant.found import find
from tests.snippets.validation.planted.seen import evidence, faults, recorded

pytestmark = pytest.mark.usefixtures("one_core")


def test_large_fp32_products_are_a_finding_and_small_ones_a_note():
    wide = nn.Linear(1024, 2048, bias=False)
    for rows, weight in ((64, "note"), (1024, "finding")):
        found = [
            one for one in find(*evidence(lambda rows=rows: (wide, torch.randn(rows, 1024)))) if one.kind == "precision"
        ]
        assert [one.weight for one in found] == [weight]


class Steps(nn.Module):
    """A training step as a module."""

    def __init__(self, **options):
        super().__init__()
        self.net = nn.Sequential(*(nn.Linear(8, 8) for _ in range(4)))
        self.adam = torch.optim.Adam(self.net.parameters(), **options)

    def forward(self, x):
        self.adam.zero_grad()
        loss = self.net(x).square().mean()
        loss.backward()
        self.adam.step()
        return loss.detach()


def test_an_optimizer_that_is_not_fused_is_found():
    for options, kinds in (({}, ["optimizer"]), ({"foreach": True}, ["optimizer"]), ({"fused": True}, [])):
        found = faults(find(*recorded(lambda options=options: (Steps(**options), torch.randn(4, 8)))))
        assert [one.kind for one in found if one.kind in ("optimizer", "small-kernels")] == kinds


def odd_sizes_of(net, x):
    return [one.kind for one in faults(find(*recorded(lambda: (net, x)))) if one.kind == "odd-size"]


def test_an_odd_size_in_little_of_the_work_is_left_alone():
    for hidden, kinds in ((8, ["odd-size"]), (2048, [])):
        net = nn.Sequential(nn.Linear(32, hidden), nn.Linear(hidden, 32), nn.Linear(32, 129)).bfloat16()
        assert odd_sizes_of(net, torch.randn(4, 32).bfloat16()) == kinds


class Autocast(nn.Linear):
    def forward(self, x):
        with torch.autocast(x.device.type, torch.bfloat16):
            return super().forward(x)


class Attends(nn.Module):
    def forward(self, x):
        return F.scaled_dot_product_attention(x, x, x)


@pytest.mark.parametrize(
    ("net", "dtype", "precision", "kinds"),
    [
        (nn.Linear(32, 129), torch.bfloat16, "highest", ["odd-size"]),
        (Autocast(32, 129), torch.float32, "highest", ["odd-size"]),
        (nn.Linear(32, 129), torch.float32, "high", ["odd-size"]),
        (nn.Linear(32, 129), torch.float32, "highest", []),
        (nn.Linear(32, 129), torch.float64, "high", []),
        (Attends(), torch.float32, "highest", ["odd-size"]),  # no fused kernel takes such a head
        (nn.Linear(32, 132), torch.float32, "high", []),
    ],
)
def test_a_size_is_odd_only_for_what_tensor_cores_or_a_fused_kernel_would_read(net, dtype, precision, kinds):
    x = torch.randn(1, 2, 64, 33 if isinstance(net, Attends) else 32, dtype=dtype)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        assert odd_sizes_of(net.to(dtype), x) == kinds
    finally:
        torch.set_float32_matmul_precision(before)


class Ranked(nn.Module):
    """The host reads some of the best, or the best one."""

    def __init__(self, best):
        super().__init__()
        self.best = best

    def forward(self, x):
        return [number.item() for number in x.topk(self.best).values] + [x.sum()]


@pytest.mark.parametrize(("best", "advised"), [(4, True), (1, False)])
def test_numbers_that_the_host_ranks_are_ranked_on_the_device(best, advised):
    found = find(*recorded(lambda: (Ranked(best), torch.randn(64))))
    assert [("torch.topk" in one.change) for one in found if one.kind == "sync"] == [advised]


class Wide(nn.Module):
    """A function of what is narrow, of whole numbers, and of a buffer in fp64."""

    def __init__(self, function, dtype=torch.float32):
        super().__init__()
        self.function, self.f = function, nn.Linear(64, 64, dtype=dtype)
        self.register_buffer("rates", torch.rand(33, dtype=torch.float64))

    def forward(self, x, steps):
        return self.function(self, self.f(x), steps)


def filtered(m, x, steps):
    return torch.fft.irfft(torch.fft.rfft(x) * m.rates).float()


def embedded(m, x, steps):
    return x + (steps[:, None] * m.rates).sin().sum(-1, keepdim=True).to(x.dtype)


def masked(m, x, steps):
    return x * (x > 0)


@pytest.mark.parametrize(
    ("function", "dtype", "times"),
    [
        (filtered, torch.float32, 1),
        (embedded, torch.float32, 1),
        (masked, torch.float32, 0),
        (masked, torch.float64, 0),
    ],
)
def test_fp64_that_meets_complex_or_whole_numbers_is_found(function, dtype, times):
    made = lambda: (Wide(function, dtype), torch.randn(16, 64, dtype=dtype), torch.arange(16))  # noqa: E731
    found = [one for one in faults(find(*recorded(made))) if one.title.startswith("A tensor in fp64")]
    assert len(found) == times and all("float32 where it is made" in one.change for one in found)


def test_a_module_of_fp64_is_not_told_to_be_narrow():
    inputs = torch.randn(16, 64, dtype=torch.float64), torch.arange(16)
    scaled = lambda m, x, steps: x * steps[:, None]  # noqa: E731
    found = find(*recorded(lambda: (Wide(scaled, torch.float64), *inputs)))
    assert not [one for one in found if one.title.startswith("A tensor in fp64")]


class Packs(nn.Module):
    """A recurrent layer of rows without their padding, whose lengths are on the host, as PyTorch wants them."""

    def __init__(self, reads=None):
        super().__init__()
        self.reads, self.f = reads, nn.GRU(8, 8, batch_first=True)
        self.lengths = torch.tensor([12, 9, 5, 4])  # no buffer: it stays

    def forward(self, x):
        packed = pack_padded_sequence(x, self.lengths, batch_first=True)
        y, _ = pad_packed_sequence(self.f(packed)[0], batch_first=True)
        return y[:, : self.reads(x, self.lengths)] if self.reads else y


READ = {
    None: 0,
    (lambda x, lengths: int(lengths.max())): 0,
    (lambda x, lengths: lengths.float().mean().mul(2).int().item()): 0,
    (lambda x, lengths: int((x.detach().abs().sum((0, 2)) > 0).sum())): 1,
}


@pytest.mark.parametrize("reads", READ)
def test_lengths_of_packed_rows_are_no_wait_and_their_break_is_no_finding(reads):
    found = find(*evidence(lambda: (Packs(reads), torch.randn(4, 12, 8)), sizes=False))
    assert len([one for one in faults(found) if one.kind == "sync"]) == READ[reads]
    breaks = [one for one in found if one.kind == "graph-break" and "_sequence" in one.line.text]
    assert breaks and all(one.weight == "note" and "custom_op" not in one.change for one in breaks)
