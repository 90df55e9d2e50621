"""What there is to know of a compiled kernel: each fact with the way it is shown and why it matters."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from docs.publish import units
from docs.publish.compiled.build import Compiled


@dataclass(frozen=True)
class Fact:
    """One thing to know of a kernel: how it is shown, and why it matters."""

    key: str
    title: str
    why: str
    show: Callable[[Compiled], str]


def _count(key: str) -> Callable[[Compiled], str]:
    return lambda kernel: str(kernel.facts[key])


def _widths(counts: Mapping[str, int]) -> str:
    """ "12 of 128 bits, 1 of 32"."""
    return ", ".join(f"{n} of {bits} bits" for bits, n in sorted(counts.items(), key=lambda c: -int(c[0]))) or "none"


WHY = {
    "registers": "The threads of a multiprocessor divide its registers, so what one takes limits how many run there.",
    "spilled": "What did not fit into registers goes through memory, in every thread.",
    "shared": "Programs on one multiprocessor divide it among them; reductions and dots pass numbers through it.",
    "warps": "The threads of a program: more of them hide latency, fewer have less to wait for at a barrier.",
    "loads": "A thread should ask for 128 bits at once: narrower loads are more instructions for the same bytes.",
    "stores": "As for loads: narrower than 128 bits, the same bytes take up to eight times the instructions.",
    "tensor_core": "A dot without them runs at a small fraction of the GPU's rate; a kernel without a dot has none.",
    "shuffles": "Threads of a warp exchange numbers by them: the cost of a reduction within a warp.",
    "barriers": "Warps wait for each other there: the cost of a reduction across a program.",
    "fp64": "Slower than fp32 on every GPU, and almost always an accident: a Python float that nobody cast.",
    "instructions": "In the code, not as run: one in a loop counts once.",
    "size": "Long unrolled code has to come through the instruction cache.",
    "seconds": "What a first call at a new shape waits, on the machine that built this site.",
}
TITLES = {
    "spilled": "bytes spilled", "shared": "bytes of shared memory", "tensor_core": "tensor-core instructions",
    "fp64": "fp64 instructions", "size": "bytes of code", "seconds": "seconds to compile",
}  # fmt: skip
SHOWN: dict[str, Callable[[Compiled], str]] = {
    "loads": lambda kernel: _widths(kernel.facts["loads"]),
    "stores": lambda kernel: _widths(kernel.facts["stores"]),
    "seconds": lambda kernel: units.digits(kernel.seconds),
}
FACTS = tuple(Fact(key, TITLES.get(key, key), why, SHOWN.get(key, _count(key))) for key, why in WHY.items())
BAD = ("spilled", "fp64")  # more than none of it stands out


def values(kernel: Compiled) -> dict[str, str]:
    """Of each of FACTS, by key."""
    return {fact.key: fact.show(kernel) for fact in FACTS}


def options(kernel: Compiled) -> str:
    """ "num_warps 8, BLOCK 2048, UNIT 8"."""
    chosen = {name: value for name, value in kernel.options.items() if value is not None}
    return ", ".join(f"{name} {value or repr(value)}" for name, value in {**chosen, **kernel.constants}.items())
