"""Where a saved program runs, and of which versions it may be."""

import re
from pathlib import Path

import torch

from snippets.compiler import ahead_of_time_export
from snippets.compiler.ahead_of_time_export_batch import X, first, sizes
from snippets.compiler.ahead_of_time_export_saved import CHANGES, doctored, load
from tests.benchmarks.captures import sections


def test_a_saved_program_runs_where_the_source_is_not_unless_it_calls_what_is_not_there(script):
    done = script(ahead_of_time_export.__name__)
    assert done.returncode == 0, done.stderr
    torchs, ours = (line[24:].strip() for line in sections(done.stdout)["elsewhere"].splitlines())
    assert torchs == "(5, 8)"
    assert ours.startswith("SerializeError: We failed to resolve torch.ops.ridgepoint_export.twice.default")


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
    program = torch.export.load(Path(__file__).with_name("exported-2.11.pt2"))
    torch.testing.assert_close(program.module()(X[:3]), first().module()(X[:3]))
    assert sizes(program) == ["1 to 64"]
