"""Tables of what a step keeps and repeats: checkpointing, its order, budgets, dropout."""

from collections.abc import Callable
from functools import partial

import torch
import torch._functorch.config
from functorch.compile import make_boxed_func, min_cut_rematerialization_partition
from torch import Tensor, nn
from torch._dynamo.backends.common import aot_autograd
from torch._inductor.decomposition import select_decomp_table

from snippets.compiler.training_checkpointing import (
    PRODUCTS,
    checkpoint_compiled,
    compile_checkpointed,
    selective,
    whole,
    with_run,
)
from snippets.compiler.training_dropout import with_dropout
from snippets.compiler.training_kept import Kept, kept, work
from snippets.compiler.training_model import Block, Run, mlp, mlp_inputs
from snippets.compiler.training_step import loss_of
from snippets.compiler.what_compile_does_graphs import readable

# --8<-- [start:partition]
Graphs = tuple[torch.fx.GraphModule, torch.fx.GraphModule]  # forward and backward


def partition(function: Callable[..., Tensor], *inputs: object, budget: float = 1.0) -> Graphs:
    """The forward and the backward graph that AOTAutograd hands on for code to be generated."""
    handed_on = []

    def keep(joint: torch.fx.GraphModule, *arguments: object, **options: object) -> Graphs:
        handed_on.append(min_cut_rematerialization_partition(joint, *arguments, **options))
        return handed_on[-1]

    backend = aot_autograd(
        fw_compiler=lambda graph, inputs: make_boxed_func(graph),  # runs it operation by operation
        decompositions=select_decomp_table(),
        partition_fn=keep,
    )
    torch.compiler.reset()
    with torch._functorch.config.patch(activation_memory_budget=budget):
        torch.compile(function, backend=backend, dynamic=False, fullgraph=True)(*inputs)
    (graphs,) = handed_on
    return graphs


# --8<-- [end:partition]
def products_run(order: Callable[..., Callable], run: Run) -> tuple[list[int], list[int]]:
    """How many products each graph has that runs in forward, and each that runs in backward."""
    ran: list[int] = []

    def counted(graph: torch.fx.GraphModule, example_inputs: list) -> Callable:
        def called(*inputs: object) -> object:
            ran.append(sum(work(node) in PRODUCTS for node in graph.graph.nodes))
            return graph(*inputs)

        return make_boxed_func(called)

    decompositions = select_decomp_table()
    partition_fn = min_cut_rematerialization_partition
    backend = aot_autograd(fw_compiler=counted, decompositions=decompositions, partition_fn=partition_fn)
    torch.compiler.reset()
    y = order(run, Block(32), partial(torch.compile, backend=backend))(torch.ones(2, 16, 32, requires_grad=True))
    forward = list(ran)
    y.sum().backward()
    return forward, ran[len(forward) :]


def line(name: str, plan: Kept, plain: Kept) -> str:
    """A plan as a line of a table; bytes also as a share of those of another plan."""
    share = f"{100 * plan.nbytes / plain.nbytes:.0f}"
    return f"{name:<28}{plan.nbytes / 1024:>10.1f}{share:>8}{plan.products:>10}{plan.others:>10}"


HEAD = f"{'':<28}{'KiB kept':>10}{'of 100':>8}{'products':>10}{'others':>10}"


def show_choices(model: nn.Module, tokens: Tensor, targets: Tensor, plain: Kept) -> None:
    """What is kept and what is repeated, choice by choice."""
    for name, graph in zip(("forward", "backward"), partition(mlp, *mlp_inputs()), strict=True):
        print(f"==== {name}")
        print(readable(graph))

    print("==== checkpointing")
    print(HEAD)
    print(line("nothing said", plain, plain))
    for name, run in (("whole blocks", whole), ("products kept", selective)):
        print(line(name, kept(*partition(loss_of, with_run(model, run), tokens, targets)), plain))

    print("==== order")
    for order in (compile_checkpointed, checkpoint_compiled):
        for run in (whole, selective):
            forward, backward = products_run(order, run)
            print(f"{order.__name__:<22}{run.__name__:<11} products in forward {forward}, in backward {backward}")

    print("==== budgets")
    print(HEAD)
    print(line("budget 1.0", plain, plain))
    for budget in (0.9, 0.5, 0.25, 0.0):
        print(line(f"budget {budget}", kept(*partition(loss_of, model, tokens, targets, budget=budget)), plain))

    print("==== dropout")
    loss, gradient = with_dropout(1.0)
    for budget in (0.9, 0.5, 0.0):
        other_loss, other = with_dropout(budget)
        error = ((other - gradient).norm() / gradient.norm()).item()
        print(f"budget {budget}: the same loss {bool(loss == other_loss)}, a gradient that is off by {error:.2f} of it")
