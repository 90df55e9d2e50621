"""AdamW whose states are bf16, of 8 bits, or in the CPU's memory."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

# --8<-- [start:states]
PIECE = 2**24  # numbers that travel at once


def update(p: Tensor, g: Tensor, m: Tensor, v: Tensor, unbias_m: Tensor, unbias_v: Tensor) -> None:
    """AdamW with the usual numbers of language models; computed in fp32, m and v rounded to their own dtype."""
    m32, v32 = m.float().lerp(g, 1 - 0.9), v.float().lerp(g.square(), 1 - 0.95)
    m.copy_(m32)
    v.copy_(v32)
    p.copy_(p * (1 - LR * 0.1) - LR * (m32 / unbias_m) / ((v32 / unbias_v).sqrt() + 1e-8))


class LeanAdamW:
    """AdamW whose two states are bf16, or fp32 in the CPU's pinned memory, from where pieces come and go."""

    def __init__(self, parameters: Iterable[nn.Parameter], dtype: torch.dtype, on_cpu: bool = False) -> None:
        self.parameters, self.steps = list(parameters), 0
        gpu = self.parameters[0].is_cuda
        self.travels = on_cpu and gpu
        where = {"device": "cpu", "pin_memory": True} if self.travels else {"device": self.parameters[0].device}
        self.state = {p: {name: torch.zeros(p.numel(), dtype=dtype, **where) for name in "mv"} for p in self.parameters}
        self.update = torch.compile(update, dynamic=True) if gpu else update
        if self.travels:
            self.come, self.go = torch.cuda.Stream(), torch.cuda.Stream()
            piece = min(PIECE, max(map(torch.numel, self.parameters)))
            self.room = [[torch.empty(piece, dtype=dtype, device="cuda") for _ in "mv"] for _ in range(3)]
            self.left = [torch.cuda.Event() for _ in self.room]

    @torch.no_grad()
    def step(self) -> None:
        self.steps += 1
        unbias = torch.tensor(1 - 0.9**self.steps), torch.tensor(1 - 0.95**self.steps)
        at = 0
        for p, state in self.state.items():
            if p.grad is None:
                continue
            whole = (p.data.view(-1), p.grad.view(-1), *state.values())
            for pieces in zip(*(each.split(PIECE) for each in whole), strict=True) if self.travels else [whole]:
                if self.travels:
                    self.by_pieces(at % len(self.room), *pieces, unbias)
                    at += 1
                else:
                    self.update(*pieces, *unbias)
        if self.travels:
            self.come.wait_stream(self.go)  # the next step reads what this one writes

    def by_pieces(self, slot: int, p: Tensor, g: Tensor, m: Tensor, v: Tensor, unbias: tuple[Tensor, Tensor]) -> None:
        """Three pieces are on their way at once: one comes, one is updated, one goes."""
        here = [room[: len(p)] for room in self.room[slot]]
        with torch.cuda.stream(self.come):
            self.come.wait_event(self.left[slot])
            for to, source in zip(here, (m, v), strict=True):
                to.copy_(source, non_blocking=True)
        torch.cuda.current_stream().wait_stream(self.come)
        self.update(p, g, *here, *unbias)
        self.go.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.go):
            for to, source in zip((m, v), here, strict=True):
                to.copy_(source, non_blocking=True)
            self.left[slot].record(self.go)

    def zero_grad(self) -> None:
        for p in self.parameters:
            p.grad = None


LR = 1e-4
# --8<-- [end:states]


def optimizer_of(parameters: Iterable[nn.Parameter], states: str) -> torch.optim.Optimizer | LeanAdamW:
    settings = {"lr": LR, "betas": (0.9, 0.95), "weight_decay": 0.1}
    match states:
        case "fp32":
            return torch.optim.AdamW(parameters, fused=True, **settings)
        case "8 bit":
            from torchao.optim import AdamW8bit

            return AdamW8bit(parameters, **settings)
        case _:
            return LeanAdamW(parameters, torch.bfloat16 if states == "bf16" else torch.float32, on_cpu=states == "CPU")
