"""The next token from its logits."""

import torch
from torch import Tensor


# --8<-- [start:sample]
def sample(logits: Tensor, temperature: float = 0.0, top_k: int = 0, top_p: float = 1.0) -> Tensor:
    """The next token of each slot; with temperature 0 the likeliest. Without a sync: a CUDA graph can hold it."""
    if temperature == 0:
        return logits.argmax(-1)
    logits = logits.float() / temperature
    if top_k:
        logits = logits.masked_fill(logits < logits.topk(top_k).values[:, -1:], float("-inf"))
    p = logits.softmax(-1)
    if top_p < 1:
        ordered, order = p.sort(descending=True)
        beyond = ordered.cumsum(-1) - ordered >= top_p
        beyond[:, 0] = False  # the likeliest stays, whatever top_p
        ordered[beyond] = 0
        p = torch.zeros_like(p).scatter(-1, order, ordered)
    return (p / torch.empty_like(p).exponential_()).argmax(-1)  # one draw from each row, as multinomial's


# --8<-- [end:sample]
