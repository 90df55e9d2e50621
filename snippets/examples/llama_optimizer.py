"""AdamW compiled, or beside the backward."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from snippets.examples.llama_model import make_optimizer


# --8<-- [start:update]
def update_compiled(optimizer: torch.optim.Optimizer) -> Callable[[], None]:
    """AdamW as the compiler makes it of plain operations: one kernel for many parameters, too."""
    group = optimizer.param_groups[0]
    group["fused"], group["foreach"] = False, True
    return torch.compile(optimizer.step)


# --8<-- [end:update]


# --8<-- [start:ahead]
class UpdateAhead:
    """AdamW for each part of the model as soon as it has its gradients: what is left of the backward needs none of it.

    On a GPU the updates run on a stream of their own, beside the rest of the backward; `join` waits for them.
    """

    def __init__(self, model: nn.Module, lr: float = 1e-4):
        self.stream = torch.cuda.Stream() if next(model.parameters()).is_cuda else None
        parts = model.model.embed_tokens, *model.model.layers, model.model.norm, model.lm_head
        self.hooks = [hook for part in parts for hook in self.watched(part, make_optimizer(part, lr))]

    def watched(self, part: nn.Module, optimizer: torch.optim.Optimizer) -> list:
        parameters = list(part.parameters())
        missing = len(parameters)

        def arrived(_: Tensor) -> None:
            nonlocal missing
            missing -= 1
            if not missing:
                missing = len(parameters)
                with self.beside():
                    optimizer.step()

        return [p.register_post_accumulate_grad_hook(arrived) for p in parameters]

    @contextmanager
    def beside(self) -> Iterator[None]:
        if self.stream is None:
            yield
            return
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            yield

    def join(self) -> None:
        if self.stream is not None:
            torch.cuda.current_stream().wait_stream(self.stream)

    def remove(self) -> None:
        for hook in self.hooks:
            hook.remove()


# --8<-- [end:ahead]
