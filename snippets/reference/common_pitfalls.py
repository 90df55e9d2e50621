"""Ten pitfalls of capturing a function: the code before and after, and what one sees before."""

import warnings
from collections.abc import Callable
from contextlib import redirect_stdout
from io import StringIO

import torch
from torch import Tensor, nn

from snippets.compiler.graph_breaks import find


def compiled(function: Callable, **options: bool) -> Callable:
    """Captured and split as always, but not made into kernels: all that matters here is over by then."""
    torch.compiler.reset()
    return torch.compile(function, backend="aot_eager", **options)


def message(function: Callable, *inputs: object) -> str:
    """The error that a call ends with, down to its first hint."""
    try:
        function(*inputs)
    except RuntimeError as error:  # all of Dynamo's are
        text = f"{type(error).__name__}: {error}"
        for tail in ("\n  Hint", "\n  Developer debug", "\nconsider using", "\nFor more", "\nfrom user code"):
            text = text.partition(tail)[0]
        return "\n".join(line for line in text.splitlines() if line.strip())
    return "no error"


def make_x() -> Tensor:
    return torch.linspace(-1, 2, 32).view(4, 8)


def printed(function: Callable) -> str:
    """What a compiled function prints when prints may wait for the end of the graph."""
    with torch._dynamo.config.patch(reorderable_logging_functions={print}), redirect_stdout(StringIO()) as output:
        compiled(function, fullgraph=True)(torch.zeros(2))
    return output.getvalue().strip()


def agree(plain: Callable, fast: Callable) -> str:
    """Whether two functions give the same result from the same seed of NumPy's."""
    import numpy

    results = []
    for function in (plain, fast):
        numpy.random.seed(0)
        results.append(function(make_x()))
    return "the same numbers" if torch.equal(*results) else "other numbers than eager, from the same seed"


# --8<-- [start:skipped]
def skipped_before(x: Tensor) -> Tensor:
    for _ in range(3):
        x = x.sin()
        print("mean", x.mean())
    return x.cos()


def skipped_after(x: Tensor) -> tuple[Tensor, list[Tensor]]:
    means = []
    for _ in range(3):
        x = x.sin()
        means.append(x.mean())
    return x.cos(), means  # the caller prints


# --8<-- [end:skipped]


# --8<-- [start:repeated]
def repeated_before(x: Tensor) -> Tensor:
    return block(x.sin(), inner_before)


def repeated_after(x: Tensor) -> Tensor:
    return block(x.sin(), inner_after)


def block(x: Tensor, inner: Callable) -> Tensor:
    return inner(x.abs()).tan()


def inner_before(x: Tensor) -> Tensor:
    scale = x.max().item()  # breaks here, in block, and in repeated_before
    return x / scale


def inner_after(x: Tensor) -> Tensor:
    return x / x.max()


# --8<-- [end:repeated]


# --8<-- [start:caught]
def caught_before(x: Tensor) -> Tensor:
    try:
        return x.view(6, 6)
    except RuntimeError:
        return x.flatten()


def caught_after(x: Tensor) -> Tensor:
    return x.view(6, 6) if x.numel() == 36 else x.flatten()


# --8<-- [end:caught]


# --8<-- [start:late-hook]
def late_hook(forget: bool) -> str:
    calls: list[int] = []
    module = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
    fast = compiled(module)
    fast(make_x())
    module[0].register_forward_hook(lambda *_: calls.append(1))
    if forget:
        torch.compiler.reset()  # what was captured without the hook
    fast(make_x())
    return f"the hook ran {'once' if calls else 'never'}"


# --8<-- [end:late-hook]


# --8<-- [start:no-fake]
@torch.library.custom_op("ridgepoint::double_without_fake", mutates_args=())
def double_without_fake(x: Tensor) -> Tensor:
    return 2 * x


@torch.library.custom_op("ridgepoint::double", mutates_args=())
def double(x: Tensor) -> Tensor:
    return 2 * x


@double.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


# --8<-- [end:no-fake]


# --8<-- [start:alias]
def alias_before(x: Tensor) -> Tensor:
    return torch.cond(x.mean() > 0, lambda x: x, lambda x: x - 1, (x,))


def alias_after(x: Tensor) -> Tensor:
    return torch.cond(x.mean() > 0, lambda x: x.clone(), lambda x: x - 1, (x,))


# --8<-- [end:alias]


# --8<-- [start:unguarded]
def unguarded_before(x: Tensor) -> Tensor:
    count = int((x > 0).sum())
    return x * 2 if count > 3 else x


def unguarded_after(x: Tensor) -> Tensor:
    count = (x > 0).sum()
    return torch.where(count > 3, x * 2, x)


# --8<-- [end:unguarded]


# --8<-- [start:disabled]
@torch.compiler.disable
def library_function(x: Tensor) -> Tensor:
    return x.sin()


def calls_disabled(x: Tensor) -> Tensor:
    return library_function(x) + 1


# before: torch.compile(calls_disabled, fullgraph=True)
# after:  torch.compile(calls_disabled)
# --8<-- [end:disabled]


# --8<-- [start:reordered]
def reordered_before(x: Tensor) -> Tensor:
    total = x + 1
    print("first:", total[0])
    return total.add_(100)


def reordered_after(x: Tensor) -> Tensor:
    total = x + 1
    print("first:", total[0])
    return total + 100


# --8<-- [end:reordered]


# --8<-- [start:seed]
def seed_before(x: Tensor) -> Tensor:
    import numpy

    return x + torch.from_numpy(numpy.random.randn(8)).float()


def seed_after(x: Tensor, noise: Tensor) -> Tensor:
    return x + noise  # compiled(x, draw())


def draw() -> Tensor:
    import numpy

    return torch.from_numpy(numpy.random.randn(8)).float()


# --8<-- [end:seed]


def entries(function: Callable) -> str:
    """How the log's entries begin."""
    with redirect_stdout(StringIO()):
        log = find(function, make_x()).log
    return "\n".join(entry.partition(" in user code")[0] for entry in log) or "no entry"


def reason(function: Callable) -> str:
    """The first entry of the log, without its place and its explanation."""
    with redirect_stdout(StringIO()):
        log = find(function, make_x()).log
    return "\n".join(log[0].splitlines()[1:3]) if log else "no entry"


def error(function: Callable, **options: bool) -> Callable[[], str]:
    return lambda: message(compiled(function, **options), make_x())


SYMPTOMS: dict[str, Callable[[], str]] = {
    "skipped": lambda: reason(skipped_before),
    "repeated": lambda: entries(repeated_before),
    "caught": error(caught_before),
    "late hook": lambda: late_hook(forget=False),
    "no fake": error(lambda x: double_without_fake(x).sin()),
    "alias": error(alias_before),
    "unguarded": error(unguarded_before, fullgraph=True),
    "disabled": error(calls_disabled, fullgraph=True),
    "reordered": lambda: printed(reordered_before),
    "seed": lambda: agree(seed_before, compiled(seed_before)),
}


def main() -> None:
    """Print each symptom."""
    for name, symptom in SYMPTOMS.items():
        print(f"==== {name}")
        print(symptom())


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main()
