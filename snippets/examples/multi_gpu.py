"""Two GPUs and more: what each strategy moves, how long the step waits for it, and the memory, predicted and measured.

It needs transformers (5.17). `python -m snippets.examples.multi_gpu` starts torchrun itself, on all GPUs, or with gloo
on two CPU processes and a tiny model. Predictions for n GPUs come from the same program on one GPU and from the
links' bandwidth, both measured in the same run.
"""

import json
import os
import sys
from collections.abc import Mapping
from functools import partial

from snippets.examples.multi_gpu_bytes import EAGER, STRATEGIES
from snippets.examples.multi_gpu_measured import add, measured, names_for, say_parts, say_rates, say_runs, unknown
from snippets.examples.multi_gpu_predict import pair, predict, say_bytes, say_memory, say_times
from snippets.examples.multi_gpu_ranks import (
    GIB,
    GPU,
    among_ranks,
    tell,
    told,
)
from snippets.reference.communication import OPERATIONS, Rates, sent, worlds

# --8<-- [start:scale]
NVLINK = 450e9  # bytes/s in each direction: NVIDIA H100 datasheet, 900 GB/s both ways
NETWORK = 8 * 400e9 / 8  # DGX H100 user guide: eight 400 Gb/s adapters for eight GPUs


def scaled(name: str, base: dict, rates: Rates, gpus: int, n: int) -> tuple[float, float]:
    """Bytes that each GPU sends, and the seconds of a step, if links are used as well as here."""
    link = NVLINK if gpus <= 8 else min(NVLINK, NETWORK)
    slower = dict(rates)
    for operation in OPERATIONS[:3]:
        times = sent(operation, 1, gpus) / sent(operation, 1, n) * NVLINK / link
        slower[operation] = {size: took * times for size, took in rates[operation].items()}
    guess = predict(name, base, slower, gpus)
    return sum(sent(*message, gpus) for message in guess["messages"]), guess["step"]


# --8<-- [end:scale]


def say_scale(bases: dict, rates: Rates, n: int) -> None:
    print("==== scale\ncomputed: GB that each GPU sends, ms of a step, share of n times one GPU\n")
    for name in [name for name in ("DDP", "blocks, DDP", "FSDP2", "blocks, FSDP2") if name in bases]:
        cells = []
        for gpus in (2, 8, 64):
            size, took = scaled(name, bases[name], rates, gpus, n)
            cells.append(f"{gpus:3} GPUs {size / 1e9:6.2f} {took * 1e3:7.1f} {bases[name]['step'] / took:5.0%}")
        print(f"{name:20} {'   '.join(cells)}")


def say_more(found: dict[int, dict]) -> None:
    """More GPUs than two, where there are: predicted from one of them, and measured."""
    print("==== more\nGB that each GPU sends, counted; ms of a step, predicted, measured and error; GiB at its peak\n")
    for n, each in found.items():
        for name in [name for name in predictable(found, n) if name in EAGER]:
            run, guess = each["runs"][name], predict(name, found[1]["runs"][name], each["rates"], n)
            size = sum(sent(*message, n) for message in run["messages"]) / 1e9
            step = pair(guess["step"], run["step"], 1e-3)
            print(f"{n} GPUs, {name:20} {size:6.2f} {step} {run['peak'] / GIB:6.1f}")


def predictable(found: dict[int, dict], n: int) -> list[str]:
    """What was measured on n GPUs and, to predict it, on one."""
    return [name for name in found[n]["runs"] if STRATEGIES[name].works and name in found[1]["runs"] and n > 1]


def say_early(found: dict[int, dict]) -> None:
    """Of GPUs: what is complete as soon as two of them have so many runs; they come last."""
    done = len(found[2]["runs"]) + len(found[2]["failed"])
    if not done:
        say_rates(found[2]["rates"], 2)
    elif done == len(EAGER) - 1 and len(found) > 2:
        say_more(found)


def say(found: dict[int, dict]) -> None:
    """All that compares runs, of those that there are."""
    n, bases, (runs, rates) = 2, found[1]["runs"], (found[2]["runs"], found[2]["rates"])
    names = predictable(found, n)
    predictions = {name: predict(name, bases[name], rates, n) for name in names}
    say_bytes(names, runs, predictions, n)
    say_memory(names, runs, predictions)
    if GPU:  # two processes of one CPU take a time that says nothing about two GPUs
        every = {name if name.startswith("one GPU") else f"{name}, on one": run for name, run in bases.items()} | runs
        say_runs(every, n)
        say_times(names, bases, runs, predictions)
        say_parts(every)
        say_scale(bases, rates, n)
        print(f"==== record\n{json.dumps({'rates': rates, 'bases': unsent(bases), 'runs': unsent(runs)})}")
    failed = {f"{name}, {n} GPUs": why for n, each in found.items() for name, why in each["failed"].items()}
    if failed:
        print("==== failed", *(f"{name}: {why}" for name, why in failed.items()), sep="\n")


def unsent(runs: Mapping[str, dict]) -> dict[str, dict]:
    """All that is known of runs but their messages."""
    return {name: {part: value for part, value in run.items() if part != "messages"} for name, run in runs.items()}


def main() -> None:
    """One GPU and two run all strategies, more of them those that need no compiler; CPU processes, too.

    A section is printed when all that it shows is measured. A run that SIGINT cuts off prints what it has.
    """
    if "RANK" in os.environ:
        among_ranks(partial(tell, partial(measured, names_for(int(os.environ["WORLD_SIZE"])))))
        return
    found = {n: unknown() for n in (1, *worlds())}
    try:
        for n in sorted(found, key=lambda n: (n != 1, -n)):  # one predicts the others; two run what is compiled
            for part in told("snippets.examples.multi_gpu", n):
                add(found[n], part)
                if GPU and n == 2:
                    say_early(found)
                    sys.stdout.flush()
    finally:
        say(found)


if __name__ == "__main__":
    main()
