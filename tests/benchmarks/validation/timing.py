"""The same call, timed wrongly and rightly; and the same product with other numbers in it, under other power."""

from collections.abc import Callable, Iterator
from functools import partial

import torch

from snippets.validation.timing import Call, Timing
from snippets.validation.timing_mistakes import event_pair, host_clock, mean_of_ten, negate, one_by_one, warm_cache
from tests.benchmarks.bounds import bound, ceiling, gpu
from tests.benchmarks.case import Case, Point, Variant, Workload

CHAINS = {  # kernels and elements
    "large": (1, 2**27), "fits in l2": (1, 2**22), "small": (1, 2**14), "64 small kernels": (64, 2**14),
}  # fmt: skip


def points(device: torch.device) -> Iterator[Point]:
    """On a GPU every mistake at the size where it shows; on a CPU there is nothing to be ahead of."""
    if device.type == "cpu":
        for shape in ({"kernels": 1, "elements": 2**22}, {"kernels": 64, "elements": 2**10}):
            yield Point(shape, "float32", modes=("calls",), variants=("ours", "one-by-one", "mean-of-ten"))
        return
    for name, (kernels, elements) in CHAINS.items():
        shape = {"kernels": kernels, "elements": elements}
        yield Point(shape, "float32", modes=("device",), name=name)
    yield Point(shape, "float32", modes=("calls", "graph"), variants=("ours",))
    for part in ("random", "zeros"):
        yield Point({"size": 8192}, "bfloat16", modes=("burst", "sustained"), part=part, name=f"{part} matmul")


# of results that may be all zeros
WRONG = {
    "ones": lambda right: {"output": torch.ones_like(right["output"])},
    "off by a hundred": lambda right: {"output": right["output"] + 100},
    "not finite": lambda right: {"output": right["output"] / 0},
}


def prepare(point: Point, device: torch.device) -> Workload:
    """A chain of negations, or a matrix product; no bytes are stated, since a wrong time is no bandwidth."""
    if point.part:
        return product(point.shape["size"], point.part == "random", device)
    return chain(**point.shape, device=device)


def chain(kernels: int, elements: int, device: torch.device) -> Workload:
    x = torch.randn(elements, device=device)
    call = partial(negate, x, kernels)

    def timed_by(timer: Callable[[Call, torch.device], Timing] | None) -> Variant:
        return Variant(lambda: call, timer=timer)

    return Workload(
        variants={
            "ours": timed_by(None),
            "compile": Variant(lambda: partial(torch.compile(negate), x, kernels)),
            "host-clock": timed_by(host_clock),
            "event-pair": timed_by(event_pair),
            "warm-cache": timed_by(warm_cache),
            "one-by-one": timed_by(one_by_one),
            "mean-of-ten": timed_by(mean_of_ten),
            "do-bench": timed_by(do_bench),
        },
        baseline="ours",
        reference=lambda: {"output": negate(x.double(), kernels)},
        bytes_read=0,
        bytes_written=0,
        flops=0,
        wrong=WRONG,
    )


def do_bench(call: Call, device: torch.device) -> Timing:
    """Triton's timer: flushes the cache and records events, but does not ask whether the host kept up."""
    from triton.testing import do_bench

    return Timing.of([milliseconds * 1e-3 for milliseconds in do_bench(call, return_mode="all")])


def product(size: int, random: bool, device: torch.device) -> Workload:
    """A square matrix product, of random numbers or of zeros: the same kernel, other power."""
    a, b = (random * torch.randn(size, size, device=device).to(torch.bfloat16) for _ in range(2))
    return Workload(
        variants={"eager": Variant(lambda: lambda: a @ b)},
        baseline="eager",
        reference=lambda: {"output": a.double() @ b.double()},
        bytes_read=0,
        bytes_written=0,
        flops=2 * size**3,
        wrong=WRONG,
    )


COPY = ceiling("copy")
IN_L2 = {"elements": 4194304, "width": 4}
# The bytes of 2048 rows in fp32, read or written.
rows_as_large_as_cache = bound("MB", "rows * columns * width", rows=2048, columns=4096, width=4)
large_tensor = bound("MB", "elements * width", elements=134217728, width=4)  # The bytes of the large tensor in fp32.
small_tensor = bound("KB", "elements * width", elements=16384, width=4)  # The bytes of the small tensor in fp32.
tensor_in_l2 = bound("MB", "elements * width", IN_L2)  # The bytes of the tensor that the L2 cache can hold, in fp32.
# The bandwidth that the time with a warm cache would mean.
warm_bandwidth = bound("TB/s", "2 * elements * width / time", IN_L2, time=gpu("warm-cache", "fits in l2"))
# The bandwidth by the time with an emptied cache.
cold_bandwidth = bound("TB/s", "2 * elements * width / time", IN_L2, time=gpu("ours", "fits in l2"))
# What moving the small tensor takes at the rate of a copy.
small_copied = bound("ns", "2 * elements * width / copy", elements=16384, width=4, copy=COPY)
# The bandwidth that the memory would have, if the host's clock showed the time of the kernel.
claimed_bandwidth = bound(
    "TB/s", "2 * numbers * width / time", numbers=134217728, width=4, time=gpu("host-clock", "large")
)

LABELS = {
    "do-bench": {"label": "do_bench", "role": "peer-1"},
    "host-clock": {"label": "host clock", "role": "other"},
    "event-pair": {"label": "event pair", "role": "other"},
    "warm-cache": {"label": "warm cache", "role": "other"},
    "mean-of-ten": {"label": "mean of ten", "role": "other"},
    "one-by-one": {"label": "one by one", "role": "other"},
}
CASE = Case(
    question="How far off are the usual ways to time a call?",
    check_at={
        "forward": [{"kernels": 1, "elements": 4096}, {"part": "random", "size": 256}, {"part": "zeros", "size": 256}]
    },
)
