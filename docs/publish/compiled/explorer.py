"""The files of the viewer, which is docs/theme/scripts/explorer.js: index.json, listings, and a page of facts.

The listings are plain text, and the page of facts links them for readers without scripts.
"""

import json
from collections.abc import Callable, Iterator

from docs.publish.compiled import build
from docs.publish.compiled.index import index
from docs.publish.compiled.page import page
from docs.publish.compiled.subjects import names
from docs.publish.place import Place, kernel_files
from docs.publish.records.captures import Captures
from docs.publish.records.store import Store


def files(store: Store, captures: Captures, place: Callable[[str, str], Place]) -> Iterator[tuple[str, str]]:
    """Paths below the site's pages, with their content.

    Raises:
        PublishError: a kernel does not compile; a capture does not fit.
    """
    build.ensure([*kernel_files(), build.INDUCTOR])
    for name in names():
        path = f"compiled/{name}"
        content, listings = index(store, captures, name)
        yield f"{path}/index.json", json.dumps(content, separators=(",", ":"), ensure_ascii=False)
        yield from ((f"{path}/{listing}", text) for listing, text in listings.items())
        yield f"{path}.md", page(store, name, content, place(f"{path}.md", f"{path}/"))
