"""The time to the first token, by batch and length of the prompts."""

import torch
from torch import Tensor, nn

from snippets.examples.generate_cost_host import seconds

MOST = 2**17  # tokens of a prefill: an 8B, its cache and its activations then fill 80 GB


# --8<-- [start:prefill]
@torch.inference_mode()
def first_token(model: nn.Module, tokens: Tensor) -> Tensor:
    """The next token (batch,) after prompts (batch, length); their keys and values stay in the cache."""
    found = model(tokens, use_cache=True, logits_to_keep=1)
    return found.logits[:, -1].argmax(-1)


# --8<-- [end:prefill]


def prefill(model: nn.Module, batches: tuple[int, ...], lengths: tuple[int, ...]) -> None:
    """Time to the first token, and how many FLOP/s its matmuls and attention make of it."""
    config = model.config
    matrices = sum(p.numel() for name, p in model.named_parameters() if p.dim() == 2 and "embed" not in name)
    matrices -= model.lm_head.weight.numel()  # only the last token goes through it
    width = config.num_attention_heads * config.head_dim
    for batch in batches:
        for n in lengths:
            if batch * n > MOST:
                print(f"{batch:2} x {n:5} tokens: not run, more than {MOST} tokens")
                continue
            tokens = torch.randint(config.vocab_size, (batch, n), device=model.device)
            took = min(seconds(lambda tokens=tokens: first_token(model, tokens)) for _ in range(2))
            flops = batch * n * (2 * matrices + 2 * config.num_hidden_layers * n * width)
            print(f"{batch:2} x {n:5} tokens: {took * 1e3:7.1f} ms, {flops / took / 1e12:5.1f} TFLOP/s")
