"""The host's time of a generated token, by part of generate() and by cause."""

import time
from collections.abc import Callable
from unittest import mock

import torch
from torch import Tensor, nn
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from snippets.examples.generation import by_library

WAYS: dict[str, dict[str, object]] = {"as it comes": {}, "static cache": {"cache_implementation": "static"}}


def seconds(call: Callable[[], object]) -> float:
    wait = torch.accelerator.synchronize if torch.accelerator.is_available() else int
    wait()
    start = time.perf_counter()
    call()
    wait()
    return time.perf_counter() - start


def per_token(spent: Callable[[int], dict[str, float]], new: int) -> dict[str, float]:
    """What each of `new` tokens costs beyond the first, which reads the prompt."""
    whole, one = spent(new), spent(1)
    return {name: (each - one.get(name, 0.0)) / (new - 1) for name, each in whole.items()}


# --8<-- [start:cause]
def profiled(call: Callable[[], object]) -> dict[str, float]:
    """Milliseconds by cause, and launches; profiling lengthens all that the host does."""
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as found:
        whole = seconds(call)
    events = found.key_averages()
    host = [event for event in events if event.device_type == DeviceType.CPU]
    spent = dict.fromkeys(("waiting for the GPU", "launching", "operators"), 0.0)
    for event in host:
        cause = "launching" if "Launch" in event.key else "operators"
        spent["waiting for the GPU" if "Synchronize" in event.key else cause] += event.self_cpu_time_total / 1e3
    spent["Python"] = whole * 1e3 - sum(spent.values())
    gpu = [event for event in events if event.device_type == DeviceType.CUDA]
    spent["GPU busy"] = sum(event.self_device_time_total for event in gpu) / 1e3
    return spent | {"launches": sum(event.count for event in host if "Launch" in event.key)}


# --8<-- [end:cause]


def by_part(model: nn.Module, call: Callable[[], object], compiles: bool) -> dict[str, float]:
    """Milliseconds in each part of `generate()`, without a profiler. The host may run ahead of the GPU.

    `compiles`: whether `generate()` takes its compiled path, as it does with a static cache on a GPU.
    """
    spent = {"prepare inputs": 0.0, "forward": 0.0}

    def timed(function: Callable, part: str) -> Callable:
        def wrapper(*args: object, **kwargs: object) -> object:
            start = time.perf_counter()
            found = function(*args, **kwargs)
            spent[part] += (time.perf_counter() - start) * 1e3
            return found

        return wrapper

    kind, made = type(model), model.get_compiled_call
    prepared = timed(model.prepare_inputs_for_generation, "prepare inputs")
    plain = mock.patch.object(kind, "__call__", timed(kind.__call__, "forward"))
    fast = mock.patch.object(model, "get_compiled_call", lambda config: timed(made(config), "forward"))
    with (
        fast if compiles else plain,  # were the class changed, compiled code would be compiled again
        mock.patch.object(model, "prepare_inputs_for_generation", prepared),
    ):
        whole = seconds(call) * 1e3
    return spent | {"choose, stop and the rest": whole - sum(spent.values())}


def host(model: nn.Module, prompt: Tensor, new: int) -> None:
    for name, options in WAYS.items():
        call = lambda n, options=options: lambda: by_library(model, prompt, n, **options)  # noqa: E731
        call(new)()
        ms = per_token(lambda n, call=call: {"ms": min(seconds(call(n)) for _ in range(3)) * 1e3}, new)["ms"]
        print(f"{name}: {ms:.1f} ms a token, {1e3 / ms:.0f} tokens/s")
        compiles = bool(options) and prompt.is_cuda
        parts = per_token(lambda n, call=call, compiles=compiles: by_part(model, call(n), compiles), new)
        print("  by part: " + ", ".join(f"{part} {each:.1f} ms" for part, each in parts.items()))
        found = per_token(lambda n, call=call: profiled(call(n)), new)
        launches, busy = found.pop("launches"), found.pop("GPU busy")
        print("  by cause, profiled: " + ", ".join(f"{cause} {each:.1f} ms" for cause, each in found.items()))
        print(f"  launches: {launches:.0f} a token; GPU busy: {busy:.1f} ms a token")
