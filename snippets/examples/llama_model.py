"""Hugging Face's Llama with random weights: its training step as it comes, and compiled."""

import copy
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

Loss = Callable[[Tensor], Tensor]  # of tokens (batch, length)

LLAMA = {
    "hidden_size": 2048,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 8192,
    "vocab_size": 128256,
    "max_position_embeddings": 4096,
}
TINY = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 128,
    "vocab_size": 256,
    "max_position_embeddings": 128,
    "initializer_range": 0.1,  # with the usual weights so few numbers would hardly tell one token from another
}


# --8<-- [start:model]
def make_model(sizes: Mapping[str, float], device: torch.device, dtype: torch.dtype) -> nn.Module:
    """The library's own model with random weights, as it comes."""
    from transformers import LlamaConfig, LlamaForCausalLM

    with torch.device(device):
        # no cache of keys and values: it is for generation, and the library's Trainer turns it off, too
        model = LlamaForCausalLM(LlamaConfig(**sizes, use_cache=False, attn_implementation="sdpa"))
    for parameter in model.parameters():  # model.to(dtype) would round the frequencies of the rotary embedding, too
        parameter.data = parameter.data.to(dtype)
    return model.train()


def make_optimizer(model: nn.Module, lr: float = 1e-4) -> torch.optim.Optimizer:
    """AdamW in one kernel for many parameters; capturable: a CUDA graph may hold its step."""
    fused = next(model.parameters()).is_cuda
    return torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.1, fused=fused, capturable=fused)


def train_step(loss_of: Loss, optimizer: torch.optim.Optimizer, tokens: Tensor) -> Tensor:
    loss = loss_of(tokens)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach()


# --8<-- [end:model]


# --8<-- [start:eager]
def eager(model: nn.Module) -> Loss:
    """As the library documents it. The labels are the tokens: it shifts them itself."""
    return lambda tokens: model(input_ids=tokens, labels=tokens).loss


# --8<-- [end:eager]


# --8<-- [start:compiled]
def compiled(model: nn.Module) -> Loss:
    """The whole loss in one graph."""
    return torch.compile(eager(model), dynamic=False)


# --8<-- [end:compiled]


def sharing(model: nn.Module) -> nn.Module:
    """Another model with the same parameters, for a rung to change: no second copy of them."""
    return copy.deepcopy(model, {id(parameter): parameter for parameter in model.parameters()})
