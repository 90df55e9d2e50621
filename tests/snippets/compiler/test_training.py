"""What a training step keeps and repeats under each choice, and that every choice computes the same gradients.

What the script counts is read from its run, which the page's command and its captured output share.
"""

import copy
import importlib
import re
from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend

from snippets.compiler.training import (
    MAX_NORM,
    dropped,
    loss_of,
    mlp,
    mlp_inputs,
    outside,
    partition,
    selective,
    small,
    train_step,
    whole,
    with_dropout,
    with_run,
    work,
)
from tests.benchmarks.captures import sections

READ = ("tests/forked.py",)  # scripts run in it, and nothing imports it: named here, it counts for tests/remembered.py

VERSION = torch.torch_version.TorchVersion(torch.__version__)


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


def gradients(loss: Tensor, model: nn.Module) -> list[Tensor]:
    return list(torch.autograd.grad(loss, list(model.parameters())))


@pytest.fixture(scope="module")
def of_mlp() -> tuple[torch.fx.GraphModule, torch.fx.GraphModule]:
    return partition(mlp, *mlp_inputs())


def test_products_are_kept_and_what_fuses_is_repeated(of_mlp):
    forward, backward = of_mlp
    saved = [node for node in forward.graph.output_node().args[0][1:] if work(node) is not None]
    assert "mm" in [node.name for node in saved]  # gate and value, in one tensor
    assert {"neg", "exp", "add_1", "div"} <= {node.name for node in backward.graph.nodes}  # silu, again
    assert not {"neg", "exp", "add_1", "div"} & {node.name for node in saved}


@pytest.mark.skipif((2, 12) <= VERSION < (2, 13), reason="the page speaks of 2.11 and of 2.13")
def test_versions_differ_in_the_derivative_of_silu(of_mlp):
    _, backward = of_mlp
    assert ("sigmoid" in {node.name for node in backward.graph.nodes}) == (VERSION >= (2, 13))


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


@pytest.mark.parametrize("run", [whole, selective])
def test_checkpointed_gradients_are_the_same(run):
    model, batch = small(length=16, width=32, vocabulary=64)
    expected = gradients(loss_of(model, *batch), model)
    other = with_run(model, run)
    torch.testing.assert_close(gradients(loss_of(other, *batch), model), expected)
    torch.compiler.reset()
    compiled = torch.compile(loss_of, backend="aot_eager")
    torch.testing.assert_close(gradients(compiled(other, *batch), model), expected)


def test_a_smaller_budget_keeps_less_and_the_first_step_repeats_no_product(printed):
    rows = table(printed["budgets"])
    plans = [rows[f"budget {budget}"] for budget in (1.0, 0.9, 0.5, 0.0)]
    sizes = [plan.kib for plan in plans]
    assert sizes == sorted(sizes, reverse=True) and len(set(sizes)) == 4
    assert sizes[1] < 0.7 * sizes[0]  # far below what was allowed
    assert plans[1].products == 0 < plans[2].products < plans[3].products
    assert sizes[3] == 0


def test_a_budget_is_a_share():
    with pytest.raises(Exception, match="valid ranges for memory budget"):
        partition(mlp, *mlp_inputs(), budget=2.0)


def test_the_budget_of_a_region_came_after_211():
    """The page says from which version on."""
    assert hasattr(torch.autograd.graph, "region_activation_memory_budget") == (VERSION >= (2, 13))


def test_dropout_has_another_mask_in_backward_under_a_budget_below_1(printed):
    """Fixed in PyTorch? Then the page's warning goes, and the kernel's tag: kernels/softmax_dropout.py."""
    (_, gradient), (_, again) = with_dropout(1.0), with_dropout(1.0)
    assert torch.equal(gradient, again)
    said = r"budget (.+): the same loss (\w+), a gradient that is off by (.+) of it"
    rows = re.findall(said, printed["dropout"])
    assert [row[:2] for row in rows] == [(budget, "True") for budget in ("0.9", "0.5", "0.0")]
    assert all(float(off) > 0.1 for *_, off in rows)


@pytest.mark.filterwarnings("ignore:Detected that context_fn")
def test_differences_in_float64_show_which_gradient_is_wrong():
    """The loss itself is differentiable and right at every budget; only backward's mask differs."""
    torch.manual_seed(0)
    x, weight, step = (torch.randn(shape, dtype=torch.float64) for shape in ((16, 8), (8, 8), (8, 8)))

    def slopes(budget: float) -> tuple[float, float]:
        torch.compiler.reset()
        with torch._functorch.config.patch(activation_memory_budget=budget):
            compiled = torch.compile(dropped, backend="aot_eager_decomp_partition")

            def loss(distance: float) -> tuple[torch.Tensor, torch.Tensor]:
                torch.manual_seed(1)
                at = (weight + distance * step).requires_grad_()
                return compiled(x, at), at

            ahead, behind = (loss(distance)[0].item() for distance in (1e-6, -1e-6))
            gradient = torch.autograd.grad(*loss(0.0))[0]
        return (gradient * step).sum().item(), (ahead - behind) / 2e-6

    by_backward, by_differences = slopes(1.0)
    assert by_backward == pytest.approx(by_differences, rel=1e-4)
    wrong, right = slopes(0.0)
    assert right == pytest.approx(by_differences, rel=1e-4)
    assert abs(wrong - right) > abs(right) / 10


def test_dropout_in_a_checkpoint_has_one_mask():
    torch.manual_seed(0)
    x, weight = torch.randn(64, 32), torch.randn(32, 32, requires_grad=True)

    def gradient(run) -> Tensor:
        torch.compiler.reset()
        torch.manual_seed(1)
        function = torch.compile(lambda x, weight: run(lambda x: dropped(x, weight), x), backend="aot_eager")
        return torch.autograd.grad(function(x, weight), weight)[0]

    plain = gradient(lambda function, x: function(x))
    for run in (whole, selective):
        torch.testing.assert_close(gradient(run), plain)


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


def test_accumulated_halves_update_as_the_whole_batch_does():
    model, (tokens, targets) = small(length=16, width=32, vocabulary=64)
    updated = []
    for batches in ([(tokens, targets)], [(tokens[:1], targets[:1]), (tokens[1:], targets[1:])]):
        other = copy.deepcopy(model)
        optimizer = torch.optim.SGD(other.parameters(), lr=1.0)  # whose update is the clipped gradient
        loss = train_step(other, optimizer, batches, loss_of=lambda model, *batch: model(*batch))
        assert all(p.grad is None for p in other.parameters())
        updated.append(
            [loss, *(p.detach() - q.detach() for p, q in zip(other.parameters(), model.parameters(), strict=True))]
        )
    torch.testing.assert_close(updated[0], updated[1], atol=1e-6, rtol=1e-3)
    assert torch.cat([change.flatten() for change in updated[0][1:]]).norm() == pytest.approx(MAX_NORM, rel=1e-3)


def test_backward_takes_over_the_autocast_around_the_call(printed):
    dtypes = [line.split()[-1] for line in printed["autocast"].splitlines()]
    assert dtypes == ["torch.float32", "torch.bfloat16", "torch.float32"]


def test_under_fp16_it_overflows_where_eager_does_not():
    def gradient(function) -> Tensor:
        x, weight = (torch.ones(4, 4, requires_grad=True) for _ in range(2))
        with torch.autocast("cpu", torch.float16):
            y = function(x, weight)
        (gradient,) = torch.autograd.grad(1e5 * y.sum(), x)
        return gradient

    torch.compiler.reset()
    assert (gradient(outside) == 4e5).all()
    assert gradient(torch.compile(outside, backend="aot_eager")).isinf().all()


def test_eager_autocast_keeps_copies_of_the_weights_too():
    model, batch = small(length=16, width=32, vocabulary=64)
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        loss_of(model, *batch)
    copied = {tuple(sorted(t.shape)) for t in saved if t.dtype == torch.bfloat16}
    weights = [model.head, *(getattr(model.blocks[0], name) for name in ("qkv", "out", "up", "down"))]
    assert {tuple(sorted(module.weight.shape)) for module in weights} <= copied


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


def test_and_with_fullgraph_an_error():
    model, batch = small(length=16, width=32, vocabulary=64)
    torch.compiler.reset()
    with pytest.raises(torch._dynamo.exc.Unsupported, match=r"Tensor\.backward"):
        torch.compile(train_step, backend="eager", fullgraph=True)(
            model, torch.optim.AdamW(model.parameters()), [batch]
        )


def test_compiled_autograd_makes_one_graph_of_a_backward_in_three(printed):
    assert [len(operations) for operations in graphs(printed["compiled autograd"])] == [3, 1]


CHANGES = 5  # of a learning rate


@pytest.mark.parametrize(
    ("optimizer", "foreach", "expected"),
    [
        (torch.optim.SGD, False, CHANGES + 2),
        (torch.optim.SGD, True, CHANGES + 2),
        (torch.optim.AdamW, True, CHANGES + 2),
        (torch.optim.AdamW, False, 2),
    ],
)
def test_a_float_as_learning_rate_recompiles_at_each_change_but_in_one_case(
    optimizer: Callable[..., torch.optim.Optimizer], foreach: bool, expected: int
) -> None:
    """There is one compilation more than values. The page on recompilation says so, too."""
    torch.compiler.reset()
    parameter = torch.nn.Parameter(torch.ones(8))
    update = optimizer([parameter], lr=0.5, foreach=foreach)
    counter = CompileCounterWithBackend("aot_eager")
    step = torch.compile(lambda: update.step(), backend=counter)
    for change in range(CHANGES + 1):
        parameter.grad = torch.ones(8)
        update.param_groups[0]["lr"] = 0.5 / (change + 1)
        step()
    assert counter.frame_count == expected


def test_a_tensor_as_learning_rate_keeps_foreach_only_where_the_update_is_compiled(monkeypatch):
    """With `foreach` by default, as on a GPU. Dynamo takes every optimizer as capturable."""
    monkeypatch.setattr(
        importlib.import_module("torch.optim.adam"), "_default_to_fused_or_foreach", lambda *_, **__: (False, True)
    )
    parameters = [nn.Parameter(torch.ones(8)) for _ in range(4)]
    optimizer = torch.optim.AdamW(parameters, lr=torch.tensor(0.5))

    def steps(step: Callable[[], None]) -> None:
        for change in range(CHANGES):
            for parameter in parameters:
                parameter.grad = torch.ones(8)
            optimizer.param_groups[0]["lr"].fill_(0.5 / (change + 1))
            step()

    with torch.profiler.profile() as trace:
        steps(optimizer.step)
    assert not [event.key for event in trace.key_averages() if "_foreach_" in event.key]
    counter = CompileCounterWithBackend("aot_eager")
    torch.compiler.reset()
    steps(torch.compile(optimizer.step, backend=counter))
    assert counter.frame_count == 1
    assert any("_foreach_" in str(node.target) for node in counter.graphs[0].graph.nodes)


def test_foreach_refuses_a_tensor_as_learning_rate_unless_it_is_capturable():
    with pytest.raises(ValueError, match="lr as a Tensor is not supported for capturable=False and foreach=True"):
        torch.optim.AdamW([nn.Parameter(torch.ones(8))], lr=torch.tensor(0.5), foreach=True)
