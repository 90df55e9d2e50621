"""The diary's counts are those that the page states, and every strategy computes the same block."""

from pathlib import Path

import torch

from snippets.compiler.recompilation_counter import Counter, said
from snippets.compiler.recompilation_diary import entries_needed, head, multiple_of_64, run_eagerly
from snippets.compiler.recompilation_specialised import double
from snippets.compiler.recompilation_strategies import (
    bucket,
    prompt_lengths,
)
from tests.benchmarks import captures

PAGE = Path(__file__).parents[3] / "docs" / "pages" / "compiler" / "variable-lengths.md"
BOUNDS = Path(__file__).parents[3] / "tests" / "benchmarks" / "compiler" / "recompilation.py"


def sections(printed: str) -> dict[str, list[str]]:
    return {name: text.splitlines() for name, text in captures.sections(printed).items()}


def counts(rows: list[str]) -> list[tuple[str, ...]]:
    """Strategy, graphs, stalls and eager calls of the diary's rows."""
    return [tuple(row.split()[:4]) for row in rows[1:]]


def test_the_script_prints_the_counts_of_the_page(script):
    done = script("snippets.compiler.recompilation_diary", "cpu")
    assert done.returncode == 0, done.stderr
    printed = sections(done.stdout)
    assert list(printed) == ["lengths", "diary", "exercises"]
    assert printed["diary"][0] == head()
    assert counts(printed["diary"]) == [
        ("static", "8", "8", "481"),
        ("automatic", "2", "2", "0"),
        ("marked", "1", "1", "0"),
        ("padded", "7", "7", "0"),
        ("unbacked", "1", "1", "0"),
    ]


def test_the_page_counts_the_tokens_and_calls_of_the_diary():
    lengths, bounds = prompt_lengths(500), BOUNDS.read_text()
    assert f"padded={sum(map(bucket, lengths))}, asked={sum(lengths)}" in bounds
    assert f"{len(set(lengths))} different lengths" in PAGE.read_text()
    eagerly = run_eagerly(lengths, lambda length: length, limit=8)
    assert f"calls=500, compiled=8, again={500 - 8 - eagerly}" in bounds


def test_the_diary_that_the_page_shows_counts_the_same_on_a_gpu_and_on_a_cpu():
    stored = (captures.contents("compiler/recompilation_diary", device)["diary"] for device in ("cuda", "cpu"))
    gpu, cpu = (counts(text.splitlines()) for text in stored)
    assert gpu == cpu


def test_the_answers_to_the_exercises_are_what_a_run_counts():
    lengths = prompt_lengths(500)
    assert entries_needed(lengths, lambda length: length) == len(set(lengths))
    for rule in (bucket, multiple_of_64):
        counter, eager = Counter(), 0
        torch.compiler.reset()
        compiled = torch.compile(double, backend=counter, dynamic=False)
        with said():
            for length in lengths:
                ran, x = counter.ran, torch.ones(rule(length))
                compiled(x)
                eager += counter.ran == ran
        assert eager == run_eagerly(lengths, rule, limit=8)
        assert counter.compiled == min(8, entries_needed(lengths, rule))
