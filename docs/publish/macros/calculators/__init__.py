"""The calculators: a page asks for its own. Each has a script of its name in docs/theme/scripts/calculators."""

from docs.publish.errors import unknown
from docs.publish.macros.calculators import generation, multi_gpu
from docs.publish.macros.page import Page
from docs.publish.records.asked import script_of
from docs.publish.records.captures import Captures
from docs.publish.records.store import Store


def panel(store: Store, captures: Captures, page: Page) -> str:
    """A page's calculator as HTML.

    Raises:
        PublishError: the page has none.
    """
    drawn = {
        "examples/generation": lambda: generation.panel(store, page.evidence, page.case),
        "examples/multi_gpu": lambda: multi_gpu.panel(captures, page.evidence),
    }
    name = script_of(page.place.path)
    if name not in drawn:
        raise unknown("calculator of", name, drawn)
    return drawn[name]()
