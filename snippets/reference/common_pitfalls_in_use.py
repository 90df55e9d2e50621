"""Ten pitfalls of using what is compiled: the code before and after, and what one sees before."""

import os
import warnings
from collections.abc import Callable

import torch
from torch import Tensor, nn

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # before Triton is imported

import triton
import triton.language as tl

from snippets.reference.common_pitfalls import compiled, make_x, message, reason


class Counter:
    """A backend that compiles nothing and counts the graphs that it is given."""

    def __init__(self) -> None:
        torch.compiler.reset()
        self.graphs = 0

    def __call__(self, graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable:
        self.graphs += 1
        return graph

    def __str__(self) -> str:
        return f"{self.graphs} graph{'s' * (self.graphs != 1)} compiled"


class Generator(nn.Module):
    """A model with a method beside forward."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x).sin()

    @torch.no_grad()
    def generate(self, x: Tensor) -> Tensor:
        for _ in range(3):
            x = self(x)
        return x


# --8<-- [start:thrown-away]
def thrown_away_before() -> str:
    backend, model = Counter(), Generator()
    torch.compile(model, backend=backend)
    model(make_x())
    return str(backend)


def thrown_away_after() -> str:
    backend, model = Counter(), Generator()
    model.compile(backend=backend)  # or: model = torch.compile(model)
    model(make_x())
    return str(backend)


# --8<-- [end:thrown-away]


# --8<-- [start:first-call]
def first_call_before() -> str:
    backend = Counter()
    fast = torch.compile(torch.sin, backend=backend)
    return timed(lambda: fast(make_x()), backend)


def first_call_after() -> str:
    backend = Counter()
    fast = torch.compile(torch.sin, backend=backend)
    fast(make_x())  # compiled here
    return timed(lambda: fast(make_x()), backend)


def timed(call: Callable, backend: Counter) -> str:
    """What happened while the clock ran."""
    before = backend.graphs
    for _ in range(10):
        call()
    return f"within the ten timed calls: {backend.graphs - before} compiled"


# --8<-- [end:first-call]


# --8<-- [start:other-method]
def other_method_before() -> str:
    backend, model = Counter(), Generator()
    fast = torch.compile(model, backend=backend)
    fast.generate(make_x())
    return str(backend)


def other_method_after() -> str:
    backend, model = Counter(), Generator()
    model.compile(backend=backend)  # generate calls self(x), and that is compiled
    model.generate(make_x())
    return str(backend)


# --8<-- [end:other-method]


# --8<-- [start:prefix]
def prefix_before() -> str:
    fast = torch.compile(Generator(), backend="eager")
    return loaded(fast.state_dict())


def prefix_after() -> str:
    model = Generator()
    model.compile(backend="eager")
    return loaded(model.state_dict())


def loaded(weights: dict[str, Tensor]) -> str:
    return message(lambda: Generator().load_state_dict(weights))


# --8<-- [end:prefix]


# --8<-- [start:late-mark]
def late_mark(marked: tuple[int, ...]) -> str:
    backend = Counter()
    fast = torch.compile(torch.sin, backend=backend)
    for length in (3, 4, 5):
        x = torch.ones(length)
        if length in marked:
            torch._dynamo.mark_dynamic(x, 0)
        fast(x)
    return str(backend)


# before: late_mark(marked=(4, 5))
# after:  late_mark(marked=(3,))
# --8<-- [end:late-mark]


# --8<-- [start:in-a-loop]
def in_a_loop_before() -> str:
    backend, x = Counter(), make_x()
    for step in range(20):
        fast = torch.compile(lambda x: x * step, backend=backend, dynamic=False)  # noqa: B023  (called at once)
        fast(x)
    return str(backend)


def in_a_loop_after() -> str:
    backend, x = Counter(), make_x()
    fast = torch.compile(torch.mul, backend=backend, dynamic=False)
    for step in range(20):
        fast(x, torch.tensor(step))
    return str(backend)


# --8<-- [end:in-a-loop]


# --8<-- [start:inference]
class Positions(nn.Module):
    """Builds a table in its first call and keeps it, as some models do with their positions."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.table: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.table is None:
            self.table = torch.linspace(0, 1, 8)
        return self.linear(x) * self.table


def warmed_up(mode: Callable) -> str:
    fast = compiled(Positions())
    with mode():
        fast(make_x())
    return message(lambda: fast(make_x()).sum().backward())


# before: warmed_up(torch.inference_mode)
# after:  warmed_up(torch.no_grad)
# --8<-- [end:inference]


# --8<-- [start:dropout]
def dropout(**options: bool) -> str:
    """Eager and compiled, from the same seed of torch's."""
    torch.compiler.reset()
    results = []
    for function in (nn.functional.dropout, torch.compile(nn.functional.dropout, options=options)):
        torch.manual_seed(0)
        results.append(function(torch.ones(64)))
    return "the same numbers" if torch.equal(*results) else "other numbers than eager, from the same seed"


# before: dropout()
# after:  dropout(fallback_random=True)
# --8<-- [end:dropout]


# --8<-- [start:mask]
def mask_before(x: Tensor) -> Tensor:
    return x[x > 0].sum()


def mask_after(x: Tensor) -> Tensor:
    return torch.where(x > 0, x, 0).sum()


# --8<-- [end:mask]


# --8<-- [start:strides]
@triton.jit
def _double(x, y, count, SIZE: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    tl.store(y + at, 2 * tl.load(x + at, at < count), at < count)


def strides_before(x: Tensor) -> Tensor:
    y = torch.empty(x.shape, device=x.device)
    _double[(1,)](x, y, x.numel(), SIZE=32)
    return y


def strides_after(x: Tensor) -> Tensor:
    return strides_before(x.contiguous())


# --8<-- [end:strides]


def doubled(function: Callable) -> str:
    """Whether each number of a transposed matrix is doubled where it stands."""
    x = make_x().to("cuda" if torch.cuda.is_available() else "cpu").t()
    return "2 * x" if torch.equal(function(x), 2 * x) else "numbers in other places, and no error"


SYMPTOMS: dict[str, Callable[[], str]] = {
    "thrown away": thrown_away_before,
    "first call": first_call_before,
    "other method": other_method_before,
    "prefix": prefix_before,
    "late mark": lambda: late_mark(marked=(4, 5)),
    "in a loop": in_a_loop_before,
    "inference": lambda: warmed_up(torch.inference_mode),
    "dropout": dropout,
    "mask": lambda: reason(mask_before),
    "strides": lambda: doubled(strides_before),
}


def main() -> None:
    """Print each symptom."""
    for name, symptom in SYMPTOMS.items():
        print(f"==== {name}")
        print(symptom())


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main()
