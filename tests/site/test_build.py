"""The build that is kept for these tests: whatever it reads decides whether it is made again."""

import importlib.util
import os
import sys
from pathlib import Path

import pytest

from docs.publish.site import inputs
from tests.site.conftest import KEPT, ROOT, Site


def test_a_build_opens_nothing_of_the_repository_beside_its_inputs(site: Site) -> None:
    if "SITE_DIR" in os.environ:
        pytest.skip("somebody else built this site")
    opened = {ROOT / line for line in (KEPT / "opened").read_text(encoding="utf-8").splitlines()}
    opened = {Path(importlib.util.source_from_cache(file)) if file.suffix == ".pyc" else file for file in opened}
    ours = {file for file in opened if file.is_relative_to(ROOT) and file.is_file()}
    assert len(ours) > 500, "the build was not watched"
    elsewhere = Path(sys.prefix), ROOT / ".cache"
    known = set(inputs.files(ROOT, local=False))
    missing = [file for file in ours - known if not any(map(file.is_relative_to, elsewhere))]
    assert not missing, "add to docs/publish/site/inputs.py:\n" + "\n".join(map(str, sorted(missing)))


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in ("mkdocs.yml", "docs/pages/index.md", "kernels/softmax.py", "docs/measurements/local/a.json"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    return tmp_path


PUBLISHED = {"SOURCE_COMMIT": "main", "RIDGEPOINT_LOCAL": "0"}


@pytest.mark.parametrize(
    ("name", "decides"),
    [
        ("mkdocs.yml", True),
        ("docs/pages/index.md", True),
        ("docs/pages/new.md", True),
        ("docs/measurements/runs/new.json", True),
        ("docs/measurements/local/experiments/new/trace.json", True),  # a notebook's page links to it
        (".cache/notebooks/notebooks/new.ipynb", True),
        ("tests/kernels/test_new.py", True),  # a page may link to it
        ("docs/measurements/local/a.json", False),
        ("docs/pages/__pycache__/new.pyc", False),
        ("README.md", False),
    ],
)
def test_a_change_to_what_is_read_changes_the_digest(tree: Path, name: str, decides: bool) -> None:
    before = inputs.digest(tree, PUBLISHED)
    assert inputs.digest(tree, PUBLISHED) == before
    (tree / name).parent.mkdir(parents=True, exist_ok=True)
    (tree / name).write_text("changed")
    assert (inputs.digest(tree, PUBLISHED) != before) == decides


def test_settings_and_local_measurements_change_the_digest(tree: Path) -> None:
    here = {"SOURCE_COMMIT": "main"}
    settings = [PUBLISHED, here, here | {"SITE_URL": "http://localhost/"}, PUBLISHED | {"SOURCE_COMMIT": "v1"}]
    assert len({inputs.digest(tree, each) for each in settings}) == len(settings)
    before = inputs.digest(tree, here)
    (tree / "docs/measurements/local/a.json").write_text("changed")
    assert inputs.digest(tree, here) != before
