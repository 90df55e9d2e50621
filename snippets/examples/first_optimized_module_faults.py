"""The candidate with one fault each, which a check has to refuse."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from snippets.examples.first_optimized_module_draft import make_input


# --8<-- [start:faults]
def faults(right: Callable) -> Mapping[str, Callable]:
    """The candidate with one fault each: what a check has to refuse."""

    def changed(change: Callable[[Tensor], object]) -> Callable:
        def faulty(x: Tensor) -> Tensor:
            change(y := right(x).clone())
            return y

        return faulty

    first: list[Tensor] = []

    def stale(x: Tensor) -> Tensor:
        first.append(right(x).clone())
        return first[0]

    def clears_its_input(x: Tensor) -> Tensor:
        return right(x.zero_())

    def rounded(x: Tensor) -> Tensor:
        return right(x.bfloat16().to(x.dtype))

    return {
        "5% too large": changed(lambda y: y.mul_(1.05)),
        "the last row is not written": changed(lambda y: y[-1].zero_()),
        "one number is NaN": changed(lambda y: y.view(-1)[0].fill_(float("nan"))),
        "its first result for ever": stale,
        "overwrites its input": clears_its_input,
        "input rounded to bf16": rounded,
        "result in float64": lambda x: right(x).double(),
    }


# --8<-- [end:faults]


def by_allclose(candidate: Callable, draft: nn.Module, tolerance: float) -> bool:
    """The check that most people write."""
    x = make_input(8)
    result, expected = candidate(x), draft(x)
    return result.dtype == expected.dtype and torch.allclose(result, expected, rtol=tolerance, atol=tolerance)
