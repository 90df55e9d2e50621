"""The start page's doors: only jobs whose page stands, lines that fetch the code, and one name for one thing."""

import re
import subprocess
import sys
from pathlib import Path

import torch
from packaging.requirements import Requirement

from docs.publish import palette
from docs.publish.macros import doors
from docs.publish.markdown import pages, scripts
from docs.publish.place import Place
from tests.benchmarks.source import ROOT
from tests.pages import style
from tests.pages.test_charts import BARS, drawn, scaling, spec_of

START = (ROOT / "docs/pages/index.md").read_text(encoding="utf-8")
PLACE = Place("index.md", "")
JOBS = [["Time an op", "timing.md", "how"], ["Ship it", "ship.md#warm", "a container"]]


def test_a_job_is_a_line_that_leads_to_its_page() -> None:
    assert re.findall(r"\*\*(.*?)\*\*.*\]\((.*?)\)", doors.jobs(JOBS)) == [
        ("Time an op", "timing.md"),
        ("Ship it", "ship.md#warm"),
    ]


def test_a_route_counts_the_minutes_of_its_pages(tmp_path: Path) -> None:
    (tmp_path / "docs/pages/notebooks").mkdir(parents=True)
    (tmp_path / "docs/pages/timing.md").write_text("word " * 12000)
    (tmp_path / "docs/pages/notebooks/basics.py").write_text(
        f"# ---\n# title: T\n# ---\n\n# %% [markdown]\n# {'word ' * 1000}\n\n# %%\nprint({'word, ' * 1000})\n"
    )
    legs = [["Time", "timing.md#own", "time an op"], ["Basics", "notebooks/basics.ipynb", "run it"]]
    shown = doors.route(tmp_path, Place("learning/beginner.md", "learning/beginner/"), legs)
    assert shown.splitlines()[:2] == [
        "1. [**Time**](../timing.md#own), 60 minutes: time an op",
        "1. [**Basics**](../notebooks/basics.ipynb), 6 minutes: run it",  # the word "markdown" is one, too
    ]
    assert "To read all takes 1 hour and 6 minutes." in shown


def test_the_second_door_is_that_of_the_questions() -> None:
    wanted = pages.front_matter(START)["jobs"]["doors"]["wanted"]
    assert wanted[1][1] == "reference/questions.md"


def test_the_result_and_its_line_come_first_and_the_ways_through_after_the_doors() -> None:
    parts = "{{ wall(", "{{ fetch(", "{{ jobs(", "{{ chart(", "## Start here", "{{ clone("
    order = [START.index(part) for part in parts]
    assert order == sorted(order)


def test_the_start_page_is_short() -> None:
    said = pages.front_matter(START)
    shown = [said["title"], said["description"], *(part.text for part in style.parts(START))]
    shown += [word for words, _, what in said["jobs"]["doors"]["wanted"] for word in (words, what)]
    shown += [said["chart"]["small"][name] for name in ("title", "note")]
    assert sum(map(style.words, shown)) <= 450, "with tabs, labels and what a chart says of itself, 550 at most"


def test_a_script_is_fetched_from_the_site_and_run() -> None:
    assert doors.fetch(PLACE, "snippets/a/b.py") == f"```sh\ncurl -O {PLACE.site_url}a/b.py && python b.py\n```\n"
    fetched = re.findall(r'\{\{ fetch\("(.+?)"\) \}\}', START)
    every = {path for page, text in pages.texts().items() for path in scripts.embedded(text, page)}
    assert fetched and set(fetched) <= every, "the site serves only what a page embeds"


def test_there_are_seven_tabs_at_most() -> None:
    nav = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2].partition("\n\n")[0]
    assert 1 < len(re.findall(r"^  - ", nav, flags=re.MULTILINE)) <= 7


def test_the_lines_that_fetch_the_code_work(tmp_path: Path) -> None:
    """In a clone of this very repository; pip is only asked whether what is installed here would do."""
    here = Place("index.md", "", repository=str(ROOT))
    block = doors.clone(here, "python -m snippets.environment")
    install, *lines = block.removeprefix("```sh\n").removesuffix("```\n").splitlines()
    requirement = re.search(r'pip install "(.+?)"', install)
    assert requirement and torch.__version__.partition("+")[0] in Requirement(requirement[1]).specifier
    script = "\n".join(lines).replace("python ", f"{sys.executable} ")
    done = subprocess.run(["sh", "-ec", script], cwd=tmp_path, capture_output=True, text=True)
    assert not done.returncode, done.stderr
    command = re.search(r'\{\{ clone\("python -m ([\w.]+)"\) \}\}', START)
    assert command and (tmp_path / ROOT.name / f"{command[1].replace('.', '/')}.py").is_file()


def test_the_lines_name_the_repository() -> None:
    assert f"git clone {PLACE.repository}\ncd ridgepoint\npython -m x\n" in doors.clone(PLACE, "python -m x")


def test_bars_stand_best_first_or_in_the_order_of_the_story(root: Path) -> None:
    story = ["compile", "ours", "eager"]
    values = scaling(root, "ours", "eager", "compile")
    given = {**BARS, "metric": "time", "shape": "8x16", "variants": story}
    for ranked, expected in ((True, ["ours", "eager", "compile"]), (False, story)):
        shown = spec_of(drawn(root, given | {"ranked": ranked}, values), "wide")["data"]["values"]
        assert [mark["variant"] for mark in shown] == expected


def test_a_case_may_say_what_was_compiled_and_others_keep_the_shared_name(monkeypatch) -> None:
    assert palette.label("compile", case="first-speedup") == "better design, compiled"
    assert palette.label("compile") == palette.label("compile", case="kernels/softmax") == "torch.compile"
    one = {"first-speedup": palette.declared()["first-speedup"]}
    monkeypatch.setattr(palette, "declared", lambda: one)
    assert palette.variants.__wrapped__()["compile"] == palette.load()["variants"]["compile"]
