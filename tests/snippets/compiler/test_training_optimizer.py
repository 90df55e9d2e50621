"""A float as learning rate recompiles at each change, but in one case; a tensor keeps foreach where it is compiled."""

import importlib
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend

CHANGES = 2  # of a learning rate


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


@pytest.mark.parametrize("clone", (False, True))
def test_a_schedule_of_one_group_changes_all_that_share_the_tensor(clone: bool):
    groups = [{"params": [nn.Parameter(torch.ones(1))]} for _ in range(2)]
    update = torch.optim.AdamW(groups, lr=torch.tensor(1.0))
    if clone:
        for group in update.param_groups:
            group["lr"] = group["lr"].clone()
    torch.optim.lr_scheduler.LambdaLR(update, [lambda _: 0.5, lambda _: 0.25])
    assert [float(group["lr"]) for group in update.param_groups] == ([0.5, 0.25] if clone else [0.25, 0.25])


def test_a_checkpoint_brings_its_float_back():
    parameters = [nn.Parameter(torch.ones(1))]
    saved = torch.optim.AdamW(parameters, lr=0.5).state_dict()
    update = torch.optim.AdamW(parameters, lr=torch.tensor(0.5))
    update.load_state_dict(saved)
    assert isinstance(update.param_groups[0]["lr"], float)
