"""A step of a trace as lanes of bars, for drawing: what ran when, and which launch started which kernel."""

import json
import re
from collections.abc import Callable

from snippets.validation.profiling import WAIT, Event, Step, readable

LAUNCH = re.compile(r"(cuda|cu|hip)\w*(Launch|Memcpy|Memset)")
COMPILED = re.compile(r"Torch-Compiled Region|CompiledFunction|TorchDynamo|triton_")


# --8<-- [start:timeline]
def timeline(step: Step) -> str:
    """The step as JSON, for drawing: lanes of bars [start, length, name, kind], and arrows from launches to kernels.

    Of a CUDA graph only the first kernel has an arrow: the others have no launch of their own.
    """

    def call_kind(call: Event) -> str:
        return "wait" if WAIT.match(call.name) else "launch" if LAUNCH.match(call.name) else "host"

    lanes: dict[str, tuple[list[Event], Callable[[Event], str]]] = {
        "named by record_function": (step.named, lambda event: "host"),
        "operations": (step.operations, lambda event: "compiled" if COMPILED.search(event.name) else "host"),
    }
    if step.kernels:
        lanes["CUDA calls"] = (step.calls, call_kind)
        lanes["GPU"] = (step.kernels, lambda event: "compiled" if event.name.startswith("triton_") else "kernel")
    arrows = [[round(call.start, 1), round(kernels[0].start, 1)] for call, kernels in step.launches()]
    drawn = [
        json.dumps({"name": name, "bars": [[*rounded(event), readable(event.name), kind(event)] for event in events]})
        for name, (events, kind) in lanes.items()
    ]
    return '{"lanes": [\n' + ",\n".join(drawn) + f'\n],\n"arrows": {json.dumps(arrows)}}}'


def rounded(event: Event) -> tuple[float, float]:
    return round(event.start, 1), round(event.length, 1)


# --8<-- [end:timeline]
