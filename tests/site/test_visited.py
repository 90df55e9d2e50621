"""Which pages are visited again: those that are served otherwise than when they passed, and a few of the others."""

from pathlib import Path

import pytest

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
