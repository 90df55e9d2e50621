"""A clock that no other process moves, and one core for tiny modules."""

import pytest
import torch

from snippets.validation import timing, timing_mistakes


class Clock:
    """Stands in for the module `time`: only sleeping and looking at the clock take time.

    Attributes:
        now: seconds.
        look: seconds that it takes to look.
    """

    def __init__(self) -> None:
        self.now = self.look = 0.0

    def perf_counter(self) -> float:
        self.now += self.look
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of the timers; what a test expects of it holds on a busy machine."""
    stand_in = Clock()
    for module in (timing, timing_mistakes):
        monkeypatch.setattr(module, "time", stand_in)
    return stand_in


@pytest.fixture
def untimed(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests of what `validate` says of results, whatever the time."""
    equal = timing.Timing.of([1e-3] * 5), timing.Timing.of([1e-3] * 5)
    for name in ("timed", "timed_backward"):
        monkeypatch.setattr(f"snippets.validation.assistant.verdict.{name}", lambda *_: equal)


@pytest.fixture(scope="module")
def one_core():
    """Tiny modules are not worth a second thread, and on a busy machine threads wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
