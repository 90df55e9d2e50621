"""A factory by its name or its file, with inputs in any of their forms; where it is none, one line says why."""

import collections
import inspect
import sys

import pytest
import torch
from torch import nn

from snippets.validation.assistant.__main__ import main
from snippets.validation.assistant.factories import load, subject_of
from snippets.validation.assistant.subject import Refused
from tests.snippets.validation.assistant import hostile

pytestmark = pytest.mark.usefixtures("one_core")

FILE = hostile.__file__
HOSTILE = [
    name for name, made in vars(hostile).items() if inspect.isfunction(made) and made.__module__ == hostile.__name__
]


def one_line(capsys) -> str:
    """The error of a refused command."""
    lines = [line for line in capsys.readouterr().err.splitlines() if not line.startswith("…")]
    assert len(lines) == 1 and lines[0].startswith("assistant: "), lines
    return lines[0]


@pytest.mark.parametrize("name", [*HOSTILE, "NO_FACTORY", "missing"])
def test_a_hostile_factory_gets_one_line(name, capsys, recwarn):
    assert main([f"{FILE}:{name}"]) == 2
    assert len(one_line(capsys)) < 500
    assert not [one for one in recwarn if "never awaited" in str(one.message)]


def test_there_are_enough_hostile_factories():
    assert len(HOSTILE) >= 29


BAD_FILES = {
    "raises": "raise ValueError('first\\nsecond')",
    "exits": "import sys; sys.exit(0)",
    "syntax": "def make(:",
    "imports": "import nothing_of_this_name",
    "bytes": "\0",
    "gone": None,
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_a_file_that_cannot_be_imported_gets_one_line(name, tmp_path, capsys):
    if BAD_FILES[name] is not None:
        (tmp_path / f"{name}.py").write_text(BAD_FILES[name])
    assert main([f"{tmp_path / name}.py:make"]) == 2
    assert name in one_line(capsys) and name not in sys.modules


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("no.such.module:make", "no.such.module cannot be imported: ModuleNotFoundError"),
        ("missing.py:make", "there is no file missing.py"),
        (f"{__name__}:no_such_factory", "has no factory 'no_such_factory'; it has"),
        (f"{__name__}:one", "expected a module and its inputs, as in `return model, x`, got int"),
        ("snippets.validation.assistant", "expected package.module:factory"),
        (":make", "expected package.module:factory"),
    ],
)
def test_a_bad_factory_gets_one_clear_message(spec, message):
    with pytest.raises(Refused, match=message):
        load(spec)


def one():
    return 1


# ---- inputs ---------------------------------------------------------------------------------------------------------

MODEL, X, Y = nn.Identity(), torch.ones(1), torch.ones(2)
BATCH = {"x": X}
PAIR = collections.namedtuple("Pair", "x y")(X, Y)


@pytest.mark.parametrize(
    ("made", "inputs", "named"),
    [
        (MODEL, (), {}),
        ((MODEL, X), (X,), {}),
        ((MODEL, X, Y), (X, Y), {}),
        ((MODEL, (X, Y)), (X, Y), {}),
        ((MODEL, [X, Y]), (X, Y), {}),
        ((MODEL, ([X, Y],)), ([X, Y],), {}),
        ((MODEL, BATCH), (), BATCH),
        ((MODEL, (BATCH,)), (BATCH,), {}),
        ((MODEL, (X, BATCH)), (X, BATCH), {}),
        ((MODEL, X, BATCH), (X,), BATCH),
        ((MODEL, (X, Y), BATCH), (X, Y), BATCH),
        ((MODEL, (BATCH,), {"y": Y}), (BATCH,), {"y": Y}),
        ((MODEL, {0: X}), ({0: X},), {}),
        ((MODEL, PAIR), (PAIR,), {}),
        ((MODEL, lambda: X), (X,), {}),
        ((MODEL, lambda: (X, Y)), (X, Y), {}),
        ((MODEL, lambda: BATCH), (), BATCH),
        ((MODEL, lambda: (BATCH,)), (BATCH,), {}),
    ],
)
def test_inputs_are_what_the_call_takes(made, inputs, named):
    subject = subject_of(made, "a case")
    assert subject.inputs == inputs and subject.named == named


# ---- files ----------------------------------------------------------------------------------------------------------


def project(folder, name):
    folder.mkdir(parents=True)
    (folder / "layers.py").write_text(f"from torch import nn\n\nclass {name}(nn.Linear):\n    pass\n")
    (folder / "model.py").write_text(
        f"import torch\nfrom layers import {name} as Layer\n\ndef make():\n    return Layer(8, 8), torch.ones(2, 8)\n"
    )
    return f"{folder / 'model.py'}:make"


@pytest.fixture
def imports(monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = dict(sys.modules)
    yield
    for name in sys.modules.keys() - before.keys():
        del sys.modules[name]


def test_a_file_imports_what_lies_beside_it(tmp_path, imports):
    assert load(project(tmp_path / "project", "Mine")).name == "Mine"


def test_two_folders_have_each_their_own_modules(tmp_path, imports):
    specs = [project(tmp_path / folder, name) for folder, name in (("before", "Old"), ("after", "New"))]
    assert [load(spec).name for spec in (*specs, specs[0])] == ["Old", "New", "Old"]


def test_a_file_runs_once_for_two_factories(tmp_path, imports):
    file = tmp_path / "own.py"
    file.write_text("from torch import nn\n\nclass Own(nn.Linear):\n    pass\n\ndef make():\n    return Own(8, 8)\n")
    assert type(load(f"{file}:make").module) is type(load(f"{file}:make").module)


def test_a_file_in_a_package_imports_by_its_place(tmp_path, imports):
    spec = project(tmp_path / "outer" / "inner", "Mine")
    for folder in (tmp_path / "outer", tmp_path / "outer" / "inner"):
        (folder / "__init__.py").touch()
    model = tmp_path / "outer" / "inner" / "model.py"
    model.write_text(model.read_text().replace("from layers", "from .layers"))
    assert type(load(spec).module).__module__ == "outer.inner.layers"


def test_a_file_may_have_the_name_of_a_library(tmp_path, imports):
    project(tmp_path / "project", "Mine")
    (tmp_path / "project" / "model.py").rename(tmp_path / "project" / "calendar.py")
    import calendar

    assert load(f"{tmp_path / 'project' / 'calendar.py'}:make").name == "Mine" and sys.modules["calendar"] is calendar
