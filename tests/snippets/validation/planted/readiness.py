"""What breaks a graph, compiles again, or cannot stand in a CUDA graph."""

import logging
import math
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

log = logging.getLogger(__name__)


class MLP(nn.Module):
    """Two layers, for the others to build on."""

    def __init__(self, width: int = 64):
        super().__init__()
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x)))


class NaNGuard(MLP):
    def forward(self, x: Tensor) -> Tensor:
        h = F.gelu(self.up(x))
        if torch.isnan(h).any():  # fault: graph-break
            h = torch.nan_to_num(h)
        return self.down(h)


class NaNGuardClean(MLP):
    def forward(self, x: Tensor) -> Tensor:
        h = F.gelu(self.up(x))
        return self.down(torch.nan_to_num(h))


class TemperatureItem(MLP):
    def __init__(self):
        super().__init__()
        self.log_temperature = nn.Parameter(torch.tensor(0.1))

    def forward(self, x: Tensor) -> Tensor:
        scale = math.exp(self.log_temperature.item())  # fault: graph-break
        return super().forward(x) * scale


class TemperatureItemClean(TemperatureItem):
    def forward(self, x: Tensor) -> Tensor:
        return MLP.forward(self, x) * self.log_temperature.exp()


class LogsShape(MLP):
    def forward(self, x: Tensor) -> Tensor:
        h = self.up(x)
        log.warning("hidden has shape %s", tuple(h.shape))  # fault: graph-break
        return self.down(F.gelu(h))


class NumpyHistogram(MLP):
    def forward(self, x: Tensor) -> Tensor:
        h = F.gelu(self.up(x))
        scale = float(np.percentile(h.detach().cpu().numpy(), 99))  # fault: graph-break
        return self.down(h / (scale + 1e-6))


class NumpyHistogramClean(MLP):
    def forward(self, x: Tensor) -> Tensor:
        h = F.gelu(self.up(x))
        scale = h.detach().flatten().quantile(0.99)
        return self.down(h / (scale + 1e-6))


class TimesLayers(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(MLP() for _ in range(2))
        self.seconds = 0.0

    def forward(self, x: Tensor) -> Tensor:
        begin = time.perf_counter()  # fault: graph-break
        for layer in self.layers:
            x = x + layer(x)
        self.seconds = time.perf_counter() - begin
        return x


class TimesLayersClean(TimesLayers):
    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + layer(x)
        return x


class CountsSteps(MLP):
    def __init__(self):
        super().__init__()
        self.steps = 0

    def forward(self, x: Tensor) -> Tensor:
        self.steps += 1  # fault: recompilation
        warm = min(1.0, self.steps / 1000)
        return x + warm * super().forward(x)


class CountsStepsClean(MLP):
    def __init__(self):
        super().__init__()
        self.register_buffer("steps", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.steps += 1
        warm = (self.steps / 1000).clamp(max=1.0)
        return x + warm * super().forward(x)


class LoopsOverBatch(MLP):
    def forward(self, x: Tensor) -> Tensor:
        rows = []
        for index in range(x.shape[0]):  # fault: recompilation
            rows.append(self.down(F.gelu(self.up(x[index]))))
        return torch.stack(rows)


class PositionsOnHost(nn.Module):
    def __init__(self, vocabulary: int = 100, width: int = 64):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(128, width)
        self.head = MLP(width)

    def forward(self, ids: Tensor) -> Tensor:
        positions = torch.arange(ids.shape[1]).to(ids.device)  # fault: cuda-graph
        return self.head(self.tokens(ids) + self.positions(positions))


class PositionsOnHostClean(PositionsOnHost):
    def forward(self, ids: Tensor) -> Tensor:
        positions = torch.arange(ids.shape[1], device=ids.device)
        return self.head(self.tokens(ids) + self.positions(positions))


class ConstantOnHost(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Conv2d(3, 16, 3, padding=1)

    def forward(self, image: Tensor) -> Tensor:
        mean = torch.tensor([0.485, 0.456, 0.406], device=image.device)  # fault: cuda-graph
        return self.body(image - mean[:, None, None])


class ConstantOnHostClean(ConstantOnHost):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.tensor([0.485, 0.456, 0.406]))

    def forward(self, image: Tensor) -> Tensor:
        return self.body(image - self.mean[:, None, None])


class ScalesInput(MLP):
    def forward(self, x: Tensor) -> Tensor:
        x.mul_(0.125)  # fault: cuda-graph
        return super().forward(x)


class ScalesInputClean(MLP):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x * 0.125)


class DropsPadding(MLP):
    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        kept = x[mask]  # fault: sync
        return super().forward(kept).mean(0)


class DropsPaddingClean(MLP):
    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        weight = mask[..., None].to(x.dtype)
        return (super().forward(x) * weight).sum((0, 1)) / weight.sum()


def rows(batch: int = 6, width: int = 64) -> Tensor:
    return torch.randn(batch, width)


def tokens() -> Tensor:
    return torch.randint(0, 100, (4, 12))


CASES = {
    "nan guard": (lambda: (NaNGuard(), rows()), lambda: (NaNGuardClean(), rows())),
    "temperature item": (lambda: (TemperatureItem(), rows()), lambda: (TemperatureItemClean(), rows())),
    "logs shape": (lambda: (LogsShape(), rows()), lambda: (MLP(), rows())),
    "numpy percentile": (lambda: (NumpyHistogram(), rows()), lambda: (NumpyHistogramClean(), rows())),
    "clock": (lambda: (TimesLayers(), rows()), lambda: (TimesLayersClean(), rows())),
    "counts steps": (lambda: (CountsSteps(), rows()), lambda: (CountsStepsClean(), rows())),
    "loops over batch": (lambda: (LoopsOverBatch(), rows()), lambda: (MLP(), rows())),
    "positions on host": (lambda: (PositionsOnHost(), tokens()), lambda: (PositionsOnHostClean(), tokens())),
    "constant on host": (
        lambda: (ConstantOnHost(), torch.randn(2, 3, 16, 16)),
        lambda: (ConstantOnHostClean(), torch.randn(2, 3, 16, 16)),
    ),
    "writes input": (lambda: (ScalesInput(), rows()), lambda: (ScalesInputClean(), rows())),
    "drops padding": (
        lambda: (DropsPadding(), torch.randn(2, 8, 64), torch.arange(16).view(2, 8) % 3 > 0),
        lambda: (DropsPaddingClean(), torch.randn(2, 8, 64), torch.arange(16).view(2, 8) % 3 > 0),
    ),
}
