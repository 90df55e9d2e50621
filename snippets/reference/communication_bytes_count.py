"""The bytes that leave a rank, counted by operation while a step runs."""

from collections import Counter

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

from snippets.reference.communication import sent


# --8<-- [start:count]
class Sent(TorchDispatchMode):
    """`with Sent() as found: step()`: then `found.bytes` has what left this rank, by operation."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes: Counter[str] = Counter()

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        if op.namespace in ("c10d", "_c10d_functional"):
            self.count(op._schema.name.partition("::")[2], args)
        return op(*args, **(kwargs or {}))

    def count(self, name: str, args: tuple) -> None:
        if name.startswith(("allreduce", "all_reduce")):
            tensors = args[0] if isinstance(args[0], list) else [args[0]]
            self.add("all-reduce", sum(x.nbytes for x in tensors), ranks_of(args))
        elif name.startswith(("_allgather_base", "all_gather_into")):
            ranks = ranks_of(args)
            self.add("all-gather", args[1 if name[0] == "_" else 0].nbytes * ranks, ranks)
        elif name.startswith(("_reduce_scatter_base", "reduce_scatter_tensor")):
            self.add("reduce-scatter", args[1 if name[0] == "_" else 0].nbytes, ranks_of(args))
        elif name.startswith("broadcast"):
            self.add("broadcast", args[0][0].nbytes, ranks_of(args))
        elif name in ("alltoall_base_", "all_to_all_single"):
            whole, splits = (args[1], args[4]) if name[-1] == "_" else (args[0], args[2])
            kept = splits[dist.get_rank()] / sum(splits) if splits else 1 / ranks_of(args)  # the part that stays here
            self.bytes["all-to-all"] += round(whole.nbytes * (1 - kept))
        elif name == "send":
            self.add("send/recv", args[0][0].nbytes, 2)
        elif name not in ("wait_tensor", "_wrap_tensor_autograd", "recv_", "barrier"):
            raise NotImplementedError(f"expected a collective that this mode counts, got {name}")

    def add(self, operation: str, nbytes: int, ranks: int) -> None:
        self.bytes[operation] += round(sent(operation, nbytes, ranks))


def ranks_of(args: tuple) -> int:
    """The size of the group among a collective's arguments, which have it as an object or by name."""
    for each in args:
        if isinstance(each, torch.ScriptObject) and "ProcessGroup" in str(each._type()):
            return dist.ProcessGroup.unbox(each).size()
    return dist.distributed_c10d._resolve_process_group(args[-1]).size()


# --8<-- [end:count]
