"""A training step of three layers in five forms: eager, compiled, as CUDA graphs, and large with and without a wait."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.profiler import record_function

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
ON_GPU = DEVICE.type == "cuda"


# --8<-- [start:training]
class Training:
    """A step of three layers: forward, backward, perhaps a look at the loss, optimizer."""

    def __init__(self, width: int, rows: int, compiled: Callable = lambda function: function, look: bool = False):
        dtype = torch.bfloat16 if ON_GPU else torch.float32
        layers = [nn.Linear(width, width), nn.GELU(), nn.Linear(width, width), nn.GELU(), nn.Linear(width, width)]
        self.model = nn.Sequential(*layers).to(DEVICE, dtype)
        self.x = torch.randn(rows, width, device=DEVICE, dtype=dtype)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), fused=True)
        self.loss = compiled(self.loss_of)
        self.look, self.seen = look, 0.0

    def loss_of(self, x: Tensor) -> Tensor:
        return self.model(x).float().square().mean()

    def __call__(self) -> None:
        with record_function("forward"):
            loss = self.loss(self.x)
        with record_function("backward"):
            loss.backward()
        if self.look:
            with record_function("log"):
                self.seen = loss.item()  # the host waits here until the GPU is done
        with record_function("optimizer"):
            self.optimizer.step()
            self.optimizer.zero_grad()


# --8<-- [end:training]
def compiled(function: Callable) -> Callable:
    """Without a GPU the regions are there all the same, and nothing has to be built."""
    return torch.compile(function) if ON_GPU else torch.compile(function, backend="aot_eager")


def replayed(function: Callable) -> Callable:
    return torch.compile(function, mode="reduce-overhead")


SMALL, LARGE = ((1024, 512), (2048, 16384)) if ON_GPU else ((64, 16), (256, 256))  # width, rows


def programs() -> dict[str, Training]:
    """The five forms; without a GPU those that differ there."""
    found = {"eager": Training(*SMALL), "compiled": Training(*SMALL, compiled)}
    if ON_GPU:
        found["graph"] = Training(*SMALL, replayed)
        found["ahead"] = Training(*LARGE)
        found["waiting"] = Training(*LARGE, look=True)
    return found
