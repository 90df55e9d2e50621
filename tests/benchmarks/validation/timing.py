"""The same call, timed wrongly and rightly; and the same product with other numbers in it, under other power."""

from collections.abc import Callable, Iterator
from functools import partial

import torch

from snippets.validation.timing import Call, Timing
from snippets.validation.timing_mistakes import event_pair, host_clock, mean_of_ten, negate, one_by_one, warm_cache
from tests.benchmarks.bounds import bound, ceiling, gpu
from tests.benchmarks.case import Case, Point, Variant, Workload

LARGE = {"kernels": 1, "elements": 2**27}
FITS_IN_CACHE = {"kernels": 1, "elements": 2**22}
SMALL = {"kernels": 1, "elements": 2**14}
MANY_SMALL = {"kernels": 64, "elements": 2**14}


def points(device: torch.device) -> Iterator[Point]:
    """On a GPU every mistake at the size where it shows; on a CPU there is nothing to be ahead of."""
    if device.type == "cpu":
        for shape in ({"kernels": 1, "elements": 2**22}, {"kernels": 64, "elements": 2**10}):
            yield Point(shape, "float32", modes=("calls",), variants=("ours", "one-by-one", "mean-of-ten"))
        return
    for shape in (LARGE, FITS_IN_CACHE, SMALL, MANY_SMALL):
        yield Point(shape, "float32", modes=("device",))
    yield Point(MANY_SMALL, "float32", modes=("calls", "graph"), variants=("ours",))
    for numbers in ("random", "zeros"):
        yield Point({"size": 8192}, "bfloat16", modes=("burst", "sustained"), part=numbers)


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


@bound("MB", rows=2048, columns=4096, width=4)
def rows_as_large_as_cache(rows: float, columns: float, width: float) -> float:
    """The bytes of 2048 rows in fp32, read or written."""
    return rows * columns * width


@bound("MB", elements=134217728, width=4)
def large_tensor(elements: float, width: float) -> float:
    """The bytes of the large tensor in fp32."""
    return elements * width


@bound("KB", elements=16384, width=4)
def small_tensor(elements: float, width: float) -> float:
    """The bytes of the small tensor in fp32."""
    return elements * width


@bound("MB", elements=4194304, width=4)
def tensor_in_l2(elements: float, width: float) -> float:
    """The bytes of the tensor that the L2 cache can hold, in fp32."""
    return elements * width


@bound("TB/s", elements=4194304, width=4, time=gpu("warm-cache", "fits in l2"))
def warm_bandwidth(elements: float, width: float, time: float) -> float:
    """The bandwidth that the time with a warm cache would mean."""
    return 2 * elements * width / time


@bound("TB/s", elements=4194304, width=4, time=gpu("ours", "fits in l2"))
def cold_bandwidth(elements: float, width: float, time: float) -> float:
    """The bandwidth by the time with an emptied cache."""
    return 2 * elements * width / time


@bound("ns", elements=16384, width=4, copy=ceiling("copy", machine="nvidia-h200"))
def small_copied(elements: float, width: float, copy: float) -> float:
    """What moving the small tensor takes at the rate of a copy."""
    return 2 * elements * width / copy


@bound("TB/s", numbers=134217728, width=4, time=gpu("host-clock", "large"))
def claimed_bandwidth(numbers: float, width: float, time: float) -> float:
    """The bandwidth that the memory would have, if the host's clock showed the time of the kernel."""
    return 2 * numbers * width / time


CHECK_AT = {
    "forward": [{"kernels": 1, "elements": 4096}, {"part": "random", "size": 256}, {"part": "zeros", "size": 256}]
}
LABELS = {
    "do-bench": {"label": "do_bench", "role": "peer-1"},
    "host-clock": {"label": "host clock", "role": "other"},
    "event-pair": {"label": "event pair", "role": "other"},
    "warm-cache": {"label": "warm cache", "role": "other"},
    "mean-of-ten": {"label": "mean of ten", "role": "other"},
    "one-by-one": {"label": "one by one", "role": "other"},
}
POINTS = {  # as pages name them
    "small": "forward 1x16384 float32 device",
    "64 small kernels": "forward 64x16384 float32 device",
    "fits in l2": "forward 1x4194304 float32 device",
    "large": "forward 1x134217728 float32 device",
    "zeros matmul": "forward zeros 8192 bfloat16 burst",
    "random matmul": "forward random 8192 bfloat16 burst",
}
CASE = Case(
    name="validation/timing",
    question="How far off are the usual ways to time a call?",
    points=points,
    prepare=prepare,
)
