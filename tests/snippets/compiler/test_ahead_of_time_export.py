"""What export refuses, that what is written instead computes the same, and what it makes constant without a word."""

import random
import re

import pytest
import torch
from torch.export import Dim, export

from snippets.compiler import ahead_of_time_export as page
from snippets.compiler.ahead_of_time_export import (
    ASKED,
    CHANGES,
    REFUSED,
    AnyHeads,
    Asked,
    Branch,
    Buffer,
    Calls,
    Cond,
    Counter,
    Heads,
    MeanOfAll,
    MeanOfSome,
    NumPy,
    Pairs,
    Torch,
    Where,
    X,
    became,
    doctored,
    first,
    load,
    loaded_elsewhere,
    sizes,
    three_calls,
    twice,
    words,
)

WORDS = {
    "branch": "GuardOnDataDependentSymNode: Could not guard on data-dependent expression Eq(u0, 1)",
    "count": "GuardOnDataDependentSymNode: Could not guard on data-dependent expression u0 > 0",
    "fixed": "UserError: You marked batch as dynamic but your code specialized it to be a constant (4)",
    "one": "ValueError: Received user-specified dim hint Dim.DYNAMIC(min=None, max=None), but export 0/1 specialized",
    "pairs": "UserError: Not all values of batch = L['x'].size()[0] in the specified range batch <= 64 satisfy",
    "equal": "UserError: The values of b = L['y'].size()[0] and a = L['x'].size()[0] must always be equal",
    "container": "ValueError: Unsupported input type <class 'Sample'>",
    "numpy": "RuntimeError: .numpy() is not supported for tensor subclasses",
    "operator": "RuntimeError: There was no fake impl registered for <CustomOpDef(ridgepoint_export::bare)>",
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_is_refused_in_these_words_and_the_mend_is_not(name):
    before, after = REFUSED[name]
    assert words(before).startswith(WORDS[name])
    assert words(after) == "exported"


@pytest.mark.parametrize(
    ("before", "after"),
    [(Branch(), Where()), (Branch(), Cond()), (MeanOfSome(), MeanOfAll()), (Heads(), AnyHeads()), (NumPy(), Torch())],
    ids=lambda module: type(module).__name__,
)
def test_a_mend_computes_the_same(before, after):
    for x in (X, -X, X - 9):
        torch.testing.assert_close(after(x), before(x))
        torch.testing.assert_close(export(after, (X,)).module()(x), before(x))


def test_pairs_take_every_even_batch_in_range_and_no_other():
    program = REFUSED["pairs"][1].export().module()
    for batch in (4, 6, 64):
        torch.testing.assert_close(program(torch.ones(batch, 8)), Pairs()(torch.ones(batch, 8)))
    for batch in (3, 66):
        with pytest.raises(AssertionError, match="Guard failed"):
            program(torch.ones(batch, 8))


# ---- the batch ------------------------------------------------------------------------------------------------------


def test_the_first_program_has_the_batch_that_was_asked_for():
    assert sizes(first()) == ["1 to 64"]
    for batch in (1, 2, 64):
        assert first().module()(torch.ones(batch, 8)).shape == (batch, 8)
    assert sizes(export(AnyHeads(), (X,))) == ["only 4"]


def test_what_became_of_the_batch():
    """By what was asked: of four rows, of one row, and where the code says four."""
    expected = {
        "nothing": ("only 4", "only 1", "only 4"),
        "Dim('batch', min=1, max=64)": ("1 to 64", "refused", "refused"),
        "Dim.DYNAMIC": ("2 or more", "refused", "refused"),
        "Dim.AUTO": ("2 or more", "only 1", "only 4"),
        "mark_dynamic(x, 0)": ("any", "only 1", "refused"),
        "mark_dynamic(x, 0); x = x.half()": ("only 4", "only 1", "only 4"),
    }
    found = {
        asked: (
            became(AnyHeads(), prepared(X), shapes),
            became(AnyHeads(), prepared(X[:1]), shapes),
            became(Heads(), prepared(X), shapes),
        )
        for asked, (shapes, prepared) in ASKED.items()
    }
    assert found == expected


def test_a_program_of_one_size_refuses_another_where_it_is_called_from_python():
    program = export(AnyHeads(), (X[:1],), dynamic_shapes=({0: Dim.AUTO},)).module()
    with pytest.raises(AssertionError, match="Guard failed"):
        program(X)


# ---- what is constant -----------------------------------------------------------------------------------------------


def test_non_strict_records_what_python_said_once():
    assert three_calls(Counter()) == "1.000 2.000 3.000   1.000 1.000 1.000"
    assert three_calls(Buffer()) == "1.000 2.000 3.000   1.000 2.000 3.000"
    assert page.left_behind() == "FakeTensor"
    random.seed(0)  # or of two draws three decimals may be the same
    drawn = three_calls(page.Drawn()).split()
    assert len(set(drawn[:3])) == 3 and len(set(drawn[3:])) == 1


def test_a_program_drops_out_what_its_module_dropped_out_when_it_was_exported():
    torch.manual_seed(0)
    assert len(set(three_calls(page.Dropped()).split()[3:])) == 3
    assert len(set(three_calls(page.Dropped().eval()).split())) == 1


def test_each_mode_refuses_something_that_the_other_exports():
    said = {
        what: [words(Asked(module, strict=strict)) for strict in (False, True)] for what, module in page.MODES.items()
    }
    lenient = ("random.random()", "time.time()", "json.loads(text)", "try: x.view(3, 3)")
    for what in lenient:
        assert said[what][0] == "exported" != said[what][1]
    assert said["x.numpy()"][0] != "exported" == said["x.numpy()"][1]
    assert "exported" not in said["if x.sum() > 0"]


# ---- saved ----------------------------------------------------------------------------------------------------------


def test_a_saved_program_runs_where_the_source_is_not_unless_it_calls_what_is_not_there(tmp_path):
    assert loaded_elsewhere(first(), tmp_path) == "(5, 8)"
    program = Asked(Calls(twice), shapes=page.BATCH).export()
    assert loaded_elsewhere(program, tmp_path).startswith(
        "SerializeError: We failed to resolve torch.ops.ridgepoint_export.twice.default"
    )


def test_what_of_another_version_is_loaded(tmp_path):
    torch.export.save(first(), tmp_path / "program.pt2")
    said = {what: load(doctored(tmp_path / "program.pt2", change)) for what, change in CHANGES.items()}
    assert said["nothing"] == said["a later minor version"] == "loaded"
    assert re.match(
        r"SerializeError: Serialized schema version .*major=99.* does not match", said["a later major version"]
    )
    assert "torch.ops.aten.divide_new.Tensor" in said["an operation not known"]


def test_a_program_that_torch_2_11_saved_is_loaded_by_todays():
    """The file was written by `torch.export.save(first(), ...)` with torch 2.11.0."""
    program = torch.export.load(page.Path(__file__).with_name("exported-2.11.pt2"))
    torch.testing.assert_close(program.module()(X[:3]), first().module()(X[:3]))
    assert sizes(program) == ["1 to 64"]
