"""Python that the compiler does not trace: a logger, a clock, a lock, a generator. Each before and after its fix."""

import logging
import threading
import time
from collections.abc import Iterator

import torch
from torch import Tensor

# --8<-- [start:logging]
log = logging.getLogger(__name__)


def logging_before(x: Tensor) -> Tensor:
    hidden = x.sin()
    log.info("%d rows", len(x))
    return hidden.cos()


def logging_after(x: Tensor) -> Tensor:
    hidden = x.sin()
    if not torch.compiler.is_compiling():
        log.info("%d rows", len(x))
    return hidden.cos()


# --8<-- [end:logging]
# --8<-- [start:library]
seconds: list[float] = []


def library_before(x: Tensor) -> Tensor:
    began = time.perf_counter()
    hidden = x.sin().cos()
    seconds.append(time.perf_counter() - began)
    return hidden.exp()


def library_after(x: Tensor) -> Tensor:
    return x.sin().cos().exp()  # who calls the compiled function takes the time


# --8<-- [end:library]
# --8<-- [start:context]
lock = threading.Lock()


def context_before(x: Tensor) -> Tensor:
    with lock:
        hidden = x.sin()
    return hidden.cos()


def context_after(x: Tensor) -> Tensor:
    return x.sin().cos()  # compiled = torch.compile(context_after), and then: with lock: compiled(x)


# --8<-- [end:context]
# --8<-- [start:generator]
def generator_before(x: Tensor, factors: Iterator[Tensor]) -> Tensor:
    hidden = x.sin()
    return (hidden * next(factors)).cos()


def generator_after(x: Tensor, factor: Tensor) -> Tensor:
    hidden = x.sin()
    return (hidden * factor).cos()  # compiled(x, next(factors))


# --8<-- [end:generator]
