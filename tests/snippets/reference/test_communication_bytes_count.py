"""What is counted of DDP is what its own hook sees."""

from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from snippets.reference import communication_bytes as snippet
from snippets.reference.communication import sent
from snippets.reference.communication_bytes_count import Sent
from snippets.reference.communication_bytes_steps import make_model, numbers, trains
from tests.snippets.reference.ranks import on_ranks


def hooked() -> list[int]:
    """Bytes of DDP's buckets, what was counted as sent, and the model's parameters."""
    model = DistributedDataParallel(make_model())
    seen = []

    def hook(_: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        seen.append(bucket.buffer().nbytes)
        return dist.all_reduce(bucket.buffer(), async_op=True).get_future().then(lambda done: done.value()[0])

    model.register_comm_hook(None, hook)
    with Sent() as found:
        trains(model)()
    return [sum(seen), found.bytes["all-reduce"], numbers(model)]


def test_ddp_s_hook_agrees(tmp_path: Path) -> None:
    buckets, counted, parameters = on_ranks(hooked, 2, tmp_path)[0]
    assert counted == sent("all-reduce", buckets, 2) == snippet.ddp(parameters, 2)["all-reduce"]
