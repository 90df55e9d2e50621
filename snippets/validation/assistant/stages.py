"""The steps of an analysis: none begins when the budget is spent, Ctrl-C ends them, and what is left out is said."""

import time
from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")


class Stages:
    """Steps in their order.

    Attributes:
        skipped: what is not known, and why, a line each.
    """

    def __init__(self, budget: float, progress: Callable[[str], None]):
        self.budget, self.progress = budget, progress
        self.began, self.interrupted = time.perf_counter(), False
        self.skipped: list[str] = []

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self.began

    @property
    def why_not(self) -> str:
        """Why nothing more begins; empty if something may."""
        if self.interrupted:
            return "interrupted"
        return f"{self.budget:.0f} s were spent before" if self.seconds >= self.budget else ""

    def run(self, what: str, doing: str, step: Callable[[], Result], otherwise: Result, first: bool = False) -> Result:
        """What a step gives. The first begins whatever the budget is, since nothing is known without it."""
        if (why := self.why_not) and not first:
            self.skipped.append(f"no {what}: {why}")
            return otherwise
        self.progress(doing)
        try:
            return step()
        except KeyboardInterrupt:
            self.interrupted = True
            self.skipped.append(f"no {what}: interrupted")
            return otherwise
