"""Bytes that autograd keeps for backward, counted beside those by hand."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from snippets.examples.large_models_activations import changed
from snippets.examples.large_models_change import Change
from snippets.examples.large_models_measure import emptied, error, line, size, tried
from snippets.examples.large_models_moments import moments, predicted
from snippets.examples.large_models_shape import Shape
from snippets.examples.large_models_states import optimizer_of


# --8<-- [start:counted]
def counted(model: nn.Module, forward: Callable[[], Tensor]) -> dict[str, int]:
    """Bytes that autograd keeps for backward, each storage once: copies of weights, the loss, and activations."""
    own = {p.untyped_storage()._cdata for p in [*model.parameters(), *model.buffers()]}
    # a matmul keeps a weight transposed: by that, too, for 8192 rows of activations can have a weight's shape
    weights = {(p.t().shape, p.t().stride()) for p in model.parameters() if p.dim() == 2}
    seen: dict[int, torch.UntypedStorage] = {}
    found = dict.fromkeys(("copies", "loss", "activations"), 0)

    def pack(t: Tensor) -> Tensor:
        storage = t.untyped_storage()
        if storage._cdata not in own and storage._cdata not in seen:
            seen[storage._cdata] = storage  # held, so that no address is used twice
            copy = t.dtype == torch.bfloat16 and (t.shape, t.stride()) in weights
            part = "copies" if copy else "loss" if t.shape[-1:] == (model.config.vocab_size,) else "activations"
            found[part] += storage.nbytes()
        return t.detach()  # t can be its operation's own result: the graph would hold t, t the graph, and neither ends

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        forward()
    return found


# --8<-- [end:counted]


def parts(model: nn.Module, s: Shape, tokens: Tensor) -> None:
    """Each part of a plain step, by hand and counted; and the peak."""
    plain, count = Change(), tokens.numel()
    by_hand = moments(s, count, plain)
    loss_of = changed(model, plain)
    found = counted(model, lambda: loss_of(tokens))
    optimizer = optimizer_of(model.parameters(), "fp32")
    loss_of(tokens).backward()
    found["parameters"] = sum(p.nbytes for p in model.parameters())
    found["gradients"] = sum(p.grad.nbytes for p in model.parameters() if p.grad is not None)
    optimizer.step()
    states = (t for state in optimizer.state.values() for t in state.values())
    found["state"] = sum(t.nbytes for t in states)
    optimizer.zero_grad()
    del optimizer
    emptied()
    kept = by_hand["loss, backward"] | {"loss": 4.0 * count * s.words}
    kept["gradients"] = by_hand["optimizer"]["gradients"]
    line("", "by hand", "counted", "error")
    for name in ("parameters", "gradients", "state", "copies", "activations", "loss"):
        line(name, size(kept[name]), size(found[name]), error(kept[name], found[name]))
    moment, peak = predicted(s, count, plain)
    ran = tried(model, tokens, plain)
    if isinstance(ran, str):
        line("peak of a step", size(peak), ran)
        return
    line("peak of a step", size(peak), size(ran.peak), error(peak, ran.peak))
    print(f"peak by hand in: {moment}")
