"""Is the fast step the same training? The library's model, the rewritten one, and what another order of the data does.

Run `python -m snippets.examples.llama_curve` (it needs transformers 5.17): fifty steps each on a GPU, few on a CPU.
"""

import os

import torch
from torch import Tensor

from snippets.examples.llama import RUNGS
from snippets.examples.llama_model import LLAMA, TINY, make_model, make_optimizer, train_step

WORDS = 256  # tokens that occur; each is followed by one of four


# --8<-- [start:data]
def text(steps: int, batch: int, length: int, vocabulary: int) -> Tensor:
    """A language to learn: (steps, batch, length) tokens of a Markov chain, the same on every machine."""
    generator = torch.Generator().manual_seed(0)
    words = torch.randperm(vocabulary, generator=generator)[:WORDS]
    followers = torch.randint(WORDS, (WORDS, 4), generator=generator)
    chosen = torch.randint(4, (length, steps * batch), generator=generator)
    now, found = torch.randint(WORDS, (steps * batch,), generator=generator), []
    for choice in chosen:
        found.append(now)
        now = followers[now, choice]
    return words[torch.stack(found, -1)].view(steps, batch, length)


# --8<-- [end:data]


# --8<-- [start:curve]
def curve(rung: str, sizes: dict, batches: Tensor, order: int, dtype: torch.dtype) -> list[float]:
    """The loss of each step, always from the same weights; the batches as they are, or in another order, by number."""
    torch.manual_seed(0)
    model = make_model(sizes, batches.device, dtype)
    loss_of, optimizer = RUNGS[rung](model), make_optimizer(model, lr=3e-4)
    places = torch.randperm(len(batches), generator=torch.Generator().manual_seed(order)) if order else None
    losses = [train_step(loss_of, optimizer, tokens) for tokens in (batches if places is None else batches[places])]
    return torch.stack(losses).tolist()


# --8<-- [end:curve]


def main() -> None:
    on_gpu = torch.cuda.is_available()
    kernels_run = on_gpu or os.environ.get("TRITON_INTERPRET") == "1"
    fast = "rewritten-cudnn" if kernels_run else "layers"
    steps, batch, length, sizes = (50, 4, 1024, LLAMA) if on_gpu else (4, 2, 32, TINY)
    device, dtype = torch.device("cuda" if on_gpu else "cpu"), torch.bfloat16 if on_gpu else torch.float32
    batches = text(steps, batch, length, sizes["vocab_size"]).to(device)
    curves = {"eager": curve("eager", sizes, batches, 0, dtype), fast: curve(fast, sizes, batches, 0, dtype)}
    for order in (1, 2, 3):
        curves[f"order {order}"] = curve("eager", sizes, batches, order, dtype)
    print("==== curve")
    print(f"{'step':>4}" + "".join(f"{name:>17}" for name in curves))
    for step in sorted({0, 1, *range(4, steps, 5), steps - 1}):
        print(f"{step + 1:4}" + "".join(f"{losses[step]:17.4f}" for losses in curves.values()))
    print("==== distances")
    print(f"{'':24}{'largest':>10}{'root mean square':>20}   from eager's curve")
    plain = torch.tensor(curves.pop("eager"))
    for name, losses in curves.items():
        apart = (torch.tensor(losses) - plain).abs()
        print(f"{name:24}{apart.max():10.4f}{apart.square().mean().sqrt():20.4f}")


if __name__ == "__main__":
    main()
