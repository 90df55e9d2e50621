"""Three changes to the training step of a Hugging Face Llama, as a patch for a training script that is not ours.

Each layer compiled, the loss from chunks of the logits, AdamW's update compiled. In place of the first, the layers by
Triton kernels. It needs transformers (5.17). Run `python -m snippets.examples.hf_llama` to see, on a GPU, that each
computes the same loss, and what it keeps in memory.
"""

from collections.abc import Callable

import torch
from torch import nn

from snippets.examples.hf_llama_chunks import keeping_columns, loss_in_chunks
from snippets.examples.hf_llama_kernels import with_kernels
from snippets.examples.llama_causal import compiled_causal, layers_compiled
from snippets.examples.llama_model import LLAMA, Loss, eager, make_model, sharing
from snippets.examples.llama_optimizer import update_compiled

LLAMA_1B = LLAMA | {"tie_word_embeddings": True}
LLAMA_8B = LLAMA | {
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "intermediate_size": 14336,
    "max_position_embeddings": 8192,
}


# --8<-- [start:patch]
def patch(model: nn.Module, optimizer: torch.optim.Optimizer) -> Callable[[], None]:
    """All three changes. The training loop calls what this returns in place of optimizer.step()."""
    model.config.use_cache = False  # with a cache each layer has a graph of its own, and from the ninth on none
    for layer in model.model.layers:
        layer.compile()
    keeping_columns(loss_in_chunks, model)
    for group in optimizer.param_groups:
        group["fused"], group["foreach"] = False, True
        if isinstance(group["lr"], torch.Tensor):  # a schedule fills it in place, so no two groups may share it
            group["lr"], group["capturable"] = group["lr"].clone(), True
    return update_compiled(optimizer)


# --8<-- [end:patch]

RUNGS: dict[str, Callable[[nn.Module], Loss]] = {
    "eager": eager,
    "causal": compiled_causal,
    "layers": layers_compiled,
    "loss": lambda model: eager(loss_in_chunks(model)),
    "all": lambda model: layers_compiled(loss_in_chunks(model)),
    "triton": lambda model: eager(with_kernels(model)),
}


def main() -> None:
    """The loss of two layers by each change, and the memory that a step's forward leaves for its backward."""
    if not torch.cuda.is_available():
        print("no CUDA GPU: the loss in chunks and the layers by kernels need one")
        return
    device = torch.device("cuda")
    torch.manual_seed(0)
    model = make_model(LLAMA_1B | {"num_hidden_layers": 2}, device, torch.bfloat16)
    tokens = torch.randint(int(LLAMA_1B["vocab_size"]), (2, 4096), device=device)
    print(f"{'':12}{'loss':>10}{'kept':>12}{'peak':>12}")
    for name, rung in RUNGS.items():
        loss_of = rung(sharing(model))
        for _ in range(2):  # the first call compiles
            model.zero_grad()
            before = torch.cuda.memory_allocated()
            torch.cuda.reset_peak_memory_stats()
            loss = loss_of(tokens)
            kept = torch.cuda.memory_allocated() - before
            loss.backward()
            peak = torch.cuda.max_memory_allocated() - before
        print(f"{name:12}{loss.item():10.4f}{kept / 2**20:8.0f} MiB{peak / 2**20:8.0f} MiB")


if __name__ == "__main__":
    main()
