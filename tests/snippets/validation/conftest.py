"""A clock that no other process moves, one core for tiny modules, and a small language model."""

import pytest
import torch

from snippets.validation import timing, timing_mistakes
from snippets.validation.memory_remedies import Model


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


@pytest.fixture(scope="module")
def small_model() -> tuple[Model, tuple[torch.Tensor, torch.Tensor]]:
    """With the tokens and the targets of two rows."""
    torch.manual_seed(0)
    tokens = torch.randint(64, (2, 17))
    return Model(layers=2, width=32, heads=2, vocabulary=64), (tokens[:, :-1], tokens[:, 1:])
