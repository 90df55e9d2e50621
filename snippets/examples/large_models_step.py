"""A step of training with a change; its optimizer may step in backward and free each gradient."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import torch
import torch._functorch.config
from torch import Tensor, nn

from snippets.examples.large_models_activations import changed
from snippets.examples.large_models_change import Change
from snippets.examples.large_models_states import LeanAdamW, optimizer_of


# --8<-- [start:release]
class Released:
    """An optimizer for each parameter: it steps in backward, when the gradient is there, and frees the gradient."""

    def __init__(self, model: nn.Module, make: Callable[[list[nn.Parameter]], torch.optim.Optimizer | LeanAdamW]):
        for like in {p.shape: p for p in model.parameters()}.values():  # what compiles does so here, not in backward
            stand_in = nn.Parameter(torch.zeros_like(like))
            stand_in.grad = torch.zeros_like(like)
            make([stand_in]).step()
        self.optimizers = {p: make([p]) for p in model.parameters()}
        self.hooks = [p.register_post_accumulate_grad_hook(self.arrived) for p in self.optimizers]

    def arrived(self, p: Tensor) -> None:
        self.optimizers[p].step()
        p.grad = None

    @property
    def state(self) -> dict:
        return {p: state for optimizer in self.optimizers.values() for p, state in optimizer.state.items()}

    def remove(self) -> None:
        for hook in self.hooks:
            hook.remove()


# --8<-- [end:release]


Optimizer = torch.optim.Optimizer | LeanAdamW | Released


@contextmanager
def trained(model: nn.Module, change: Change) -> Iterator[tuple[Callable[[Tensor], Tensor], Optimizer]]:
    """A step of training, and its optimizer; afterwards the model is as before, but for its weights."""
    make = partial(optimizer_of, states=change.states)
    loss_of = changed(model, change)
    optimizer: Optimizer = Released(model, make) if change.release else make(model.parameters())

    def step(tokens: Tensor) -> Tensor:
        loss = loss_of(tokens)
        loss.backward()
        if not isinstance(optimizer, Released):
            optimizer.step()
            optimizer.zero_grad()
        return loss.detach()

    budget = 1.0 if change.budget is None else change.budget
    try:
        with torch._functorch.config.patch(activation_memory_budget=budget):  # read in the first call
            yield step, optimizer
    finally:
        if isinstance(optimizer, Released):
            optimizer.remove()
        for p in model.parameters():
            p.grad = None
