"""Two byte models, trained for seconds on the text of Python's standard library."""

import math
import sys
import sysconfig
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from snippets.examples.generation import LLAMA_1B, TINY, make_model

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
Sizes = Mapping[str, float]


@dataclass(frozen=True)
class Plan:
    """What a device can do in its time."""

    target: Sizes
    draft: Sizes
    seconds: tuple[float, float]  # of training
    batch: int
    context: int  # bytes
    prompts: int
    prompt: int  # bytes of each
    new: int


TARGET = LLAMA_1B | {
    "hidden_size": 1024,
    "num_hidden_layers": 8,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "intermediate_size": 2816,
    "vocab_size": 256,
    "tie_word_embeddings": False,
}
DRAFT = TARGET | {
    "hidden_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "intermediate_size": 1408,
}
PLANS = {
    "cuda": Plan(TARGET, DRAFT, (20.0, 10.0), batch=16, context=1024, prompts=16, prompt=256, new=256),
    "cpu": Plan(TINY, TINY | {"num_hidden_layers": 1}, (1.0, 0.5), batch=8, context=64, prompts=2, prompt=32, new=24),
}


def texts() -> tuple[bytes, list[bytes]]:
    """What to train on; and every 20th file, which no model sees."""
    root = Path(sysconfig.get_paths()["stdlib"])
    without = {"site-packages", "dist-packages", "test", "tests", "idlelib"}
    files = sorted(path for path in root.rglob("*.py") if not without & {*path.relative_to(root).parts})
    read = [path.read_bytes() for path in files]
    return b"".join(text for at, text in enumerate(read) if at % 20), read[::20]


# --8<-- [start:train]
def trained(sizes: Sizes, text: bytes, plan: Plan, limit: float) -> tuple[nn.Module, int]:
    """A model after `limit` seconds of training, and the number of steps."""
    model = make_model(sizes, DEVICE, torch.float32).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    data = torch.frombuffer(bytearray(text), dtype=torch.uint8).to(DEVICE)
    ahead, steps, start = torch.arange(plan.context, device=DEVICE), 0, math.inf
    while (done := max(0.0, time.perf_counter() - start) / limit) < 1:
        optimizer.param_groups[0]["lr"] = 1e-3 * min(1, 20 * done) * (1 - done)
        tokens = data[torch.randint(len(data) - plan.context, (plan.batch, 1), device=DEVICE) + ahead].long()
        with torch.autocast(DEVICE.type, torch.bfloat16, enabled=DEVICE.type == "cuda"):
            loss = model(tokens, labels=tokens, use_cache=False).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        shown = loss.item() / math.log(2)  # waits for the GPU
        start = min(start, time.perf_counter())  # the first step warms up, with a learning rate of 0
        steps += 1
        if steps % 100 == 1:
            print(f"step {steps}: {shown:.2f} bits per byte", file=sys.stderr, flush=True)
    return model, steps


# --8<-- [end:train]


def copied(model: nn.Module, sizes: Sizes, dtype: torch.dtype) -> nn.Module:
    """The same weights in another dtype; RoPE's frequencies stay fp32."""
    made = make_model(sizes, DEVICE, dtype)
    made.load_state_dict(model.state_dict())
    return made


def held_out(files: list[bytes], count: int, length: int) -> Tensor:
    """(count, length) bytes: from the middle of each file that is long enough, one after the other."""
    middles = [text[len(text) // 2 :][:length] for text in files if len(text) >= 2 * length]
    if len(middles) < count:
        raise ValueError(f"held-out files: expected {count} of {2 * length} bytes or more, got {len(middles)}")
    return torch.tensor([list(middle) for middle in middles[:count]], device=DEVICE)


@torch.no_grad()
def bits(model: nn.Module, tokens: Tensor) -> float:
    """Bits per byte of text that no model saw."""
    return sum(model(each[None], labels=each[None]).loss.item() for each in tokens) / len(tokens) / math.log(2)
