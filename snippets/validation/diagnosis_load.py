"""How long a step of products takes after a pause and under load: a report shows the first, training has the second.

Run `python -m snippets.validation.diagnosis_load`. A CPU has no power limit, so little of this is to be seen there.
"""

import subprocess

import torch

from snippets.validation.diagnosis import Ceilings
from snippets.validation.diagnosis_kernels import in_bfloat16, in_float32
from snippets.validation.diagnosis_programs import examine
from snippets.validation.timing import Call, measure, seconds_of, seconds_per_call


# --8<-- [start:under-load]
def under_load(step: Call, device: torch.device, quantity: str) -> str:
    """What nvidia-smi says of the GPU while the GPU repeats a step without a pause."""
    seconds_per_call(step, device, at_least=1.0)
    command = ["nvidia-smi", f"--query-gpu={quantity}", "--format=csv,noheader"]
    try:
        asked = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    except OSError:
        return "not known"
    while asked.poll() is None:
        seconds_of(step, device, 10)
    return asked.communicate()[0].split("\n")[0]


# --8<-- [end:under-load]


def by_each_clock(steps: dict[str, Call], device: torch.device) -> dict[str, list[str]]:
    """The times of some steps, a line for each way to take them; and the clock and the power of a GPU."""
    in_report = [examine(step, Ceilings(), few=False).step for step in steps.values()]
    lines = {"in a report: five steps after a pause": in_report}
    modes = {"in turns, as in the table": "calls"}
    if device.type == "cuda":
        modes = {"ten steps after a pause": "burst", **modes, "in the second half of a second of steps": "sustained"}
    for name, mode in modes.items():
        found = measure(steps, device, mode, rounds=7, patience=3.0)
        lines[name] = [timing.p50 for timing in found.values()]
    shown = {name: [f"{seconds * 1e3:.3f} ms" for seconds in line] for name, line in lines.items()}
    if device.type == "cuda":
        for name, quantity in (("the GPU's clock then", "clocks.sm"), ("its power then", "power.draw")):
            shown[name] = [under_load(step, device, quantity) for step in steps.values()]
    return shown


def main() -> None:
    """Print the program of products and its mend by several clocks."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    steps = {"fp32": in_float32(device), "bf16": in_bfloat16(device)}
    lines = {"": list(steps)} | by_each_clock(steps, device)
    print("\n".join(f"{name:40}{before:>12}{after:>12}" for name, (before, after) in lines.items()))


if __name__ == "__main__":
    main()
