"""The diary's counts are those that the page states, and every strategy computes the same block."""

from pathlib import Path

import pytest
import torch
from torch.fx.experimental.symbolic_shapes import ConstraintViolationError

from snippets.compiler.recompilation_counter import Counter, said
from snippets.compiler.recompilation_diary import (
    LONGEST,
    STRATEGIES,
    Weights,
    block,
    bucket,
    entries_needed,
    head,
    make_weights,
    multiple_of_64,
    prompt_lengths,
    run_eagerly,
)
from snippets.compiler.recompilation_specialised import double
from snippets.validation.equivalence import check
from tests.benchmarks import captures

PAGE = Path(__file__).parents[3] / "docs" / "pages" / "compiler" / "variable-lengths.md"
BOUNDS = Path(__file__).parents[3] / "tests" / "benchmarks" / "compiler" / "recompilation.py"


def scores(x: torch.Tensor) -> torch.Tensor:
    return (x @ x.mT).softmax(-1)


def small_weights() -> Weights:
    torch.manual_seed(0)
    return make_weights(32, torch.device("cpu"), torch.float32)


def sections(printed: str) -> dict[str, list[str]]:
    return {name: text.splitlines() for name, text in captures.sections(printed).items()}


def counts(rows: list[str]) -> list[tuple[str, ...]]:
    """Strategy, graphs, stalls and eager calls of the diary's rows."""
    return [tuple(row.split()[:4]) for row in rows[1:]]


def test_lengths_are_many_mostly_short_and_always_the_same():
    lengths = prompt_lengths(500)
    assert lengths == prompt_lengths(500) and prompt_lengths(20) == lengths[:20]
    assert 150 < sum(lengths) / 500 < 170  # the mean that the page states
    assert min(lengths) >= 2 and max(lengths) <= LONGEST
    assert len(set(lengths)) > 8 * 8


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


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_strategy_computes_the_block(strategy):
    function, call, options = STRATEGIES[strategy]
    weights = small_weights()
    exact = Weights(*(getattr(weights, name).double() for name in ("qkv", "out", "up", "down")), heads=weights.heads)
    torch.compiler.reset()
    compiled = torch.compile(function, backend="eager", **options)
    for length in (17, 5):
        x = torch.randn(1, length, 32)
        results = {"output": call(compiled, x.clone(), weights)}
        check(results, {"output": block(x, weights)}, {"output": block(x.double(), exact)})


def test_an_unbacked_block_refuses_a_length_of_1():
    function, call, _ = STRATEGIES["unbacked"]
    torch.compiler.reset()
    compiled = torch.compile(function, backend="eager")
    with torch.inference_mode(), pytest.raises(AssertionError):
        call(compiled, torch.randn(1, 1, 32), small_weights())


def test_a_batch_and_a_length_that_both_change_need_two_graphs():
    """Marked both; a batch of 1 is a constant, so it stays unmarked and has a graph of its own."""
    compiled = torch.compile(scores, backend=(counter := Counter()))
    for batch, length in ((4, 30), (1, 30), (8, 700), (1, 64), (32, 5), (2, 2000), (1, 9)):
        x = torch.randn(batch, length, 16)
        torch._dynamo.mark_dynamic(x, 1, min=2, max=2048)
        if batch > 1:
            torch._dynamo.mark_dynamic(x, 0, min=2, max=32)
        compiled(x)
    assert counter.compiled == 2


def test_a_marked_batch_of_1_is_an_error():
    torch._dynamo.mark_dynamic(x := torch.randn(1, 30, 16), 0, min=2, max=32)
    with pytest.raises(ConstraintViolationError, match="marked"):
        torch.compile(scores, backend="eager")(x)


def test_a_causal_block_does_not_see_what_is_padded_behind():
    weights, x = small_weights(), torch.randn(1, 20, 32)
    behind = torch.cat([x, torch.randn(1, 12, 32)], dim=1)
    torch.testing.assert_close(block(behind, weights)[:, :20], block(x, weights))


def test_a_bucket_is_the_next_power_of_two():
    assert [bucket(length) for length in (2, 16, 17, 128, 129, 1000)] == [16, 16, 32, 128, 256, 1024]
    assert [multiple_of_64(length) for length in (1, 64, 65, 1024)] == [64, 64, 128, 1024]


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
