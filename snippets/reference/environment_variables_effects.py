"""The effects of options: what a program does under an option's default, and under another value."""

import sys
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from snippets.reference.environment_variables_programs import one_kernel, waves
from snippets.reference.environment_variables_settings import DYNAMO, FUNCTORCH, INDUCTOR, option


# --8<-- [start:effects]
def compare(path: str, tried: object, effect: Callable[[], str]) -> tuple[str, str]:
    """What a program says under an option's default and under another value, compiled anew for each."""
    module, _, name = path.rpartition(".")
    lines = []
    for value in (option(path), tried):
        torch.compiler.reset()
        with sys.modules[module].patch({name: value}):
            lines.append(f"{name} = {value}: {effect()}")
    return name, "\n".join(lines)


def graphs(function: Callable, *inputs: Tensor) -> str:
    """How many graphs a call hands to the backend."""
    seen = []

    def keep(graph: torch.fx.GraphModule, _: list[Tensor]) -> Callable:
        seen.append(graph)
        return graph

    torch.compile(function, backend=keep)(*inputs)
    return f"{len(seen)} graph{'s' * (len(seen) != 1)} compiled"


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRU(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.cell(x.sin())[0].cos()


def forward_only() -> str:
    """How many graphs there are when backward has not been called yet."""
    from torch._dynamo.backends.common import aot_autograd

    seen = []

    def keep(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable:
        seen.append(graph)
        return graph

    compiled = torch.compile(lambda x: (x.sin() * x).sum(), backend=aot_autograd(fw_compiler=keep, bw_compiler=keep))
    compiled(torch.ones(4, requires_grad=True))
    return f"{len(seen)} compiled after forward"


def failing() -> str:
    def broken(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable:
        raise NotImplementedError("this backend cannot")

    try:
        torch.compile(waves, backend=broken)(torch.ones(4))
    except torch._dynamo.exc.BackendCompilerFailed as error:
        return type(error).__name__
    return "no error, and the function runs eagerly"


def dropout() -> str:
    x = torch.ones(64)
    results = []
    for function in (nn.functional.dropout, torch.compile(nn.functional.dropout)):
        torch.manual_seed(0)
        results.append(function(x))
    return "eager's numbers" if torch.equal(*results) else "other numbers than eager, from the same seed"


def rounded() -> str:
    def scaled(x: Tensor) -> Tensor:
        return x * 1.1 * 1.3 + x

    x = torch.linspace(-1, 1, 4096).bfloat16()
    same = torch.equal(torch.compile(scaled)(x), scaled(x))
    return "bit for bit eager's" if same else "differs from eager in the last bits"


def not_a_number() -> str:
    try:
        torch.compile(lambda x: (x - 2).sqrt() + 1)(torch.ones(32))
    except AssertionError:
        return "AssertionError"
    return "no error"


def second_time() -> str:
    """Which cache answers when a function is compiled once more."""
    from torch._dynamo.utils import counters

    for _ in range(2):
        torch.compiler.reset()
        counters.clear()
        one_kernel()
    hits = {"autograd": counters["aot_autograd"]["autograd_cache_hit"], "fx": counters["inductor"]["fxgraph_cache_hit"]}
    return ", ".join(f"{name} cache hit" for name, count in hits.items() if count) or "no hit"


# --8<-- [end:effects]


def effects() -> Iterator[tuple[str, str]]:
    """The effects of options, in a process that nobody has told anything about the compiler."""
    x = torch.ones(4)
    yield compare(f"{DYNAMO}.disable", True, lambda: graphs(waves, x))
    yield compare(f"{DYNAMO}.allow_rnn", True, lambda: graphs(Recurrent(), torch.ones(3, 2, 4)))
    yield compare(f"{FUNCTORCH}.force_non_lazy_backward_lowering", True, forward_only)
    yield compare(f"{DYNAMO}.suppress_errors", True, failing)
    yield compare(f"{INDUCTOR}.fallback_random", True, dropout)
    yield compare(f"{INDUCTOR}.emulate_precision_casts", True, rounded)
    yield compare(f"{INDUCTOR}.nan_asserts", True, not_a_number)
    yield compare(f"{FUNCTORCH}.enable_autograd_cache", False, second_time)
    with torch._functorch.config.patch(enable_autograd_cache=False):
        yield compare(f"{INDUCTOR}.fx_graph_cache", False, second_time)
    yield compare("torch.compiler.config.force_disable_caches", True, second_time)
