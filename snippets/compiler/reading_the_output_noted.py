"""Every launch of a generated kernel with its configuration, and what else was timed."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from unittest import mock

from torch._inductor.runtime.triton_heuristics import CachingAutotuner


# --8<-- [start:noted]
@dataclass(frozen=True)
class Configuration:
    """What Inductor decides about a launch: sizes such as XBLOCK, warps of a program, stages of the pipelined loads."""

    sizes: tuple[tuple[str, int], ...]
    warps: int
    stages: int

    def __str__(self) -> str:
        sizes = ", ".join(f"{name} {size}" for name, size in self.sizes)
        return f"{sizes:<22} num_warps {self.warps:2}  num_stages {self.stages}"


@contextlib.contextmanager
def noted() -> Iterator[tuple[list[tuple[str, Configuration]], dict[str, dict[Configuration, float]]]]:
    """Every launch of a generated kernel, in order, and the seconds of each configuration where several were timed."""
    launches: list[tuple[str, Configuration]] = []
    tried: dict[str, dict[Configuration, float]] = {}
    run, time_all = CachingAutotuner.run, CachingAutotuner.benchmark_all_configs

    def running(kernel: Any, *arguments: Any, **keywords: Any) -> Any:
        result = run(kernel, *arguments, **keywords)
        (launcher,) = kernel.launchers  # those that lost are gone
        launches.append((name_of(kernel), configuration(launcher)))
        return result

    def timing(kernel: Any, *arguments: Any, **keywords: Any) -> Any:
        milliseconds = time_all(kernel, *arguments, **keywords)
        tried[name_of(kernel)] = {configuration(launcher): each * 1e-3 for launcher, each in milliseconds.items()}
        return milliseconds

    with mock.patch.multiple(CachingAutotuner, run=running, benchmark_all_configs=timing):
        yield launches, tried


def name_of(kernel: Any) -> str:
    return kernel.inductor_meta["kernel_name"]


def configuration(launcher: Any) -> Configuration:
    chosen = launcher.config
    return Configuration(tuple(chosen.kwargs.items()), chosen.num_warps, chosen.num_stages)


# --8<-- [end:noted]
