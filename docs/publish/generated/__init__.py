"""The pages and files under results/: what all records say, for readers and for other programs."""

from collections.abc import Callable, Iterator, Mapping

from docs.publish.generated import exports, history, machines, reproduced, verification
from docs.publish.place import Place, rows_file
from docs.publish.records.schema import TestReport
from docs.publish.records.store import Store
from tests.benchmarks import source


def navigation(store: Store) -> list[dict[str, str]]:
    """The machines' entries in the navigation."""
    return [{name: f"results/machines/{slug}.md"} for slug, name in store.machines.items()]


def files(
    store: Store, reports: list[TestReport], blocks: Mapping[str, int], place: Callable[[str, str], Place]
) -> Iterator[tuple[str, str]]:
    """Paths below the site's pages, with their content: a page and two exports a machine, the
    rows of each of its cases, and what all share.

    Args:
        blocks: how many fenced blocks there are of each kind (docs/publish/generated/census.py).
        place: makes a page's place from its path and its address.
    """

    def page(name: str, text: Callable[..., str], *known: object) -> tuple[str, str]:
        path = f"results/{name}"
        return f"{path}.md", text(*known, place(f"{path}.md", f"{path}/"))

    for slug in store.machines:
        yield page(f"machines/{slug}", machines.page, store, slug)
        for case in machines.cases(store, slug):
            file = rows_file(slug, case)
            yield file, machines.case_rows(store, slug, case, place(file, f"results/rows/{slug}/"))
        yield f"results/{slug}.json", exports.as_json(store, slug)
        yield f"results/{slug}.csv", exports.as_csv(store, slug)
    yield page("history", history.page, store)
    yield page("reproduced", reproduced.page, store)
    yield page("verification", verification.page, reports, source.kernels(), blocks)
