"""Loops of small kernels: which are the same, and which write apart."""

import pytest
import torch
from torch import nn

from snippets.validation.assistant.found import find
from tests.snippets.validation.planted.seen import faults, recorded

pytestmark = pytest.mark.usefixtures("one_core")


class Twice(nn.Module):
    """A loop that is run twice, by two calls on one line, and a third one."""

    def through(self, x):
        return torch.stack([one.softmax(-1).sum(0) for one in x])

    def forward(self, x):
        return self.through(self.through(x)[..., None]) + torch.stack([one.sin().sum(-1).mean(-1) for one in x])


def test_a_loop_that_runs_twice_is_found_two_times_and_another_is_another():
    found = find(*recorded(lambda: (Twice(), torch.randn(16, 4, 8))))
    assert sorted(one.times for one in found if one.kind == "small-kernels") == [1, 2]


class Of(nn.Module):
    """A function as a module."""

    def __init__(self, function):
        super().__init__()
        self.function, self.f = function, nn.Linear(16, 16)

    def forward(self, x):
        return self.function(self.f(x))


def prefix_sums(x):
    return torch.stack([torch.exp(-x[:, :i].sum(1)) for i in range(16)], dim=1)


def suffix_maxima(x):
    return torch.stack([x[:, i:].amax(1).sin() for i in range(15)], dim=1)


def parts(x):
    return torch.stack([part.sum((0, 1)).sin() for part in x[:55].split([*range(1, 11)])])


def by_class(x):
    total = 0.0
    for c in range(16):
        p, t = x[:, c], (x[:, 0] > c).float()
        total = total + 1 - (2 * (p * t).sum() + 1) / (p.sum() + t.sum() + 1)
    return total


CHANGES = {
    prefix_sums: "torch.cumsum once",
    suffix_maxima: "torch.cummax once",
    parts: "scatter_reduce",
    by_class: "one batched call",
}


@pytest.mark.parametrize("function", CHANGES, ids=lambda one: one.__name__)
def test_turns_that_are_independent_are_done_at_once_as_they_read_their_tensor(function):
    found = find(*recorded(lambda: (Of(function), torch.randn(64, 16))))
    (loop,) = [one for one in found if one.kind == "small-kernels"]
    assert CHANGES[function] in loop.change and loop.weight == "finding"


class Decoder(nn.Module):
    """Each turn's word is read on the host, which makes the next turn's input of it."""

    def __init__(self, following):
        super().__init__()
        self.following, self.words, self.head = following, nn.Embedding(64, 16), nn.Linear(16, 64)

    def forward(self, word):
        words = []
        for t in range(12):
            word = self.following(self.head(self.words(word).tanh() + t).argmax(-1), word)
            words.append(word)
        return torch.stack(words)


def written(x, number):
    x = x.clone() * 0
    x[:] = number
    return x


FOLLOWING = {
    "a list": lambda best, before: torch.tensor(best.tolist()),
    "an array": lambda best, before: torch.from_numpy(best.numpy() + 1) % 64,
    "a number that is written": lambda best, before: written(before, best[0].item()),
    "a number": lambda best, before: torch.full((2,), best[0].item()),
}


@pytest.mark.parametrize("following", FOLLOWING.values(), ids=FOLLOWING)
def test_turns_that_read_each_other_through_the_host_are_not_independent(following):
    found = find(*recorded(lambda: (Decoder(following).eval(), torch.tensor([1, 2]))))
    assert not [one for one in faults(found) if one.kind == "small-kernels"]


def measured_alone(x):
    sizes = []
    for t in range(12):
        sizes.append(torch.tensor([x[t].sin().sum().item()]))
    return x * torch.stack(sizes)[:1]


def summed_inside(x):
    parts = x.view(16, 4, 16)
    return torch.stack([torch.cat([one.sin().mean(0, keepdim=True) for one in part]).norm() for part in parts])


def test_a_number_that_no_turn_reads_ties_no_turns():
    found = find(*recorded(lambda: (Of(measured_alone), torch.randn(64, 16))))
    assert "no turn reads another" in next(one.change for one in found if one.kind == "small-kernels")


def test_the_turns_of_an_inner_loop_are_not_counted_as_those_of_the_outer_and_a_line_is_said_once():
    found = find(*recorded(lambda: (Of(summed_inside), torch.randn(64, 16))))
    (loop,) = [one for one in found if one.kind == "small-kernels"]
    assert loop.evidence.startswith("16 turns, ") and len(loop.lines) == 1


class Frames(nn.Module):
    """One network for each frame of a clip."""

    def __init__(self, norm):
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(3, 8, 3, 2), norm, nn.ReLU())

    def forward(self, frames):
        return torch.stack([self.net(frames[:, t]).mean((2, 3)) for t in range(frames.shape[1])], 1)


def of_frames(norm, turns, training=False):
    frames = torch.randn(4, turns, 3, 16, 16)
    found = find(*recorded(lambda: (Frames(norm).train(training), frames)))
    return [one for one in found if one.kind == "small-kernels"]


@pytest.mark.parametrize("norm", [nn.BatchNorm2d(8), nn.BatchNorm2d(8, affine=False, track_running_stats=False)])
def test_a_batched_call_would_change_the_statistics_of_batch_norm_in_training_alone(norm):
    (trained,) = of_frames(norm, 16, training=True)
    assert trained.weight == "note" and "statistics" in trained.change and "no turn reads" not in trained.change
    if norm.track_running_stats:
        (evaluated,) = of_frames(norm, 16)
        assert evaluated.weight == "finding" and "one batched call" in evaluated.change


@pytest.mark.parametrize(("turns", "times"), [(3, 0), (4, 1), (6, 1)])
def test_four_turns_of_the_same_modules_are_worth_one_call(turns, times):
    assert len(faults(of_frames(nn.BatchNorm2d(8), turns))) == times


class Layers(nn.Module):
    """Layers that are no loop of independent turns, though there are four to seven."""

    def __init__(self, forward):
        super().__init__()
        self.of, self.head = forward, nn.Conv2d(8, 8, 3, padding=1)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.ReLU()) for _ in range(6))

    def forward(self, x):
        return self.of(self, x)


def chained(m, x):
    for block in m.blocks:
        x = x + block(x)
    return x


def shared_chained(m, x):
    for _ in range(6):
        x = (x + m.head(x).relu()) / 2
    return x


def own_projections(m, x):
    return torch.stack([block(part) for block, part in zip(m.blocks, x.expand(12, 8, 16, 16).chunk(6), strict=True)])


def pyramid(m, x):
    return [m.head(x[..., :side, :side]).relu().mul(2) for side in (16, 12, 8, 6, 4)]


def after_each(m, x):
    found = []
    for block in m.blocks:
        x = block(x)
        found.append(m.head(x).relu())
    return torch.stack(found)


@pytest.mark.parametrize("forward", [chained, shared_chained, own_projections, pyramid, after_each])
def test_few_turns_that_are_layers_or_differ_are_left_alone(forward):
    found = find(*recorded(lambda: (Layers(forward).eval(), torch.randn(1, 8, 16, 16))))
    assert not [one for one in faults(found) if one.kind == "small-kernels"]


class Tables(nn.Module):
    """A row of a table of its own for each column of the input."""

    def __init__(self, widths, residual=False):
        super().__init__()
        self.tables, self.residual = nn.ModuleList(nn.Embedding(40, width) for width in widths), residual

    def forward(self, ids):
        if self.residual:  # the next table is read where the last row says
            at, rows = ids[:, 0], []
            for table in self.tables:
                rows.append(table(at))
                at = rows[-1].argmax(-1)
            return torch.cat(rows, 1)
        return torch.cat([table(ids[:, at]) for at, table in enumerate(self.tables)], 1)


class OneTable(nn.Module):
    def __init__(self, tables):
        super().__init__()
        sizes = torch.tensor([0, *(len(one.weight) for one in tables[:-1])])
        self.table = nn.Embedding.from_pretrained(torch.cat([one.weight for one in tables]))
        self.register_buffer("first", sizes.cumsum(0))

    def forward(self, ids):
        return self.table(ids + self.first).flatten(1)


def test_tables_of_one_width_are_one_table_with_offsets_and_the_result_is_equal():
    module, ids = Tables([8] * 12), torch.randint(0, 40, (16, 12))
    (found,) = faults(find(*recorded(lambda: (module, ids))))
    assert found.kind == "small-kernels" and "one table" in found.change and found.evidence.startswith("12 ")
    one = OneTable(module.tables)
    torch.testing.assert_close(one(ids.to(one.first.device)).cpu(), module.cpu()(ids.cpu()), rtol=0, atol=0)
    assert not faults(find(*recorded(lambda: (one, ids))))


@pytest.mark.parametrize("tables", [Tables([8] * 4), Tables([*range(8, 20)]), Tables([8] * 12, residual=True)])
def test_tables_that_cannot_be_one_are_left_alone(tables):
    found = find(*recorded(lambda: (tables, torch.randint(0, 8, (16, 12)))))
    assert not [one for one in faults(found) if "one table" in one.change]
