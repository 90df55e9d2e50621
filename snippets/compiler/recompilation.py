"""When does torch.compile compile again, and what mends it? Run `python -m snippets.compiler.recompilation`."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from snippets.compiler.recompilation_counter import count, said
from snippets.compiler.recompilation_limit import STANCES, eager_first, past_the_limit, stance
from snippets.compiler.recompilation_marks import attend, attend_checked, of_marked, of_unbacked
from snippets.compiler.recompilation_shapes import (
    list_after,
    list_before,
    one_after,
    one_before,
    sizes_after,
    sizes_before,
    strides_after,
    strides_before,
)
from snippets.compiler.recompilation_specialised import SPECIALISED, double
from snippets.compiler.recompilation_state import (
    attribute_after,
    attribute_before,
    global_after,
    global_before,
    layers_after,
    layers_before,
    loop_after,
    loop_before,
    rate_after,
    rate_before,
)


# --8<-- [start:mode]
def mode_before(compile: Callable) -> None:
    compiled = compile(double)
    compiled(torch.ones(4))  # warmed up with gradients
    for _ in range(5):
        with torch.no_grad():
            compiled(torch.ones(4))


def mode_after(compile: Callable) -> None:
    compiled = compile(double)
    with torch.no_grad():
        for _ in range(6):
            compiled(torch.ones(4))


# --8<-- [end:mode]


@dataclass(frozen=True)
class Mend:
    """Two scenes that do the same work, and the words of the log that tell of the first."""

    symptom: str
    before: Callable[[Callable], None]
    after: Callable[[Callable], None]


MENDS = (
    Mend("size mismatch at index", sizes_before, sizes_after),
    Mend("2 <= x.size()[0]", one_before, one_after),
    Mend("self.factor == 5", attribute_before, attribute_after),
    Mend("self.index == 0", layers_before, layers_after),
    Mend("G['temperature'] == 5", global_before, global_after),
    Mend("len(tensors) == 2", list_before, list_after),
    Mend("steps == 2", loop_before, loop_after),
    Mend("['lr'] == 0.1", rate_before, rate_after),
    Mend("stride mismatch at index", strides_before, strides_after),
    Mend("GLOBAL_STATE changed: grad_mode", mode_before, mode_after),
)


def main() -> None:
    """Count what is compiled for each scene, before and after its mend."""
    print("==== specialised")
    for what, scene in SPECIALISED.items():
        graphs, reasons = count(scene)
        print(f"{what:<31} graphs: {graphs}   {reasons[0] if reasons else ''}"[:110].rstrip())

    print("==== mends")
    with said():
        for mend in MENDS:
            before, reasons = count(mend.before)
            reason = next(reason for reason in reasons if mend.symptom in reason)
            print(f"{mend.symptom:<32} {before:>2} -> {count(mend.after)[0]}   {reason}"[:110].rstrip())

    print("==== limit")
    outcomes, messages = past_the_limit([*range(2, 14), 5])
    for length, what in zip([*range(2, 14), 5], outcomes, strict=True):
        print(f"length {length:>2}: {what}")
    print("\n".join(text.strip() for text in messages[0].splitlines() if "hit config" in text or "reason:" in text))
    print(f"messages: {len(messages)}")

    print("==== stances")
    for name in STANCES:
        known, new = stance(name)
        print(f"{name:<20} same length: {known:<16} new length: {new}")
    print(f"{'eager_then_compile':<20} four lengths: {', '.join(eager_first((5, 6, 7, 8)))}")

    print("==== marked")
    for mark in (torch._dynamo.mark_dynamic, torch._dynamo.maybe_mark_dynamic):
        print(f"{mark.__name__:<19} {of_marked(mark)}")

    print("==== unbacked")
    for function in (attend, attend_checked):
        print(f"{function.__name__:<15} {of_unbacked(function)}")


if __name__ == "__main__":
    main()
