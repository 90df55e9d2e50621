"""A strategy's step on several GPUs, predicted from the same program on one."""

from collections.abc import Mapping, Sequence
from typing import Any

from snippets.examples.multi_gpu_bytes import STRATEGIES, Shape, ddp_works, tensor_works
from snippets.examples.multi_gpu_ranks import GIB, GPU, MIB
from snippets.examples.multi_gpu_timeline import timeline
from snippets.reference.communication import Rates, seconds, sent


# --8<-- [start:base]
def predict(name: str, base: Mapping[str, Any], rates: Rates, n: int) -> dict:
    """All that a run on n GPUs will take, from the same program on one GPU."""
    strategy, shape = STRATEGIES[name], Shape(**base["shape"])
    tensor, whole = strategy.works is tensor_works, strategy.works is ddp_works
    share = 1 if whole else 1 / n  # of parameters, gradients, state and update that each GPU has
    shape.tokens *= n if tensor else 1  # all GPUs work on the same tokens
    costs = [*map(sum, shape.layers), shape.root]  # matmuls take a time in proportion to their weights
    forward = [base["forward"] * cost / sum(costs) for cost in costs]
    backward = [base["backward"] * cost / sum(costs) for cost in reversed(costs)]
    assert strategy.works
    works = strategy.works(shape, forward, backward)
    messages = [message for work in works for message in (*work.gather, *work.reduce)]
    exposes = timeline(works, rates, overlap=not tensor)
    own, split = base["parameters"] * share, 1 - 1 / n
    held = own if whole else 0  # DDP's buckets stay; other gradients are gone when activations are largest
    rest = base["peak"] - base["parameters"] - base["state"] - held
    if tensor:  # norms are not split; five matmuls of a layer keep gathered inputs, and all keep split weights, in bf16
        own += 4 * shape.width * (2 * len(shape.layers) + 1) * split
        rest += 2 * (shape.tokens * shape.width * (5 * len(shape.layers) + 1) - shape.elements) * split
    return {
        "messages": messages,
        "communication": sum(seconds(*message, rates) for message in messages),
        "exposed": exposes,
        "step": base["forward"] + base["backward"] + base["update"] * share + exposes,
        "parameters": own,
        "gradients": own,
        "state": 2 * own,
        "rest": rest,
        "peak": 3 * own + held + rest,
    }


# --8<-- [end:base]


def error(predicted: float, measured: float) -> str:
    return f"{100 * (predicted / measured - 1):+.0f}%" if measured else "-"


def pair(predicted: float, measured: float, unit: float, digits: int = 1) -> str:
    both = (format(seconds / unit, f"7.{digits}f") for seconds in (predicted, measured))
    return " ".join((*both, error(predicted, measured).rjust(5)))


def say_bytes(names: Sequence[str], runs: dict, predictions: dict, n: int) -> None:
    unit, digits, label = (1e6, 3, "MB") if GPU else (1, 0, "bytes")
    print(f"==== bytes\n{label} that each of {n} processes sends in a step\n")
    print(f"{'':20} {'predicted':>9} {'counted':>9} {'error':>5}   {'messages':>8} {'counted':>8}")
    for name in names:
        both = [sum(sent(*m, n) for m in run[name]["messages"]) for run in (predictions, runs)]
        counts = [len(run[name]["messages"]) for run in (predictions, runs)]
        sizes = " ".join(format(size / unit, f"9.{digits}f") for size in both)
        print(f"{name:20} {sizes} {error(*both):>5}   {counts[0]:8} {counts[1]:8}")


def say_times(names: Sequence[str], bases: dict, runs: dict, predictions: dict) -> None:
    print("==== time\nms of a step on one GPU; on two, predicted, measured and error\n")
    print(f"{'':20} {'one GPU':>7} {'NCCL':^21} {'exposed':^21} {'step':^21}")
    for name in names:
        guess, run = predictions[name], runs[name]
        cells = (pair(guess[part], run[part], 1e-3) for part in ("communication", "exposed", "step"))
        print(f"{name:20} {bases[name]['step'] * 1e3:7.1f} {' '.join(cells)}")


def say_memory(names: Sequence[str], runs: dict, predictions: dict) -> None:
    unit, label = (GIB, "GiB") if GPU else (MIB, "MiB")
    print(f"==== memory\n{label} of one of the GPUs, predicted and measured; the peak with its error\n")
    print(f"{'':20} {'parameters':^13} {'gradients':^13} {'state':^13} {'the rest':^13} {'peak':^22}")
    for name in names:
        run, guess = runs[name], predictions[name]
        held = guess["peak"] - guess["rest"] - guess["parameters"] - guess["state"]
        run["rest"] = run["peak"] - run["parameters"] - run["state"] - held
        shown = ("parameters", "gradients", "state", "rest")[: None if GPU else 3]  # a CPU has no peak to read
        parts = [f"{guess[part] / unit:6.2f} {run[part] / unit:6.2f}" for part in shown]
        print(f"{name:20} {' '.join(parts)} {pair(guess['peak'], run['peak'], unit) if GPU else ''}".rstrip())
