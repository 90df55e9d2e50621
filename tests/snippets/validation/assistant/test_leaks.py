"""What a module's calls leave in lists, wherever a call can reach them: found where it grows, and only there."""

import collections
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from torch import Tensor, nn

from snippets.validation.assistant.finders.memory import LEAK
from snippets.validation.assistant.found import find
from snippets.validation.assistant.subject import Subject
from snippets.validation.assistant.trace import traced
from tests.snippets.validation.planted.seen import recorded

pytestmark = pytest.mark.usefixtures("one_core")
SEEN: list[Tensor] = []


@dataclass
class Record:
    result: Tensor


class Tap:
    """Keeps what modules give."""

    def __init__(self, *modules):
        self.results = []
        for one in modules:
            one.register_forward_hook(self.keep)

    def keep(self, module, given, result):
        self.results.append(result)


class EmptiedTap(Tap):
    def take(self):
        taken = list(self.results)
        self.results.clear()
        return taken


class Net(nn.Module):
    """Two layers, and a way to remember what they give."""

    def __init__(self, remember=lambda m, x: None):
        super().__init__()
        self.remember = remember
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)
        self.kept, self.by_name, self.last = [], {}, collections.deque(maxlen=100)
        self.queue, self.seen = collections.deque(), None

    def forward(self, x):
        h = torch.relu(self.up(x))
        self.remember(self, h)
        return self.down(h)


def append(m, h):
    m.kept.append(h)


def append_detached(m, h):
    m.kept.append(h.detach())


def nest(m, h):
    m.by_name.setdefault("h", []).append(h)


def add_rows(m, h):
    m.kept += [h, h.mean()]


def queue(m, h):
    m.queue.append((h, 1))


def records(m, h):
    m.kept.append(Record(h))


def into_global(m, h):
    SEEN.append(h)


def by_tap():
    net = Net()
    net.tap = Tap(net.up, net.down)
    return net


def by_closure():
    net, found = Net(), []
    net.up.register_forward_hook(lambda module, given, result: found.append(result.mean()))
    return net


def by_class():
    class Counting(Net):
        results: ClassVar[list] = []

        def forward(self, x):
            self.results.append(x @ x.T)
            return super().forward(x)

    return Counting()


LEAKS = {
    "append": (lambda: Net(append), 1, 8 * 32 * 4, True),
    "detached": (lambda: Net(append_detached), 1, 8 * 32 * 4, False),
    "nested": (lambda: Net(nest), 1, 8 * 32 * 4, True),
    "+=": (lambda: Net(add_rows), 2, 8 * 32 * 4 + 4, True),
    "deque": (lambda: Net(queue), 1, 8 * 32 * 4, True),
    "dataclass": (lambda: Net(records), 1, 8 * 32 * 4, True),
    "global": (lambda: Net(into_global), 1, 8 * 32 * 4, True),
    "bound hook": (by_tap, 2, 8 * (32 + 16) * 4, True),
    "closure": (by_closure, 1, 4, True),
    "class": (by_class, 1, 8 * 8 * 4, False),
}


def found_in(made):
    SEEN.clear()
    try:
        return find(*recorded(lambda: (made(), torch.randn(8, 16))))
    finally:
        SEEN.clear()


@pytest.mark.parametrize(("made", "count", "size", "graph"), LEAKS.values(), ids=LEAKS)
def test_what_grows_with_each_call_is_found(made, count, size, graph):
    found = found_in(made)
    (one,) = [each for each in found if each.title == LEAK]
    more = f"{count} more tensor{'s' * (count > 1)} after each call: "
    assert one.weight == "finding" and more in one.evidence and ("graph" in one.evidence) is graph
    assert f": {size} bytes" in one.evidence or f": {size / 1000:.1f} KB" in one.evidence
    assert any(word in one.line.text for word in ("append", "+="))
    assert not [each for each in found if each.kind in ("recompilation", "kept-graph") and each is not one]


def overwrite(m, h):
    m.by_name["h"] = h.detach()


def fill_once(m, h):
    if h.shape not in m.by_name:
        m.by_name[h.shape] = torch.ones(h.shape)


def bounded(m, h):
    m.last.append(h.detach())


def anew(m, h):
    m.kept = [h.detach()]


def empty_first(m, h):
    m.kept.clear()
    m.kept.append(h.detach())


def numbers(m, h):
    m.kept.append(h.shape[0])


def rest_of_time(m, h):
    if m.seen is None:
        m.seen = h.detach()
    m.kept[:] = [m.seen, h.detach()]


@pytest.mark.parametrize(
    "remember", [overwrite, fill_once, bounded, anew, empty_first, numbers, rest_of_time], ids=lambda one: one.__name__
)
def test_what_stops_growing_is_left_alone(remember):
    assert not [one for one in found_in(lambda: Net(remember)) if one.title == LEAK]


def test_a_list_that_its_class_can_empty_is_a_remark():
    def made():
        net = Net()
        net.tap = EmptiedTap(net.up)
        return net

    (one,) = [each for each in found_in(made) if each.title == LEAK]
    assert one.weight == "note" and "empties it" in one.change


@pytest.mark.parametrize(("remember", "runs"), [(lambda m, h: None, 1), (fill_once, 2), (append, 3)])
def test_only_a_module_that_remembers_runs_more_often(remember, runs):
    subject = Subject(Net(remember), (torch.randn(8, 16),), {})
    traced(subject)
    assert (subject.runs.count, subject.runs.more) == (runs, runs - 1)
