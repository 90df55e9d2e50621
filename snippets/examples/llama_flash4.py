"""The last rungs of the Llama step: FlashAttention 4 for cuDNN's attention, and fewer, larger pieces of the loss.

It needs transformers (5.17) and, for attention, flash-attn-4 (4.0.0b36) on a Hopper GPU or a newer one. Run
`python -m snippets.examples.llama_flash4` to see whether both compute the same loss.
"""

import torch
from torch import Tensor, nn

from snippets.examples import llama, llama_model
from snippets.examples.llama import block, rewritten_cudnn, written_out
from snippets.examples.llama_model import Loss, make_model, sharing
from snippets.examples.llama_said import replaced

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


# --8<-- [start:attend]
def attend_flash4(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal attention by FlashAttention 4. It wants heads within a token, as the projections left them: no copy."""
    from flash_attn.cute import flash_attn_func

    mixed = flash_attn_func(*(t.transpose(1, 2) for t in (q, k, v)), causal=True)
    return (mixed[0] if isinstance(mixed, tuple) else mixed).flatten(2)


def by_flash4(loss_of: Loss) -> Loss:
    """The same loss with the other attention. The backward goes by what the forward chose."""

    def loss(tokens: Tensor) -> Tensor:
        with replaced(llama, "attend", attend_flash4):
            return loss_of(tokens)

    return loss


# --8<-- [end:attend]


# --8<-- [start:pieces]
def in_pieces_of(rows: int, model: nn.Module) -> Loss:
    """The logits of so many rows at a time: each piece reads and writes the sum of the weight's gradient once."""
    return lambda tokens: written_out(model, tokens, block, rows=rows)


# --8<-- [end:pieces]


def flash4(model: nn.Module) -> Loss:
    return by_flash4(llama.rewritten(model))


def flash4_wide(model: nn.Module) -> Loss:
    return by_flash4(in_pieces_of(16384, model))


def wide(model: nn.Module) -> Loss:
    return llama.preferring(llama.CUDNN_FIRST, in_pieces_of(16384, model))


def main() -> None:
    """Print the loss of a model of two layers by each rung that this machine can run."""
    if DEVICE.type != "cuda":
        print("no CUDA GPU: these rungs are made of kernels for one")
        return
    torch.manual_seed(0)
    model = make_model(llama_model.LLAMA | {"num_hidden_layers": 2, "vocab_size": 8192}, DEVICE, torch.bfloat16)
    tokens = torch.randint(8192, (2, 4096), device=DEVICE)
    for name, rung in {"rewritten": rewritten_cudnn, "one piece": wide, "FlashAttention 4": flash4}.items():
        try:
            print(f"{name:18} {rung(sharing(model))(tokens).item():.4f}")
        except ImportError as missing:
            print(f"{name:18} not here: {missing}")


if __name__ == "__main__":
    main()
