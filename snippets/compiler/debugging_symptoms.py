"""One program for each symptom, and what the procedure of the page says of it.

Run `python -m snippets.compiler.debugging_symptoms`.
"""

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from snippets.compiler.debugging import bisect
from snippets.compiler.debugging_crash import crashed
from snippets.compiler.debugging_growth import growth
from snippets.compiler.debugging_minifier import attempt, minified, model
from snippets.compiler.debugging_nan import angle, angle_clamped, first_not_finite, parallel
from snippets.compiler.debugging_precision import compiled, precision, tolerances
from snippets.compiler.debugging_slow import broken, broken_in_a_loop, one_graph, step_by_name, vitals


# --8<-- [start:random]
def dropped(x: Tensor) -> Tensor:
    return F.dropout(x, 0.5)


def seeded(run: Callable[[], Tensor]) -> Tensor:
    torch.manual_seed(0)
    return run()


def same_masks() -> Iterator[str]:
    """Which runs from one seed drop the same elements."""
    x = torch.ones(64)
    eager, once, again = (seeded(run) for run in (lambda: dropped(x), *[lambda: compiled(dropped, x)] * 2))
    yield f"compiled twice: {same(once, again)}"
    yield f"eager and compiled: {same(eager, once)}"
    fallback = seeded(lambda: compiled(dropped, x, fallback_random=True))
    yield f"eager and compiled with fallback_random: {same(eager, fallback)}"


# --8<-- [end:random]


def same(one: Tensor, other: Tensor) -> str:
    return "the same" if torch.equal(one, other) else "not the same"


# --8<-- [start:index]
def last(x: Tensor, index: Tensor) -> Tensor:
    return x.index_select(0, index)


# --8<-- [end:index]


def main() -> None:
    """Every symptom of the page."""
    print("==== tolerances")
    print("\n".join(tolerances()))

    print("==== precision")
    print(f"{'dtype':<10}{'eager':>10}{'compiled':>10}{'rounding':>10}  {'allclose':<11}rounding as eager")
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        print(precision(dtype))

    print("==== minifier")
    torch.manual_seed(0)
    print(minified(model, torch.randn(4, 4), torch.randn(4, 4)))

    print("==== nan")
    a, b = parallel()
    for name, run in (
        ("eager, bf16", lambda: angle(a, b)),
        ("compiled, bf16", lambda: compiled(angle, a, b)),
        ("eager, fp32", lambda: angle(a.float(), b.float())),
        ("eager, fp64", lambda: angle(a.double(), b.double())),
        ("compiled, rounding as eager", lambda: compiled(angle, a, b, emulate_precision_casts=True)),
        ("clamped, compiled, bf16", lambda: compiled(angle_clamped, a, b)),
    ):
        print(f"{name:<28}{run().isnan().sum()} of {len(a)} are NaN")
    print("eager in fp32, first not finite:", first_not_finite(angle, a.float(), b.float()))

    print("==== nan bisected")
    print(bisect(angle, a, b))

    print("==== index")
    x, index = torch.arange(4.0), torch.tensor([-1])
    print("eager:   ", attempt(lambda: last(x, index)))
    print("compiled:", attempt(lambda: compiled(last, x, index)))

    print("==== slow")
    x = torch.ones(4)
    for function, batches in (
        (one_graph, [(x, i) for i in range(6)]),
        (broken, [(x, i) for i in range(6)]),
        (broken_in_a_loop, [(x, i) for i in range(6)]),
        (step_by_name, [(x, "x" * i) for i in range(6)]),
    ):
        print(f"{function.__name__:<18}{vitals(function, *batches)}")

    print("==== random")
    print("\n".join(same_masks()))

    print("==== growth")
    print("\n".join(growth()))

    print("==== crash")
    print(crashed())


if __name__ == "__main__":
    main()
