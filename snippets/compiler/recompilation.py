"""When does torch.compile compile again, and what mends it? Run `python -m snippets.compiler.recompilation`."""

import logging
from collections.abc import Callable, Iterable
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch._functorch.config
import torch._inductor.config
import torch.nn.functional as F
from torch import Tensor, nn
from torch._dynamo.utils import clear_compilation_metrics, get_compilation_metrics
from torch.fx.experimental.symbolic_shapes import ConstraintViolationError

# ---- counting -------------------------------------------------------------------------------------------------------


# --8<-- [start:counter]
@dataclass
class Counter:
    """A backend that counts the graphs it gets, and the calls that ran one. What runs them is another backend."""

    inner: str = "eager"
    compiled: int = 0
    ran: int = 0

    def __call__(self, graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable:
        self.compiled += 1
        run = torch._dynamo.lookup_backend(self.inner)(graph, inputs)

        def counted(*arguments: Tensor) -> object:
            self.ran += 1
            return run(*arguments)

        return counted


def count(scene: Callable[[Callable], None]) -> tuple[int, list[str]]:
    """How many graphs a scene compiles, and for each but the first the guard that failed, as the log words it."""
    counter = Counter()
    torch.compiler.reset()
    clear_compilation_metrics()
    scene(partial(torch.compile, backend=counter))
    reasons = [metrics.recompile_reason for metrics in get_compilation_metrics() if metrics.recompile_reason]
    return counter.compiled, [guard_of(reason) for reason in reasons]


# --8<-- [end:counter]


def guard_of(reason: str) -> str:
    """The first line of a reason, without the entry's number before it and the line of source behind it."""
    return reason.splitlines()[0].partition(": ")[2].partition("  #")[0].strip()


# ---- what is specialised --------------------------------------------------------------------------------------------


# --8<-- [start:functions]
def double(x: Tensor) -> Tensor:
    return x * 2


def scaled(x: Tensor, factor: Any) -> Tensor:
    return x * factor


def activated(x: Tensor, name: str) -> Tensor:
    return F.relu(x) if name == "relu" else F.gelu(x)


def total(tensors: list[Tensor]) -> Tensor:
    return torch.stack(tensors).sum(0)


class Scaled(nn.Module):
    """A module that reads a number of its own."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor


# --8<-- [end:functions]


def calls(function: Callable, *each: tuple) -> Callable[[Callable], None]:
    """A scene: the function, compiled, called with each tuple of arguments."""

    def scene(compile: Callable) -> None:
        compiled = compile(function)
        for arguments in each:
            compiled(*arguments)

    return scene


def attribute(*values: float) -> Callable[[Callable], None]:
    """A scene: a module whose attribute has another value in each call."""

    def scene(compile: Callable) -> None:
        module = Scaled(values[0])
        compiled = compile(module)
        for value in values:
            module.factor = value
            compiled(torch.ones(4))

    return scene


def under(*contexts: Callable) -> Callable[[Callable], None]:
    """A scene: the same call under several context managers."""

    def scene(compile: Callable) -> None:
        compiled = compile(double)
        for context in contexts:
            with context():
                compiled(torch.ones(4))

    return scene


def ones(*sizes: int, **keywords: Any) -> tuple[Tensor]:
    return (torch.ones(*sizes, **keywords),)


# --8<-- [start:specialised]
SPECIALISED = {  # what differs from call to call: the calls
    "size 5, 6, 7, 8": calls(double, ones(5), ones(6), ones(7), ones(8)),
    "size 5, 6, 1, 0": calls(double, ones(5), ones(6), ones(1), ones(0)),
    "number of dimensions": calls(double, ones(4), ones(4, 1), ones(4, 1, 1)),
    "dtype": calls(double, ones(4), ones(4, dtype=torch.float64), ones(4, dtype=torch.bfloat16)),
    "device": calls(double, ones(4), ones(4, device="meta")),
    "requires_grad": calls(double, ones(4), ones(4, requires_grad=True)),
    "strides, transposed": calls(double, ones(4, 6), (torch.ones(6, 4).t(),)),
    "int argument 5, 6, 7, 8": calls(scaled, *((torch.ones(4), value) for value in (5, 6, 7, 8))),
    "float argument .5, .6, .7, .8": calls(scaled, *((torch.ones(4), value) for value in (0.5, 0.6, 0.7, 0.8))),
    "string argument": calls(activated, *((torch.ones(4), name) for name in ("relu", "gelu", "relu"))),
    "list of 2, 3, 4, 5 tensors": calls(total, *(([torch.ones(4)] * length,) for length in (2, 3, 4, 5))),
    "int attribute 5, 6, 7, 8": attribute(5, 6, 7, 8),
    "float attribute .5, .6, .7, .8": attribute(0.5, 0.6, 0.7, 0.8),
    "grad mode": under(torch.enable_grad, torch.no_grad),
    "autocast": under(torch.enable_grad, partial(torch.autocast, "cpu")),
}
# --8<-- [end:specialised]


# ---- before and after -----------------------------------------------------------------------------------------------


# --8<-- [start:sizes]
def sizes_before(compile: Callable) -> None:
    compiled = compile(double, dynamic=False)
    for length in range(5, 11):
        compiled(torch.ones(length))


def sizes_after(compile: Callable) -> None:
    compiled = compile(double)
    for length in range(5, 11):
        x = torch.ones(length)
        torch._dynamo.mark_dynamic(x, 0, min=2, max=1024)
        compiled(x)


# --8<-- [end:sizes]
# --8<-- [start:one]
def one_before(compile: Callable) -> None:
    compiled = compile(double)
    for batch in (8, 6, 1, 0):
        compiled(torch.ones(batch))


def one_after(compile: Callable) -> None:
    compiled = compile(double)
    for batch in (8, 6, 1, 0):
        x = torch.ones(batch)
        torch._dynamo.decorators.mark_unbacked(x, 0)
        compiled(x)


# --8<-- [end:one]
# --8<-- [start:attribute]
def attribute_before(compile: Callable) -> None:
    module = Scaled(5)
    compiled = compile(module)
    for step in range(5, 11):
        module.factor = step
        compiled(torch.ones(4))


def attribute_after(compile: Callable) -> None:
    module = Scaled(torch.tensor(5))
    compiled = compile(module)
    for step in range(5, 11):
        module.factor.fill_(step)
        compiled(torch.ones(4))


# --8<-- [end:attribute]
# --8<-- [start:layers]
class Layer(nn.Module):
    """A layer that finds its part of a cache by its own number, as many decoders do."""

    def __init__(self, index: int) -> None:
        super().__init__()
        self.index = index

    def forward(self, x: Tensor, cache: list[Tensor]) -> Tensor:
        return x + cache[self.index]


class Given(nn.Module):
    """The same layer, which is given its part."""

    def forward(self, x: Tensor, part: Tensor) -> Tensor:
        return x + part


def layers_before(compile: Callable) -> None:
    cache = [torch.ones(4) for _ in range(12)]
    for index in range(12):
        compile(Layer(index))(torch.ones(4), cache)  # twelve modules, one forward: one list of entries


def layers_after(compile: Callable) -> None:
    cache = [torch.ones(4) for _ in range(12)]
    for index in range(12):
        compile(Given())(torch.ones(4), cache[index])


# --8<-- [end:layers]
# --8<-- [start:global]
temperature = 5


def cooled(x: Tensor) -> Tensor:
    return x / temperature


def global_before(compile: Callable) -> None:
    global temperature
    compiled = compile(cooled)
    for value in range(5, 11):
        temperature = value
        compiled(torch.ones(4))


def global_after(compile: Callable) -> None:
    compiled = compile(lambda x, temperature: x / temperature)
    for value in range(5, 11):
        compiled(torch.ones(4), value)


# --8<-- [end:global]
# --8<-- [start:list]
def list_before(compile: Callable) -> None:
    compiled = compile(total)
    for length in range(2, 8):
        compiled([torch.ones(4)] * length)


def list_after(compile: Callable) -> None:
    compiled = compile(lambda stacked: stacked.sum(0))
    for length in range(2, 8):
        compiled(torch.stack([torch.ones(4)] * length))


# --8<-- [end:list]
# --8<-- [start:loop]
def shifted(x: Tensor, steps: int) -> Tensor:
    for _ in range(steps):  # unrolled: the graph has this many additions, and no others
        x = x + 1
    return x


def loop_before(compile: Callable) -> None:
    compiled = compile(shifted)
    for steps in range(2, 8):
        compiled(torch.ones(4), steps)


def loop_after(compile: Callable) -> None:
    compiled = compile(lambda x, steps: x + steps)
    for steps in range(2, 8):
        compiled(torch.ones(4), steps)


# --8<-- [end:loop]
# --8<-- [start:rate]
def descend(compile: Callable, rate: float | Tensor) -> None:
    weight = nn.Parameter(torch.ones(4))
    weight.grad = torch.ones(4)
    optimizer = torch.optim.SGD([weight], lr=rate)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    step = compile(lambda: optimizer.step())
    for _ in range(6):
        step()
        schedule.step()


def rate_before(compile: Callable) -> None:
    descend(compile, 0.1)


def rate_after(compile: Callable) -> None:
    descend(compile, torch.tensor(0.1))


# --8<-- [end:rate]
# --8<-- [start:strides]
def strides_before(compile: Callable) -> None:
    compiled = compile(double)
    for x in (torch.ones(4, 6), torch.ones(6, 4).t(), torch.ones(4, 6)[:, ::2]):
        compiled(x)


def strides_after(compile: Callable) -> None:
    compiled = compile(double, dynamic=True)
    for x in (torch.ones(4, 6), torch.ones(6, 4).t(), torch.ones(4, 6)[:, ::2]):
        compiled(x.contiguous())


# --8<-- [end:strides]
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


# --8<-- [start:floats]
def normalized(x: Tensor, scale: float) -> Tensor:
    """The float is a factor, and is in eps."""
    return F.rms_norm(x * scale, x.shape[-1:], eps=scale + 0.5)


def errors_of_floats(scales: Iterable[float], cached: bool) -> list[float]:
    """The largest error of each compiled call, against eager code."""
    torch.compiler.reset()
    x = torch.linspace(-1, 1, 32).view(4, 8)
    compiled = torch.compile(normalized)
    with (
        torch._inductor.config.patch(fx_graph_cache=cached),
        torch._functorch.config.patch(enable_autograd_cache=cached),
    ):
        errors = [compiled(x, s) - normalized(x, s) for s in scales]
        return [error.abs().max().item() for error in errors]


# --8<-- [end:floats]


# ---- past the limit, and stances ------------------------------------------------------------------------------------


# --8<-- [start:limit]
def past_the_limit(lengths: Iterable[int]) -> tuple[list[str], list[str]]:
    """What each of several calls did, and what torch said meanwhile. Every length needs a graph of its own."""
    counter, outcomes = Counter(), []
    torch.compiler.reset()
    compiled = torch.compile(double, backend=counter, dynamic=False)
    with said() as messages:
        for length in lengths:
            outcomes.append(outcome(counter, compiled, torch.ones(length)))
    return outcomes, messages


def outcome(counter: Counter, compiled: Callable, x: Tensor) -> str:
    """Whether a call compiled, ran a graph from before, ran eagerly, or raised."""
    before, ran = counter.compiled, counter.ran
    try:
        compiled(x)
    except RuntimeError as error:
        return f"raises {type(error).__name__}"
    return "compiles" if counter.compiled > before else "runs its graph" if counter.ran > ran else "runs eagerly"


# --8<-- [end:limit]


@contextmanager
def said() -> Iterable[list[str]]:
    """The warnings that Dynamo logs meanwhile, in place of standard error."""
    logger, messages = logging.getLogger("torch._dynamo.convert_frame"), []
    handler = logging.Handler()
    handler.emit = lambda record: messages.append(record.getMessage())  # type: ignore[method-assign]
    usual, propagated = logger.handlers, logger.propagate
    logger.handlers, logger.propagate = [handler], False
    try:
        yield messages
    finally:
        logger.handlers, logger.propagate = usual, propagated


# --8<-- [start:stances]
STANCES = ("default", "eager_on_recompile", "fail_on_recompile", "force_eager")


def stance(name: str) -> list[str]:
    """Compiled for length 5, then under a stance: what the same length does, and what a new one does."""
    counter = Counter()
    torch.compiler.reset()
    compiled = torch.compile(double, backend=counter, dynamic=False)
    compiled(torch.ones(5))
    with torch.compiler.set_stance(name):
        return [outcome(counter, compiled, torch.ones(length)) for length in (5, 6)]


def eager_first(lengths: Iterable[int]) -> list[str]:
    """What calls of different lengths do where the first is not compiled, but only looked at."""
    counter = Counter()
    torch.compiler.reset()
    with torch.compiler.set_stance("eager_then_compile"):
        compiled = torch.compile(double, backend=counter)
        return [outcome(counter, compiled, torch.ones(length)) for length in lengths]


# --8<-- [end:stances]


# --8<-- [start:promise]
def at_five(x: Tensor) -> Tensor:
    """Asks for one size, and so makes a constant of it where the answer is yes."""
    return x * 2 if x.shape[0] == 5 else x


def of_marked(mark: Callable[[Tensor, int], None]) -> str:
    """Whether a function that asks for a size is compiled where the size is marked, or what torch says."""
    x = torch.ones(5)
    mark(x, 0)
    torch.compiler.reset()
    try:
        torch.compile(at_five, backend="eager")(x)
    except ConstraintViolationError as error:
        return next(text.strip(" -") for text in str(error).splitlines() if "You marked" in text).partition(". ")[0]
    return "one graph, for 5 alone"


# --8<-- [end:promise]


# --8<-- [start:attend]
def attend(x: Tensor) -> Tensor:
    """Self-attention in two heads, of which nothing is known but the code."""
    heads = x.unflatten(-1, (2, -1)).transpose(1, 2)
    return F.scaled_dot_product_attention(heads, heads, heads, is_causal=True)


def attend_checked(x: Tensor) -> Tensor:
    torch._check(x.shape[1] >= 2)  # says of the size what the mark took away
    return attend(x)


def of_unbacked(function: Callable[[Tensor], Tensor]) -> str:
    """Whether a function can be one graph where the length is unbacked, or what stands in the way."""
    x = torch.ones(1, 8, 64)
    torch._dynamo.decorators.mark_unbacked(x, 1)
    torch.compiler.reset()
    try:
        torch.compile(function, backend="eager", fullgraph=True)(x)
    except torch._dynamo.exc.TorchDynamoException as error:
        return str(error).splitlines()[0].partition(" (")[0]
    return "one graph"


# --8<-- [end:attend]


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
