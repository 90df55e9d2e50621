"""What a training step keeps and repeats under each choice, and that every choice computes the same gradients."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend

from snippets.compiler.training import (
    MAX_NORM,
    Batch,
    Kept,
    Model,
    backward_graphs,
    checkpoint_compiled,
    compile_checkpointed,
    dropped,
    dtype_of_backward,
    graphs_of_a_cycle,
    graphs_of_step,
    graphs_of_updates,
    inside,
    kept,
    loss_of,
    loss_of_all,
    mlp,
    mlp_inputs,
    outside,
    partition,
    products_run,
    selective,
    small,
    train_step,
    whole,
    with_dropout,
    with_run,
    work,
)

VERSION = torch.torch_version.TorchVersion(torch.__version__)


@pytest.fixture(scope="module")
def model_and_batch() -> tuple[Model, Batch]:
    return small()


@pytest.fixture(scope="module")
def plain(model_and_batch) -> Kept:
    model, batch = model_and_batch
    return kept(*partition(loss_of, model, *batch))


def gradients(loss: Tensor, model: nn.Module) -> list[Tensor]:
    return list(torch.autograd.grad(loss, list(model.parameters())))


def test_products_are_kept_and_what_fuses_is_repeated():
    forward, backward = partition(mlp, *mlp_inputs())
    saved = [node for node in forward.graph.output_node().args[0][1:] if work(node) is not None]
    assert "mm" in [node.name for node in saved]  # gate and value, in one tensor
    assert {"neg", "exp", "add_1", "div"} <= {node.name for node in backward.graph.nodes}  # silu, again
    assert not {"neg", "exp", "add_1", "div"} & {node.name for node in saved}


@pytest.mark.skipif((2, 12) <= VERSION < (2, 13), reason="the page speaks of 2.11 and of 2.13")
def test_versions_differ_in_the_derivative_of_silu():
    _, backward = partition(mlp, *mlp_inputs())
    assert ("sigmoid" in {node.name for node in backward.graph.nodes}) == (VERSION >= (2, 13))


def test_a_whole_block_keeps_less_than_its_products_and_repeats_them(model_and_batch, plain):
    model, batch = model_and_batch
    blocks = kept(*partition(loss_of, with_run(model, whole), *batch))
    products = kept(*partition(loss_of, with_run(model, selective), *batch))
    assert blocks.nbytes < products.nbytes < plain.nbytes
    assert (plain.products, products.products) == (0, 0)
    assert blocks.products >= 4  # attention and the products before it, up to the one whose result nobody needs
    assert products.others > plain.others


def test_a_checkpoint_around_a_compiled_block_repeats_all_of_it_whatever_its_policy():
    assert products_run(compile_checkpointed, whole) == ([5], [12])  # the last one's result is not needed again
    assert products_run(compile_checkpointed, selective) == ([5], [8])
    for run in (whole, selective):
        assert products_run(checkpoint_compiled, run) == ([5], [5, 8])


@pytest.mark.parametrize("run", [whole, selective])
def test_checkpointed_gradients_are_the_same(run):
    model, batch = small(length=16, width=32, vocabulary=64)
    expected = gradients(loss_of(model, *batch), model)
    other = with_run(model, run)
    torch.testing.assert_close(gradients(loss_of(other, *batch), model), expected)
    torch.compiler.reset()
    compiled = torch.compile(loss_of, backend="aot_eager")
    torch.testing.assert_close(gradients(compiled(other, *batch), model), expected)


def test_a_smaller_budget_keeps_less_and_the_first_step_repeats_no_product(model_and_batch, plain):
    model, batch = model_and_batch
    plans = [kept(*partition(loss_of, model, *batch, budget=budget)) for budget in (0.9, 0.5, 0.0)]
    sizes = [plain.nbytes, *(plan.nbytes for plan in plans)]
    assert sizes == sorted(sizes, reverse=True) and len(set(sizes)) == 4
    assert sizes[1] < 0.7 * plain.nbytes  # far below what was allowed
    assert plans[0].products == 0 < plans[1].products < plans[2].products
    assert sizes[3] == 0


def test_a_budget_is_a_share():
    with pytest.raises(Exception, match="valid ranges for memory budget"):
        partition(mlp, *mlp_inputs(), budget=2.0)


def test_the_budget_of_a_region_came_after_211():
    """The page says from which version on."""
    assert hasattr(torch.autograd.graph, "region_activation_memory_budget") == (VERSION >= (2, 13))


def test_dropout_has_another_mask_in_backward_under_a_budget_below_1():
    """Fixed in PyTorch? Then the page's warning goes, and the kernel's tag: kernels/softmax_dropout.py."""
    loss, gradient = with_dropout(1.0)
    assert torch.equal(with_dropout(1.0)[1], gradient)
    for budget in (0.9, 0.5, 0.0):
        other_loss, other = with_dropout(budget)
        assert torch.equal(other_loss, loss) and (other - gradient).norm() > 0.1 * gradient.norm()


@pytest.mark.filterwarnings("ignore:Detected that context_fn")
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


def test_halves_keep_half_only_where_the_loop_is_outside(model_and_batch, plain):
    model, (tokens, targets) = model_and_batch
    halves = (tokens[:1], targets[:1]), (tokens[1:], targets[1:])
    apart = kept(*partition(loss_of, model, *halves[0]))
    together = kept(*partition(loss_of_all, model, *halves))
    assert apart.nbytes < 0.6 * plain.nbytes
    assert together.nbytes == pytest.approx(plain.nbytes, rel=0.01)


def test_copies_of_the_weights_are_kept_whatever_the_batch(model_and_batch, plain):
    model, _ = model_and_batch
    twice = kept(*partition(loss_of, model, *small(rows=4)[1]))
    matrices = sum(p.numel() for name, p in model.named_parameters() if p.dim() == 2 and "embedding" not in name)
    assert 2 * plain.nbytes - twice.nbytes == pytest.approx(2 * matrices, rel=0.01)  # two bytes each: bf16


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


def test_backward_takes_over_the_autocast_around_the_call():
    assert dtype_of_backward(inside, around=False) == "torch.float32"
    assert dtype_of_backward(outside, around=True) == "torch.bfloat16"
    assert dtype_of_backward(outside, around=True, backward_pass_autocast="off") == "torch.float32"


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


def test_a_learning_rate_costs_one_more_graph_as_a_number_and_none_as_a_tensor():
    rates = [0.1, 0.09, 0.08, 0.07]
    assert graphs_of_updates(rates, as_tensor=False) == [1, 2, 2, 2]
    assert graphs_of_updates(rates, as_tensor=True) == [1, 1, 1, 1]


def test_one_cycle_changes_the_betas_and_needs_graphs_up_to_the_limit():
    for as_tensor in (False, True):
        counts = graphs_of_a_cycle(as_tensor, cycle_momentum=True)
        assert counts[3] < counts[6] and counts[-3] == counts[-1] >= 8
    assert set(graphs_of_a_cycle(as_tensor=True, cycle_momentum=False)) == {1}


def test_a_whole_step_is_three_graphs():
    forward, clipping, update = graphs_of_step(*small(length=16, width=32, vocabulary=64))
    assert "cross_entropy" in forward and "_foreach_norm" in clipping and "lerp_" in update


def test_and_with_fullgraph_an_error():
    model, batch = small(length=16, width=32, vocabulary=64)
    torch.compiler.reset()
    with pytest.raises(torch._dynamo.exc.Unsupported, match=r"Tensor\.backward"):
        torch.compile(train_step, backend="eager", fullgraph=True)(
            model, torch.optim.AdamW(model.parameters()), [batch]
        )


def test_compiled_autograd_makes_one_graph_of_a_backward_in_three():
    assert len(backward_graphs(compiled_autograd=False)) == 3
    assert len(backward_graphs(compiled_autograd=True)) == 1


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
    """There is one compilation more than values."""
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
