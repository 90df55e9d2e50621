"""A GPU of which another kernel holds most: what must finish, has to do so on the multiprocessors that are left."""

import contextlib
import functools
import gc
import threading
import time
from collections.abc import Callable, Iterator

import torch
import triton
import triton.language as tl

WARPS = 32  # with 64 registers a thread, a program fills a multiprocessor
SECONDS = 60  # what starves takes milliseconds, what hangs has this long


@triton.jit
def _hold_kernel(let_go, out):
    lanes = tl.arange(0, 32768)
    values = lanes.to(tl.float32)
    done = tl.load(let_go, volatile=True)
    while done == 0:
        values = values * 0.999 + 1.0
        done = tl.load(let_go, volatile=True)
    tl.store(out + lanes, values)


@contextlib.contextmanager
def all_but(free: int) -> Iterator[None]:
    """Hold all multiprocessors of the current GPU but so many.

    It lets go after twice SECONDS at the latest: a call of the driver that waits for all that runs would wait for
    ever. No garbage is collected meanwhile, since freeing can be such a call.
    """
    let_go, out = torch.ones(1, dtype=torch.int32, device="cuda"), torch.empty(32768, device="cuda")
    stream = torch.cuda.Stream()
    _hold_kernel[(1,)](let_go, out, num_warps=WARPS)  # compiled and loaded while nothing is held
    let_go.zero_()
    torch.cuda.synchronize()
    held = torch.cuda.get_device_properties(0).multi_processor_count - free
    with torch.cuda.stream(torch.cuda.Stream()):
        _hold_kernel[(held,)](let_go, out, num_warps=WARPS)

    def release() -> None:
        with torch.cuda.stream(stream):
            let_go.fill_(1)

    patience = threading.Timer(2 * SECONDS, release)
    patience.start()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        patience.cancel()
        release()
        torch.cuda.synchronize()


def finished(call: Callable[[], dict[str, torch.Tensor]]) -> dict[str, torch.Tensor] | None:
    """What a call computes in a stream of its own; None where that has not ended after SECONDS."""
    with torch.cuda.stream(_stream()):
        result, event = call(), torch.cuda.Event()
        event.record()
    began = time.monotonic()
    while not event.query():
        if time.monotonic() - began > SECONDS:
            return None
        time.sleep(0.001)
    return result


@functools.cache
def _stream() -> torch.cuda.Stream:
    """The same for all calls: its memory is then there before anything is held."""
    return torch.cuda.Stream()


def on_streams(calls: list[Callable[[], torch.Tensor]], rounds: int) -> None:
    """Every call five times a round, on a stream of its own and of mixed priorities, against what each gives alone."""
    expected = [call() for call in calls]
    lowest, highest = torch.cuda.Stream.priority_range()
    streams = [torch.cuda.Stream(priority=min(lowest, highest) if index % 2 else 0) for index in range(len(calls))]
    torch.cuda.synchronize()
    for _ in range(rounds):
        results = []
        for _ in range(5):
            for call, stream in zip(calls, streams, strict=True):
                with torch.cuda.stream(stream):
                    results.append(call())
        torch.cuda.synchronize()
        for number, result in enumerate(results):
            assert torch.equal(result, expected[number % len(calls)])
