"""Stop and go on with several ranks: a checkpoint for any number of ranks, and data that continues where it stopped.

`python -m snippets.examples.multi_gpu_resume` starts its ranks itself: with NCCL where each rank has a GPU, else with
gloo on CPUs.
"""

import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    get_model_state_dict,
)

from snippets.examples.multi_gpu_failures import shown
from snippets.examples.multi_gpu_failures_group import Group, outputs, say
from snippets.examples.multi_gpu_resume_data import distributed_sampler, resumed, seeds
from snippets.examples.multi_gpu_resume_state import full, load, made, same, state_of, trained

SAVED, LAST = 3, 6  # steps


# --8<-- [start:plain]
def load_plain(model: nn.Module, path: Path) -> None:
    """Read the weights alone into a model that is not sharded, in one process without a group."""
    state = {"model": get_model_state_dict(model)}
    dcp.load(state, checkpoint_id=path)
    model.load_state_dict(state["model"])


# --8<-- [end:plain]


def save(folder: Path, rank: int, device: torch.device) -> None:
    """Train, save both ways, and go on; what other numbers of ranks must reach is written beside."""
    model, optimizer = made(device)
    trained(model, optimizer, 0, SAVED, device)
    state, start = state_of(model, optimizer, SAVED), time.perf_counter()
    dcp.save(state, checkpoint_id=folder / "saved")
    whole = time.perf_counter() - start
    start = time.perf_counter()
    # A group of its own: its collectives run in a thread, beside those of the next steps.
    future = dcp.async_save(state, checkpoint_id=folder / "async", process_group=dist.new_group(backend="gloo"))
    returned = time.perf_counter() - start
    weights, moments = full(model, optimizer)
    losses = trained(model, optimizer, SAVED, LAST, device)  # while the checkpoint is written
    future.result()
    if rank == 0:
        say(f"save {whole * 1e3:.0f} ms; async_save returns after {returned * 1e3:.0f} ms")
        torch.save({"weights": weights, "moments": moments, "losses": losses}, folder / "expected.pt")


def resume(folder: Path, kind: str, rank: int, device: torch.device) -> None:
    model, optimizer = made(device)
    step = load(model, optimizer, folder / kind)
    weights, moments = full(model, optimizer)
    losses = trained(model, optimizer, step, LAST, device)
    if rank == 0:
        expected = torch.load(folder / "expected.pt")
        apart = max(abs(a / b - 1) for a, b in zip(losses, expected["losses"], strict=True))
        answers = [same(weights, expected["weights"]), same(moments["state"], expected["moments"]["state"])]
        say(f"{kind}, loaded on {dist.get_world_size()}, step {step}: equal weights {answers[0]}, AdamW {answers[1]}")
        say(f"largest relative difference of a later loss {apart:.0e}")


def checkpoints(folder: Path) -> None:
    def group(case: Callable, ranks: int, name: str) -> list[str]:
        print(f"{name} ...", file=sys.stderr, flush=True)
        return outputs([Group(case, folder / name, ranks=ranks, limit=20).begin()])[0]

    print("==== saved")
    shown(group(partial(save, folder), 2, "save"))
    for path in sorted((folder / "saved").iterdir()):
        print(f"{path.name}: {path.stat().st_size / 1e3:.1f} KB")
    print("==== loaded")
    for kind, ranks in (("saved", 1), ("saved", 4), ("async", 4)):
        shown(group(partial(resume, folder, kind), ranks, f"{kind} on {ranks}"))
    model, _ = made(torch.device("cpu"))
    load_plain(model, folder / "saved")
    expected = torch.load(folder / "expected.pt")["weights"]
    print(f"saved, loaded without a group: weights equal {same(dict(model.state_dict()), expected)}")


def main() -> None:
    for case in (distributed_sampler, seeds, resumed):
        print(f"==== {case.__name__.replace('_', ' ')}")
        case()
    with tempfile.TemporaryDirectory() as name:
        checkpoints(Path(name))


if __name__ == "__main__":
    main()
