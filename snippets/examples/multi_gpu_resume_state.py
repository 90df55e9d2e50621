"""A checkpoint for any number of ranks, and steps of training that it interrupts."""

import copy
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from snippets.examples.multi_gpu_resume_data import BATCH, Batches


def made(device: torch.device) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 8)).to(device)
    if dist.is_initialized():
        mesh = init_device_mesh(device.type, (dist.get_world_size(),))
        for part in (model[0], model[2], model):
            fully_shard(part, mesh=mesh)
    return model, torch.optim.AdamW(model.parameters(), lr=0.01)


# --8<-- [start:save]
def state_of(model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> dict:
    weights, moments = get_state_dict(model, optimizer)  # names instead of numbers, shards stay shards
    return {"model": weights, "optimizer": moments, "step": torch.tensor(step)}


def load(model: nn.Module, optimizer: torch.optim.Optimizer, path: Path) -> int:
    """Read a checkpoint of any number of ranks into this one's shards; the answer is the step to go on with."""
    state = state_of(model, optimizer, 0)
    dcp.load(state, checkpoint_id=path)
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    return int(state["step"])


# --8<-- [end:save]


def trained(model: nn.Module, optimizer: torch.optim.Optimizer, first: int, last: int, device: torch.device) -> list:
    """Losses of steps `first` to `last`, over all ranks."""
    ranks, rank = dist.get_world_size(), dist.get_rank()
    x = torch.randn(64, 16, generator=torch.Generator().manual_seed(1)).to(device)
    batches = Batches(len(x), BATCH, rank, ranks)
    batches.start_at(first)
    losses = []
    for mine in islice(batches, last - first):
        optimizer.zero_grad()
        loss = (model(x[mine]) - x[mine, :8]).square().mean()
        loss.backward()
        optimizer.step()
        whole = loss.detach().clone()
        dist.all_reduce(whole)
        losses.append(whole.item() / ranks)
    return losses


def full(model: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[dict, dict]:
    """Whole tensors on rank 0; copies, which further steps leave alone."""
    whole = StateDictOptions(full_state_dict=True, cpu_offload=True)
    return copy.deepcopy(get_state_dict(model, optimizer, options=whole))


def same(found: Any, expected: Any) -> bool:
    """Equal, bit for bit, in every tensor of nested dictionaries."""
    if isinstance(expected, dict):
        return found.keys() == expected.keys() and all(same(found[name], each) for name, each in expected.items())
    return torch.equal(found, expected) if isinstance(expected, Tensor) else found == expected
