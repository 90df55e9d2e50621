"""A diary of 500 calls whose lengths vary: graphs, stalls and seconds for five ways to compile one block.

Run `python -m snippets.compiler.recompilation_diary`. On a CPU the calls are captured and not compiled any further, so
that it takes seconds: the counts are those of a GPU, the stalls are not.
"""

import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import torch
from torch._inductor.utils import fresh_cache
from torch.fx.experimental.symbolic_shapes import ConstraintViolationError

from snippets.compiler.recompilation_counter import Counter, said
from snippets.compiler.recompilation_strategies import STRATEGIES, Weights, block, bucket, make_weights, prompt_lengths
from snippets.validation.timing import synchronize


# --8<-- [start:diary]
@dataclass
class Diary:
    """What calls took, in seconds, by what they did."""

    graphs: int = 0
    stalled: list[float] = field(default_factory=list)
    ran: list[float] = field(default_factory=list)
    eager: list[float] = field(default_factory=list)

    @property
    def total(self) -> float:
        return sum(self.stalled + self.ran + self.eager)


def keep_diary(strategy: str, lengths: list[int], weights: Weights, batch: int, backend: str) -> Diary:
    """Make one call for each length, cold, and note for each how long it took and what it did."""
    function, call, options = STRATEGIES[strategy]
    counter, diary, device = Counter(backend), Diary(), weights.out.device
    torch.compiler.reset()
    compiled = torch.compile(function, backend=counter, **options)
    with fresh_cache(), torch.inference_mode(), said():
        for length in lengths:
            x = torch.randn(batch, length, len(weights.out), device=device, dtype=weights.out.dtype)
            graphs, ran = counter.compiled, counter.ran
            synchronize(device)
            began = time.perf_counter()
            call(compiled, x, weights)
            synchronize(device)
            seconds = time.perf_counter() - began
            did = diary.stalled if counter.compiled > graphs else diary.ran if counter.ran > ran else diary.eager
            did.append(seconds)
    diary.graphs = counter.compiled
    return diary


# --8<-- [end:diary]


def line(strategy: str, diary: Diary) -> str:
    """A row of the diary's table."""
    usual = statistics.median(diary.ran + diary.eager) * 1e3
    return (
        f"{strategy:<10} {diary.graphs:>6} {len(diary.stalled):>6} {len(diary.eager):>8} {sum(diary.stalled):>9.2f} s "
        f"{max(diary.stalled):>8.2f} s {usual:>8.3f} ms {diary.total:>7.2f} s"
    )


def head() -> str:
    return (
        f"{'strategy':<10} {'graphs':>6} {'stalls':>6} {'eagerly':>8} {'stalled':>11} {'longest':>10} "
        f"{'other call':>11} {'total':>9}"
    )


# --8<-- [start:exercises]
def entries_needed(lengths: Iterable[int], bucket: Callable[[int], int]) -> int:
    """How many graphs a static strategy needs: one for each size that reaches the compiler."""
    return len({bucket(length) for length in lengths})


def run_eagerly(lengths: Iterable[int], bucket: Callable[[int], int], limit: int) -> int:
    """How many calls find neither a graph nor room for one: the first `limit` sizes to come have the graphs."""
    compiled: set[int] = set()
    eager = 0
    for size in map(bucket, lengths):
        if size not in compiled and len(compiled) == limit:
            eager += 1
        else:
            compiled.add(size)
    return eager


# --8<-- [end:exercises]


def multiple_of_64(length: int) -> int:
    return -(-length // 64) * 64


def main() -> None:
    """Keep the diary under each strategy."""
    gpu = torch.cuda.is_available()
    device, dtype, backend = ("cuda", torch.bfloat16, "inductor") if gpu else ("cpu", torch.float32, "eager")
    if not gpu:
        torch.set_num_threads(1)
    width, batch = (4096, 8) if gpu else (64, 1)
    lengths = prompt_lengths(500)

    print("==== lengths")
    ordered = sorted(lengths)
    print(f"calls {len(lengths)}, distinct lengths {len(set(lengths))}")
    print(f"shortest {ordered[0]}, median {ordered[len(ordered) // 2]}, longest {ordered[-1]}")
    print(f"tokens {sum(lengths)}, padded to powers of two {sum(map(bucket, lengths))}")

    print("==== diary")
    print(head())
    torch.manual_seed(0)
    weights = make_weights(width, torch.device(device), dtype)
    with torch.inference_mode():
        torch.compile(block, backend=backend)(torch.randn(1, 3, width, device=device, dtype=dtype), weights)  # imports
    diaries: dict[str, Diary] = {}
    for name in STRATEGIES:
        try:
            diaries[name] = keep_diary(name, lengths, weights, batch, backend)
            print(line(name, diaries[name]), flush=True)
        except (torch._dynamo.exc.TorchDynamoException, ConstraintViolationError) as error:
            print(f"{name:<10} refused: {str(error).splitlines()[0]}", flush=True)

    print("==== exercises")
    static = diaries["static"]
    distinct = entries_needed(lengths, lambda length: length)
    each = sum(static.stalled) / len(static.stalled)
    print(f"static without a limit: {distinct} graphs at {each:.2f} s each, {distinct * each:.1f} s of stalls")
    for name, rule in (("powers of two", bucket), ("multiples of 64", multiple_of_64)):
        needed, eager = entries_needed(lengths, rule), run_eagerly(lengths, rule, limit=8)
        tokens = sum(map(rule, lengths))
        print(f"{name:<16} graphs needed: {needed:>2}   calls run eagerly: {eager:>3}   tokens {tokens}")


if __name__ == "__main__":
    main()
