"""A number that a page prints, or hands to another macro: {{ gpu("ours", "typical") }}, {{ bound(..., gpu(...)) }}."""

from dataclasses import dataclass
from typing import Any

from docs.publish.evidence import Evidence, Quantity


@dataclass(frozen=True)
class Shown:
    """A quantity of a page. Its evidence goes to the page's end when it is printed."""

    quantity: Quantity
    evidence: Evidence

    def __str__(self) -> str:
        return self.evidence.show(self.quantity)


def plain(given: Any) -> Any:
    """What another macro computes with: a quantity where one is shown, anything else as it is."""
    return given.quantity if isinstance(given, Shown) else given
