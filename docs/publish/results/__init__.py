"""The pages and files under results/: what all records say."""

from collections.abc import Callable, Iterator

from docs.publish.records import Store
from docs.publish.site import Place


def navigation(store: Store) -> list[dict[str, str]]:
    """The machines' entries in the navigation."""
    return [{name: f"results/machines/{slug}.md"} for slug, name in store.machines.items()]


def files(store: Store, place: Callable[[str, str], Place]) -> Iterator[tuple[str, str]]:
    """Paths below the site's pages, with their content: a page and two exports for each machine, history, verification."""
    for slug, name in store.machines.items():
        yield f"results/machines/{slug}.md", f"---\nsearch:\n  exclude: true\n---\n# {name}\n"
    yield "results/history.md", "# History\n"
    yield "results/verification.md", "# Verification\n"
