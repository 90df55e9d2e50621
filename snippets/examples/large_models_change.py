"""What can be done to save memory, by name, and which of it this machine can do."""

from dataclasses import dataclass, replace
from importlib.util import find_spec

import torch

# --8<-- [start:change]
STATES = {"fp32": 8.0, "bf16": 4.0, "8 bit": 2 * (1 + 4 / 256), "CPU": 0.0}  # bytes a parameter; 8 bit: a scale for 256


@dataclass(frozen=True)
class Change:
    """What is done to save memory; as it comes, nothing."""

    repeat: str = ""  # what backward computes again: "blocks", or "cheap": all but matmuls and attention
    budget: float | None = None  # blocks compiled, with this activation_memory_budget
    rows: int = 0  # of logits that exist at once; 0: all
    fused: bool = False  # the loss computes its gradients with itself, from bf16 logits of a quarter of the rows
    states: str = "fp32"
    release: bool = False  # each gradient is used up as soon as it is there
    cache: bool = True  # autocast's: until the forward ends, it holds the bf16 copy of each weight
    offload: bool = False  # what blocks keep for backward waits in the CPU's memory

    def __post_init__(self) -> None:
        if self.states not in STATES:
            raise ValueError(f"states: expected one of {', '.join(STATES)}, got {self.states!r}")
        if self.repeat not in ("", "blocks", "cheap"):
            raise ValueError(f"repeat: expected '', 'blocks' or 'cheap', got {self.repeat!r}")
        if self.rows < 0:
            raise ValueError(f"rows: expected 0 or more, got {self.rows}")
        if self.fused and self.rows:
            raise ValueError(f"fused: expected no rows beside it, since this loss chooses its own, got {self.rows}")
        if self.budget is not None and (self.repeat or self.offload):
            raise ValueError("budget: expected no repeat and no offload beside it, since the compiler decides")


# --8<-- [end:change]

EACH: dict[str, Change] = {
    "as it comes": Change(),
    "blocks checkpointed": Change(repeat="blocks"),
    "selective checkpoints": Change(repeat="cheap"),
    "blocks compiled": Change(budget=1.0),
    "compiled, budget 0.9": Change(budget=0.9),
    "loss in chunks": Change(rows=1024),
    "loss fused": Change(fused=True),
    "bf16 states": Change(states="bf16"),
    "8-bit states": Change(states="8 bit"),
    "states on the CPU": Change(states="CPU"),
    "activations on the CPU": Change(offload=True),
    "gradients released": Change(release=True),
    "checkpoints, chunks": (lean := Change(repeat="blocks", rows=1024)),
    "and no autocast cache": (lean := replace(lean, cache=False)),
    "and gradients released": (lean := replace(lean, release=True)),
    "and 8-bit states": (lean := replace(lean, states="8 bit")),
    "and inputs on the CPU": replace(lean, offload=True),
}

NO_TORCHAO = "8-bit states: torchao is missing, bf16 states take their place. Install it: pip install torchao"


def on_gpu_only(change: Change) -> bool:
    return change.budget is not None or change.offload or change.fused or change.states in ("8 bit", "CPU")


def can_8_bit() -> bool:
    """Its optimizer is compiled, which a CPU run leaves out."""
    return torch.cuda.is_available() and find_spec("torchao") is not None


def available(change: Change) -> Change:
    return replace(change, states="bf16") if change.states == "8 bit" and not can_8_bit() else change
