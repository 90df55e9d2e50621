"""What a training step keeps and repeats under each choice, and that every choice computes the same gradients.

What the script counts is read from its run, which the page's command and its captured output share.
"""

import re
from typing import NamedTuple

import pytest
import torch

from snippets.compiler.training_dropout import with_dropout
from tests.benchmarks.captures import sections

READ = ("tests/forked.py",)  # scripts run in it, and nothing imports it: named here, it counts for tests/remembered.py


class Kept(NamedTuple):
    """A line of the script's tables: bytes kept for backward, and operations that backward repeats."""

    kib: float
    products: int
    others: int


@pytest.fixture
def printed(script) -> dict[str, str]:
    """What the script prints, by section."""
    done = script("snippets.compiler.training")
    assert done.returncode == 0, done.stderr
    return sections(done.stdout)


def table(section: str) -> dict[str, Kept]:
    """The lines of a table, by what they are about."""
    rows = re.findall(r"^(\S.*?) {2,}([\d.]+) +\d+ +(\d+) +(\d+)$", section, re.MULTILINE)
    return {name: Kept(float(kib), int(products), int(others)) for name, kib, products, others in rows}


def test_a_whole_block_keeps_less_than_its_products_and_repeats_them(printed):
    rows = table(printed["checkpointing"])
    plain, blocks, products = (rows[name] for name in ("nothing said", "whole blocks", "products kept"))
    assert blocks.kib < products.kib < plain.kib
    assert (plain.products, products.products) == (0, 0)
    assert blocks.products >= 4  # attention and the products before it, up to the one whose result nobody needs
    assert products.others > plain.others


def test_a_checkpoint_around_a_compiled_block_repeats_all_of_it_whatever_its_policy(printed):
    assert [line.split(maxsplit=2) for line in printed["order"].splitlines()] == [
        ["compile_checkpointed", "whole", "products in forward [5], in backward [12]"],  # the last one is not repeated
        ["compile_checkpointed", "selective", "products in forward [5], in backward [8]"],
        ["checkpoint_compiled", "whole", "products in forward [5], in backward [5, 8]"],
        ["checkpoint_compiled", "selective", "products in forward [5], in backward [5, 8]"],
    ]


def test_a_smaller_budget_keeps_less_and_the_first_step_repeats_no_product(printed):
    rows = table(printed["budgets"])
    plans = [rows[f"budget {budget}"] for budget in (1.0, 0.9, 0.5, 0.0)]
    sizes = [plan.kib for plan in plans]
    assert sizes == sorted(sizes, reverse=True) and len(set(sizes)) == 4
    assert sizes[1] < 0.7 * sizes[0]  # far below what was allowed
    assert plans[1].products == 0 < plans[2].products < plans[3].products
    assert sizes[3] == 0


def test_dropout_has_another_mask_in_backward_under_a_budget_below_1(printed):
    """Fixed in PyTorch? Then the page's warning goes, and the kernel's tag: kernels/softmax_dropout.py."""
    (_, gradient), (_, again) = with_dropout(1.0), with_dropout(1.0)
    assert torch.equal(gradient, again)
    said = r"budget (.+): the same loss (\w+), a gradient that is off by (.+) of it"
    rows = re.findall(said, printed["dropout"])
    assert [row[:2] for row in rows] == [(budget, "True") for budget in ("0.9", "0.5", "0.0")]
    assert all(float(off) > 0.1 for *_, off in rows)


def test_halves_keep_half_only_where_the_loop_is_outside(printed):
    plain, apart, together = table(printed["accumulation"]).values()
    assert apart.kib < 0.6 * plain.kib
    assert together.kib == pytest.approx(plain.kib, rel=0.01)


def test_copies_of_the_weights_are_kept_whatever_the_batch(printed):
    """The batch twice as large does not keep twice as much: two bytes for each number of a matrix, in bf16."""
    found = dict(re.findall(r"^(does not grow|all matrices in bf16) +([\d.]+)$", printed["exercise"], re.MULTILINE))
    assert float(found["does not grow"]) == pytest.approx(float(found["all matrices in bf16"]), rel=0.01)
    plain, twice = table(printed["exercise"]).values()
    assert 2 * plain.kib - twice.kib == pytest.approx(float(found["does not grow"]))


def test_backward_takes_over_the_autocast_around_the_call(printed):
    dtypes = [line.split()[-1] for line in printed["autocast"].splitlines()]
    assert dtypes == ["torch.float32", "torch.bfloat16", "torch.float32"]


def graphs(section: str) -> list[list[int]]:
    """Graphs compiled so far, after each of some steps, line by line."""
    return [list(map(int, line.rpartition("[")[2].rstrip("]").split(", "))) for line in section.splitlines()]


def test_a_learning_rate_costs_one_more_graph_as_a_number_and_none_as_a_tensor(printed):
    assert graphs(printed["learning rates"]) == [[1, 2, 2, 2], [1, 1, 1, 1]]


def test_one_cycle_changes_the_betas_and_needs_graphs_up_to_the_limit(printed):
    *changing, constant = graphs(printed["one cycle"])
    assert len(changing) == 2
    for counts in changing:
        assert counts[3] < counts[6] and counts[-3] == counts[-1] >= 8
    assert set(constant) == {1}


def test_a_whole_step_is_three_graphs(printed):
    known = [line.rpartition("among them ")[2] for line in printed["whole step"].splitlines()]
    assert known == ["cross_entropy", "_foreach_norm", "lerp_"]
