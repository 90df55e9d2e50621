"""Numbers and sizes that make calls compile again, counted with a backend that compiles: capture alone shows fewer.

Run `python -m snippets.compiler.recompilation_values`.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch._dynamo.utils import clear_compilation_metrics, get_compilation_metrics

from snippets.compiler.recompilation import Mend
from snippets.compiler.recompilation_counter import guard_of
from snippets.compiler.recompilation_specialised import double
from snippets.compiler.recompilation_state import rate_after, rate_before


def count(scene: Callable[[Callable], None], backend: str = "aot_eager") -> tuple[int, list[str]]:
    """How often a scene compiles one function, and for each time but the first the guard that failed."""
    torch.compiler.reset()
    clear_compilation_metrics()
    scene(partial(torch.compile, backend=backend))
    reasons = [metrics.recompile_reason for metrics in get_compilation_metrics() if metrics.recompile_reason]
    return 1 + len(reasons), [guard_of(reason) for reason in reasons]


# --8<-- [start:length]
def masked(x: Tensor, max_seqlen: int) -> Tensor:
    return x.masked_fill(torch.arange(512) >= max_seqlen, 0)


def length_before(compile: Callable) -> None:
    compiled = compile(masked, dynamic=False)  # makes a constant of the number, too
    for length in torch.arange(496, 502):
        compiled(torch.ones(512), length.item())


def length_after(compile: Callable) -> None:
    compiled = compile(masked)
    for length in torch.arange(496, 502):
        compiled(torch.ones(512), length.item())


# --8<-- [end:length]
# --8<-- [start:limit]
def limited(x: Tensor, limit: float | Tensor) -> Tensor:
    return x.clamp(max=limit)


def limit_before(compile: Callable) -> None:
    compiled = compile(limited)
    for limit in (0.5, 0.6, 0.7, 0.8):
        compiled(torch.ones(4), limit)


def limit_after(compile: Callable) -> None:
    compiled = compile(limited)
    for limit in (0.5, 0.6, 0.7, 0.8):
        compiled(torch.ones(4), torch.tensor(limit))


# --8<-- [end:limit]
# --8<-- [start:betas]
def cycle(compile: Callable, **keywords: bool) -> None:
    weight = nn.Parameter(torch.ones(4))
    weight.grad = torch.ones(4)
    optimizer = torch.optim.AdamW([weight], lr=torch.tensor(0.1))
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=20, **keywords)
    step = compile(lambda: optimizer.step())
    for _ in range(6):
        step()
        schedule.step()


def betas_before(compile: Callable) -> None:
    cycle(compile)  # moves lr, a tensor, and betas[0], a float


def betas_after(compile: Callable) -> None:
    cycle(compile, cycle_momentum=False)


# --8<-- [end:betas]
# --8<-- [start:first]
def first_before(compile: Callable) -> None:
    compiled = compile(double, dynamic=True)
    compiled(torch.ones(1))  # warmed up with one image
    for images in (2, 3, 4):
        compiled(torch.ones(images))


def first_after(compile: Callable) -> None:
    compiled = compile(double, dynamic=True)
    for images in (1, 2):  # both graphs, before serving
        compiled(torch.ones(images))
    with torch.compiler.set_stance("fail_on_recompile"):
        for images in (1, 2, 3, 4):
            compiled(torch.ones(images))


# --8<-- [end:first]

VALUES = (
    Mend("max_seqlen == 496", length_before, length_after),
    Mend("limit == 0.5", limit_before, limit_after),
    Mend("['lr'] == 0.1", rate_before, rate_after),
    Mend("['betas'][0] == 0.95", betas_before, betas_after),
    Mend("expected 1, actual 2", first_before, first_after),
)


def main() -> None:
    """Count the compilations of each, before and after, with the guard that failed first."""
    print("==== values")
    for value in VALUES:
        before, reasons = count(value.before)
        captured, _ = count(value.before, "eager")
        print(f"{value.symptom:<22} {before} -> {count(value.after)[0]}, captured only: {captured}   {reasons[0]}")


if __name__ == "__main__":
    main()
