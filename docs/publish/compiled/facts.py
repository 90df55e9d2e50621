"""What there is to know of a compiled kernel: each fact with its title, why it matters, and the way it is shown."""

from collections.abc import Mapping

from docs.publish import units
from docs.publish.compiled.build import Compiled


def _widths(counts: Mapping[str, int]) -> str:
    """ "12 of 128 bits, 1 of 32"."""
    return ", ".join(f"{n} of {bits} bits" for bits, n in sorted(counts.items(), key=lambda c: -int(c[0]))) or "none"


WHY = {
    "registers": "The threads of a multiprocessor share its registers, so the more each takes, the fewer run there.",
    "spilled": "Numbers that did not fit into registers are stored to memory and read again, in every thread.",
    "shared": "Programs on one multiprocessor share it; reductions and matrix products pass numbers through it.",
    "warps": "The threads of a program, in groups of 32: more of them hide latency, fewer wait less at a barrier.",
    "loads": "A thread should ask for 128 bits at once: narrower loads are more instructions for the same bytes.",
    "stores": "As for loads: narrower than 128 bits, the same bytes take up to eight times the instructions.",
    "tensor_core": "Without them a matrix product runs at a small fraction of the GPU's rate; other kernels need none.",
    "shuffles": "They exchange numbers between the threads of a warp, which a reduction within a warp needs.",
    "barriers": "All warps of a program wait for each other there, which a reduction across the program needs.",
    "fp64": "Slower than fp32 on every GPU, and almost always a mistake: a Python float that was not cast.",
    "instructions": "Counted in the code, not as executed: an instruction in a loop counts once.",
    "size": "Long unrolled code may not fit into the instruction cache.",
    "seconds": "How long the first call at a new shape waits for the compiler, on the machine that built this site.",
}
TITLES = {
    "spilled": "bytes spilled", "shared": "bytes of shared memory", "tensor_core": "tensor-core instructions",
    "fp64": "fp64 instructions", "size": "bytes of code", "seconds": "seconds to compile",
}  # fmt: skip
FACTS = tuple({"key": key, "title": TITLES.get(key, key), "why": why} for key, why in WHY.items())
BAD = ("spilled", "fp64")  # more than none of it stands out


def values(kernel: Compiled) -> dict[str, str]:
    """Of each of FACTS, by key."""
    widths = {key: _widths(kernel.facts[key]) for key in ("loads", "stores")}
    shown = {**kernel.facts, **widths, "seconds": units.digits(kernel.seconds)}
    return {key: str(shown[key]) for key in WHY}


def options(kernel: Compiled) -> str:
    """ "num_warps 8, BLOCK 2048, UNIT 8"."""
    chosen = {name: value for name, value in kernel.options.items() if value is not None}
    return ", ".join(f"{name} {value or repr(value)}" for name, value in {**chosen, **kernel.constants}.items())
