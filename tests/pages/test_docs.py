"""`nox -s docs`: which steps run, and that a build is left out only where it would write the same."""

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from docs.publish.site import __main__ as command_line
from docs.publish.site.__main__ import Failed, docs

BUILT = ["docs.publish.compiled", "docs.publish.site.notebooks", "mkdocs"]
RECORD = "docs/measurements/local/one.json"
PAGE = "docs/pages/index.md"


class House:
    """A tiny checkout, and programs that only write what theirs would."""

    def __init__(self, root: Path):
        self.root, self.settings = root, {"SOURCE_COMMIT": "c0ffee"}
        self.started: list[str] = []
        self.does: dict[str, Callable[[], None]] = {"tests.benchmarks": lambda: self.write(RECORD, "{}")}
        self.write(PAGE, "# One\n")

    def write(self, name: str, text: str) -> None:
        (self.root / name).parent.mkdir(parents=True, exist_ok=True)
        (self.root / name).write_text(text)

    def start(self, *modules: Sequence[str], settings: object) -> None:
        for module, *_ in modules:
            self.started.append(module)
            if module == "mkdocs":
                self.write("site/index.html", "half of it")
            self.does.get(module, lambda: None)()
            if module == "mkdocs":
                self.write("site/index.html", (self.root / PAGE).read_text())

    def docs(self, *cases: str, release: bool = False) -> list[str]:
        """What was started."""
        self.started.clear()
        settings = self.settings | ({"RIDGEPOINT_RELEASE": "1"} if release else {})
        docs(self.root, cases, release, settings, self.start)
        return list(self.started)


@pytest.fixture
def house(tmp_path: Path) -> House:
    return House(tmp_path)


def raises(error: BaseException) -> Callable[[], None]:
    def step() -> None:
        raise error

    return step


def test_the_site_stands_before_it_measures_and_is_built_again_with_the_numbers(house: House):
    assert house.docs() == [*BUILT, "tests.benchmarks", "mkdocs"]


def test_nothing_changed_nothing_is_done(house: House, capsys: pytest.CaptureFixture[str]):
    house.docs()
    capsys.readouterr()
    assert house.docs() == []
    out, _ = capsys.readouterr()
    assert out.startswith("nothing changed: the site is as it was; `nox -s bench") and out.count("\n") == 1


CHANGES: dict[str, Callable[[House], object]] = {
    "a page": lambda house: house.write(PAGE, "# Two\n"),
    "a record": lambda house: house.write(RECORD, "[]"),
    "a module": lambda house: house.write("snippets/one.py", ""),
    "a setting": lambda house: house.settings.update(SITE_URL="http://localhost/"),
    "the commit": lambda house: house.settings.update(SOURCE_COMMIT="decade"),
    "the site, edited": lambda house: house.write("site/index.html", "edited"),
    "the site, more in it": lambda house: house.write("site/more.html", ""),
    "the site, deleted": lambda house: shutil.rmtree(house.root / "site"),
    "the stamp, deleted": lambda house: (house.root / command_line.STAMP).unlink(),
    "the stamp, broken": lambda house: (house.root / command_line.STAMP).write_text("{"),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_what_changed_is_built_again(house: House, change: Callable[[House], object]):
    house.docs()
    house.does.clear()
    change(house)
    assert house.docs() == [*BUILT, "tests.benchmarks"]
    assert house.docs() == []


@pytest.mark.parametrize("error", [Failed(1), KeyboardInterrupt()], ids=("failed", "interrupted"))
@pytest.mark.parametrize("step", BUILT)
def test_after_a_step_that_did_not_end_well_the_site_is_built_again(house: House, step: str, error: BaseException):
    house.docs()
    house.write(PAGE, "# Two\n")
    house.does[step] = raises(error)
    with pytest.raises(type(error)):
        house.docs()
    house.write(PAGE, "# One\n")  # as it was when the site was built last
    del house.does[step]
    assert "mkdocs" in house.docs() or step != "mkdocs"
    assert (house.root / "site/index.html").read_text() == "# One\n"


def test_an_interrupted_measurement_goes_on(house: House):
    house.does["tests.benchmarks"] = raises(KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        house.docs()
    del house.does["tests.benchmarks"]
    assert house.docs()[-1] == "tests.benchmarks"


def test_an_edit_while_it_is_built_is_not_lost(house: House):
    house.does = {"mkdocs": lambda: house.write("snippets/late.py", "")}
    assert house.docs(release=True) == BUILT
    house.does.clear()
    assert house.docs(release=True) == BUILT
    assert house.docs(release=True) == []


def test_a_release_measures_nothing_and_is_no_usual_site(house: House):
    house.docs()
    assert house.docs(release=True) == BUILT
    assert house.docs(release=True) == []
    assert "mkdocs" in house.docs()


def test_cases_that_are_asked_for_are_measured_first(house: House):
    house.docs()
    house.does["tests.benchmarks"] = lambda: house.write(RECORD, "[1]")
    assert house.docs("kernels/rope") == ["tests.benchmarks", *BUILT]


def test_ctrl_c_ends_with_a_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setattr(command_line, "docs", lambda *_: raises(KeyboardInterrupt())())
    assert command_line.main([]) == 130
    assert capsys.readouterr().err == "interrupted: what was done is kept; `nox -s docs` goes on\n"


def test_a_program_that_fails_gives_its_exit_status(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(command_line, "docs", lambda *_: raises(Failed(3))())
    assert command_line.main([]) == 3
