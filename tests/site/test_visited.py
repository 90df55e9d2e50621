"""Which pages are visited again: those that are served otherwise than when they passed, and a few of the others."""

import contextlib
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import remembered
from tests.site.conftest import Site, leave_out_as_served
from tests.site.visited import Visited

PAGES = ("", "kernels/softmax/", "404.html")


@pytest.fixture
def served() -> dict[str, bytes]:
    return {f"/{url}": url.encode() for url in PAGES} | {"/fonts/serif.woff2": b"serif", "/shared.css": b"p {}"}


def visited(folder: Path, served: dict[str, bytes], method: str = "one", again: float = 0) -> Visited:
    return Visited(folder / "kept", served.get, method, again)


@pytest.fixture
def all_passed(tmp_path: Path, served: dict[str, bytes]) -> Path:
    """A folder where every page is remembered; the start page alone uses a font."""
    for url in PAGES:
        font = [] if url else ["/fonts/serif.woff2"]
        visited(tmp_path, served).keep(url, [f"/{url}", "/shared.css", *font], faultless=True)
    return tmp_path


def to_visit(known: Visited) -> list[str]:
    return [url for url in PAGES if not known.faultless(url)]


def test_nothing_is_visited_before_it_passed_and_nothing_after(tmp_path: Path, served: dict, all_passed: Path) -> None:
    assert to_visit(visited(tmp_path / "empty", served)) == list(PAGES)
    assert to_visit(visited(all_passed, served)) == []


@pytest.mark.parametrize(
    ("path", "expected"),
    [("/kernels/softmax/", ["kernels/softmax/"]), ("/fonts/serif.woff2", [""]), ("/shared.css", list(PAGES))],
)
def test_a_change_brings_back_the_pages_that_asked_for_it(
    all_passed: Path, served: dict, path: str, expected: list[str]
) -> None:
    assert to_visit(visited(all_passed, served | {path: b"changed"})) == expected
    assert to_visit(visited(all_passed, {key: value for key, value in served.items() if key != path})) == expected


def test_other_code_and_another_browser_visit_all(all_passed: Path, served: dict) -> None:
    assert to_visit(visited(all_passed, served, method="two")) == list(PAGES)


def test_a_page_that_fails_is_forgotten(all_passed: Path, served: dict) -> None:
    visited(all_passed, served).keep("404.html", ["/404.html"], faultless=False)
    assert to_visit(visited(all_passed, served)) == ["404.html"]


def test_a_share_is_visited_anyway(all_passed: Path, served: dict) -> None:
    assert to_visit(visited(all_passed, served, again=1)) == list(PAGES)
    drawn = [visited(all_passed, served, again=0.5).faultless("") for _ in range(100)]
    assert len(set(drawn)) == 2


# ---- a test of the site is remembered by what it was served ---------------------------------------------------------


@pytest.fixture
def built(tmp_path: Path) -> Path:
    files = {"index.html": '<link rel="canonical" href="https://host/rp/">', "a/index.html": "a", "b/index.html": "b"}
    for name, text in (files | {"a.css": "p {}"}).items():
        (tmp_path / "site" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "site" / name).write_text(text)
    return tmp_path / "site"


ASKS: dict[str, Callable[[Site], object]] = {
    "/rp/a/": lambda site: site.content("/rp/a/"),
    "/rp/b/": lambda site: site.has("/rp/b/") and site.has("/rp/b/"),
    "every page": lambda site: site.pages,
    "pages with an a": lambda site: site.having("a"),
    "the folder": lambda site: site.folder,
    "nothing": lambda site: site.unasked("/rp/a/"),
    "a fixture before": lambda site: None,
}


@pytest.mark.parametrize(
    ("asks", "changed", "runs"),
    [
        ("/rp/a/", "a/index.html", True), ("/rp/a/", "b/index.html", False), ("/rp/a/", "a.css", True),
        ("/rp/b/", "b/index.html", True), ("every page", "b/index.html", True), ("the folder", "new.json", True),
        ("pages with an a", "b/index.html", True), ("pages with an a", "a/index.html", False),
        ("nothing", "a/index.html", False), ("nothing", "tests/test_it.py", True),
        ("a fixture before", "b/index.html", True), ("a fixture before", "a/index.html", False),
    ],
)  # fmt: skip
def test_a_test_runs_again_where_it_would_be_served_otherwise(
    built: Path, asks: str, changed: str, runs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remembered, "AGAIN", 0.0)
    root = built.parent
    (root / "tests").mkdir()
    (root / "tests/test_it.py").write_text("")

    def ran(passes: bool = True) -> bool:
        """Whether the test runs, in a run of its own, which it ends so."""
        remembered.content.cache_clear()
        plugin, site = remembered.Remembered(root, fresh=False), Site(built, asked=set(), shared=set())
        if asks == "a fixture before":
            site.content("/rp/b/")
        with contextlib.suppress(pytest.skip.Exception):
            leave_out_as_served(plugin, site, "test_it", root / "tests/test_it.py", [])
            ASKS[asks](site)
            plugin.served["test_it"](faultless=passes)
            return True
        return False

    assert ran(passes=False) and ran() and not ran()
    (root / changed if changed.startswith("tests/") else built / changed).write_text("changed")
    assert ran() == runs


def test_looks_are_shared_by_processes_and_not_with_other_code_or_a_fresh_run(tmp_path: Path, served: dict) -> None:
    visited(tmp_path, served).keep_looks(["grey", "blue"])
    visited(tmp_path, served).keep_looks(["red"])
    assert visited(tmp_path, served).looks() == {"grey", "blue", "red"}
    assert visited(tmp_path, served, method="two").looks() == set()
    fresh = Visited(tmp_path / "kept", served.get, "one", 1, run="7")
    assert fresh.looks() == set()
