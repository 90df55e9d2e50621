"""Seven programs, each slow for one reason, and each mended: can the diagnosis tell them apart, and what was it worth?

Run `python -m snippets.validation.diagnosis_programs` to see it for the machine at hand.
"""

import itertools
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from snippets.validation.diagnosis import Ceilings, Diagnosis, diagnose, read, record
from snippets.validation.roofline import bandwidth, matrix_rate
from snippets.validation.timing import Call, captured, measure, seconds_of


@dataclass(frozen=True)
class Program:
    """A step before and after its mend.

    Attributes:
        cause: what the diagnosis has to say of `before`.
        before, after: given a device, prepare and return the step.
        only_on_gpu: without a GPU there is nothing to see.
        each_call_differs: each call of the step costs anew, so few are made.
    """

    cause: str
    before: Callable[[torch.device], Call]
    after: Callable[[torch.device], Call]
    only_on_gpu: bool = False
    each_call_differs: bool = False


# --8<-- [start:launching]
def many_small(x: Tensor) -> Tensor:
    """A deep and narrow network: 200 launches, and no kernel has much to do."""
    for _ in range(100):
        x = (x + 1.0).tanh()
    return x


def launched(device: torch.device) -> Call:
    return partial(many_small, torch.zeros(512, 512, device=device))


def recorded(device: torch.device) -> Call:
    """The same launches, recorded once: replayed with one."""
    return captured(launched(device))


# --8<-- [end:launching]


# --8<-- [start:memory]
def gelu_by_hand(x: Tensor) -> Tensor:
    """Nine operations, each of which reads the whole tensor and writes it again."""
    return 0.5 * x * (1 + torch.tanh(0.7978845608 * (x + 0.044715 * x * x * x)))


def activations(device: torch.device) -> Tensor:
    on_gpu = device.type == "cuda"
    return torch.randn(2**27 if on_gpu else 2**20, device=device).to(torch.bfloat16 if on_gpu else torch.float32)


def unfused(device: torch.device) -> Call:
    return partial(gelu_by_hand, activations(device))


def fused(device: torch.device) -> Call:
    return partial(torch.compile(gelu_by_hand), activations(device))


# --8<-- [end:memory]


# --8<-- [start:matrix]
def layers(x: Tensor, weights: list[Tensor]) -> Tensor:
    """Products and nothing else."""
    for weight in weights:
        x = x @ weight
    return x


def inputs(device: torch.device, dtype: torch.dtype) -> tuple[Tensor, list[Tensor]]:
    size = 4096 if device.type == "cuda" else 256
    x, *weights = (torch.randn(size, size, device=device).div(size**0.5).to(dtype) for _ in range(5))
    return x, weights


def in_float32(device: torch.device) -> Call:
    """PyTorch's default: fp32 products, which leave the tensor cores idle."""
    return partial(layers, *inputs(device, torch.float32))


def in_bfloat16(device: torch.device) -> Call:
    return partial(layers, *inputs(device, torch.bfloat16))


# --8<-- [end:matrix]


# --8<-- [start:loading]
class Photos(Dataset):
    """Stands for files that have to be decoded: about a millisecond of the processor's time for each."""

    def __len__(self) -> int:
        return 2**20

    def __getitem__(self, index: int) -> Tensor:
        decoded = sum(number * number for number in range(10_000)) % 7
        return torch.full((4096,), float(index % 5 + decoded))


def training(device: torch.device, loader: DataLoader) -> Call:
    """A step that takes the next batch and does some products with it."""
    batches = itertools.chain.from_iterable(itertools.repeat(loader))
    weights = [torch.randn(4096, 4096 if device.type == "cuda" else 64, device=device) / 64]
    return lambda: layers(next(batches).to(device), weights)


def loaded_here(device: torch.device) -> Call:
    """The default: the process that launches kernels also decodes."""
    return training(device, DataLoader(Photos(), batch_size=16))


def loaded_ahead(device: torch.device) -> Call:
    """Other processes decode the next batches meanwhile."""
    workers = 8 if device.type == "cuda" else 2
    return training(device, DataLoader(Photos(), batch_size=16, num_workers=workers, persistent_workers=True))


# --8<-- [end:loading]


# --8<-- [start:copying]
def images(pinned: bool) -> Tensor:
    return torch.zeros(64, 3, 512, 512, dtype=torch.float32 if not pinned else torch.uint8, pin_memory=pinned)


def brightness(batch: Tensor) -> Tensor:
    return batch.float().mean(dim=(1, 2, 3))


def from_pageable(device: torch.device) -> Call:
    """Floats from ordinary memory: the driver first copies them to memory that it may send from."""
    batch = images(pinned=False)
    return lambda: brightness(batch.to(device))


def from_pinned(device: torch.device) -> Call:
    """Bytes, as they came from the file, from memory that the GPU reads by itself."""
    batch = images(pinned=True)
    return lambda: brightness(batch.to(device, non_blocking=True))


# --8<-- [end:copying]


# --8<-- [start:waiting]
def optimizer_like(small: Tensor) -> Tensor:
    """Many short launches after the long kernels, as an optimizer that is not fused has."""
    for _ in range(100):
        small = small * 0.999 + 0.001
    return small


def logged(device: torch.device, every: int) -> Call:
    """A step that looks at its loss: in each step, or once in so many."""
    x, weights = inputs(device, torch.bfloat16)
    weights = 2 * weights
    small, losses, calls = torch.zeros(2**16, device=device), [], itertools.count(1)

    def step() -> Tensor:
        loss = layers(x, weights).float().square().mean()
        losses.append(loss.detach())
        if next(calls) % every == 0:
            print_to_nowhere(torch.stack(losses).mean().item())  # waits until the GPU is done
            losses.clear()
        return optimizer_like(small)

    return step


def print_to_nowhere(number: float) -> None:
    """Where a program would log."""


# --8<-- [end:waiting]


# --8<-- [start:compiling]
def scores(x: Tensor) -> Tensor:
    return torch.softmax(x * 0.125, dim=-1).sum(dim=0)


def lengths(device: torch.device) -> Iterator[Tensor]:
    """Batches as long as their longest sentence: each another size."""
    for length in itertools.count(64):
        yield torch.randn(length, 256, device=device)


def one_graph_each(device: torch.device) -> Call:
    compiled, batches = torch.compile(lambda batch: scores(batch), dynamic=False), lengths(device)
    return lambda: compiled(next(batches))


def one_graph_for_all(device: torch.device) -> Call:
    compiled, batches = torch.compile(lambda batch: scores(batch)), lengths(device)

    def step() -> Tensor:
        batch = next(batches)
        torch._dynamo.mark_dynamic(batch, 0)
        return compiled(batch)

    return step


# --8<-- [end:compiling]


PROGRAMS = (
    Program("launching", launched, recorded, only_on_gpu=True),
    Program("memory", unfused, fused),
    Program("matrix", in_float32, in_bfloat16),
    Program("loading", loaded_here, loaded_ahead),
    Program("copying", from_pageable, from_pinned, only_on_gpu=True),
    Program("waiting", partial(logged, every=1), partial(logged, every=50), only_on_gpu=True),
    Program("compiling", one_graph_each, one_graph_for_all, each_call_differs=True),
)


# --8<-- [start:examine]
def examine(step: Call, ceilings: Ceilings, few: bool) -> Diagnosis:
    """Profile a step and say where its time went. The trace is not kept."""
    with tempfile.TemporaryDirectory() as folder:
        path = record(step, Path(folder) / "trace.json", *((2, 1) if few else (5, 3)))
        return diagnose(read(path), ceilings)


def ceilings_of(device: torch.device) -> Ceilings:
    """What this machine can do at most, measured."""
    on_gpu = device.type == "cuda"
    memory = bandwidth(device, 2**28 if on_gpu else 2**22)["copy"].rate
    dtypes = (torch.float32, torch.bfloat16) if on_gpu else (torch.float32,)
    rates = {
        str(dtype)[6:]: max(ceiling.rate for ceiling in matrix_rate(device, 4096 if on_gpu else 512, dtype).values())
        for dtype in dtypes
    }
    return Ceilings(memory, rates)


# --8<-- [end:examine]


def gain(program: Program, before: Call, after: Call, device: torch.device) -> tuple[float, float]:
    """Seconds of a step before and after, by the wall clock."""
    if program.each_call_differs:  # a second round would find what the first has compiled
        return seconds_of(before, device, 2) / 2, seconds_of(after, device, 2) / 2
    found = measure({"before": before, "after": after}, device, "calls", rounds=7, patience=3.0)
    return found["before"].p50, found["after"].p50


def main() -> None:
    """Diagnose each program before and after, and print what the mend gained."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    ceilings = ceilings_of(device)
    table = []
    for program in PROGRAMS:
        if program.only_on_gpu and device.type == "cpu":
            table.append(f"{program.cause:10} not on a CPU: there is nothing to launch, to copy to or to wait for")
            continue
        before, after = program.before(device), program.after(device)
        first, second = (examine(step, ceilings, program.each_call_differs) for step in (before, after))
        print(f"==== {program.cause}\n{first}")
        slow, fast = gain(program, before, after, device)
        print(f"==== {program.cause}, mended\n{second}")
        table.append(
            f"{program.cause:10} {first.cause:10} {slow * 1e3:10.3f} ms  {fast * 1e3:10.3f} ms  "
            f"{slow / fast:8.2f} x  then {second.cause}"
        )
    print("==== gains")
    print(f"{'slow by':10} {'diagnosed':10} {'before':>13}  {'mended':>13}  {'gain':>10}")
    print("\n".join(table))


if __name__ == "__main__":
    main()
