"""AdamW compiled, and beside the backward, is AdamW."""

import torch
from torch import nn

from snippets.examples import llama_model, llama_optimizer
from tests.snippets.examples.test_llama_model import HERE, tokens, traced_only  # noqa: F401  a fixture


def test_adamw_compiled_is_adamw() -> None:
    updated = []
    for compiled in (False, True):
        torch.manual_seed(0)
        parameters = [nn.Parameter(torch.randn(64, 8, device=HERE)) for _ in range(3)]
        optimizer = llama_model.make_optimizer(nn.ParameterList(parameters), lr=1e-2)
        step = llama_optimizer.update_compiled(optimizer) if compiled else optimizer.step
        for _ in range(3):
            for p in parameters:
                p.grad = torch.randn_like(p)
            step()
        updated.append(parameters)
    for one, other in zip(*updated, strict=True):
        torch.testing.assert_close(one, other)


def test_updates_beside_the_backward_are_those_after_it() -> None:
    losses, ends = [], []
    for ahead in (False, True):
        torch.manual_seed(0)
        own = llama_model.make_model(llama_model.TINY, HERE, torch.float32)
        updates = llama_optimizer.UpdateAhead(own, lr=1e-2) if ahead else None
        update = updates.join if updates else llama_model.make_optimizer(own, lr=1e-2).step
        for _ in range(3):
            loss = llama_model.eager(own)(tokens())
            loss.backward()
            update()
            own.zero_grad()
            losses.append(loss.detach())
        ends.append([p.detach().clone() for p in own.parameters()])
    torch.testing.assert_close(losses[:3], losses[3:])
    for after, beside in zip(*ends, strict=True):
        torch.testing.assert_close(after, beside)
    updates.remove()
    llama_model.eager(own)(tokens()).backward()
    assert all(torch.equal(p, end) for p, end in zip(own.parameters(), ends[-1], strict=True))
