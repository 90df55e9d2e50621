"""The assistant, given Hugging Face's Llama as the library makes it: does it find what tracing loses?

It needs transformers (5.17). Run `python -m snippets.validation.assistant_llama`: four layers of width 2048 on a GPU,
two tiny ones elsewhere.
"""

import torch
from torch import Tensor, nn

from snippets.examples.llama_model import LLAMA, TINY, make_model
from snippets.validation.assistant import analyze

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


# --8<-- [start:module]
class Loss(nn.Module):
    """The library's own loss of its own model, as the Trainer calls it."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor) -> Tensor:
        return self.model(input_ids=tokens, labels=tokens).loss


# --8<-- [end:module]


def llama() -> tuple[nn.Module, Tensor]:
    """The module and the input of one call."""
    torch.manual_seed(0)
    on_gpu = DEVICE.type == "cuda"
    sizes = LLAMA | {"num_hidden_layers": 4, "vocab_size": 32768} if on_gpu else TINY
    model = make_model(sizes, DEVICE, torch.bfloat16 if on_gpu else torch.float32)
    return Loss(model), torch.randint(sizes["vocab_size"], (2, 4096) if on_gpu else (2, 64), device=DEVICE)


def main() -> None:
    """Print the whole report."""
    module, tokens = llama()
    print("==== findings")
    findings, _, trials = str(analyze(module, tokens)).partition("\nTried")
    print(findings)
    print("==== trials")
    print(f"Tried{trials}" if trials else "nothing was tried")


if __name__ == "__main__":
    main()
