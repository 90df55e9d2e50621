"""A training step under torch.compile: what is kept for backward, and what each choice around it changes.

Run `python -m snippets.compiler.training`.
"""

import logging
from collections.abc import Callable

import torch
from torch import Tensor, nn

from snippets.compiler.training_autocast import dtype_of_backward, inside, outside
from snippets.compiler.training_backward import backward_graphs
from snippets.compiler.training_kept import Kept, kept
from snippets.compiler.training_model import Batch, Model, small
from snippets.compiler.training_optimizer import graphs_of_a_cycle, graphs_of_updates
from snippets.compiler.training_partition import HEAD, line, partition, show_choices
from snippets.compiler.training_step import loss_of, train_step


# --8<-- [start:accumulation]
def loss_of_all(model: nn.Module, *batches: Batch) -> Tensor:
    """Accumulation inside the compiled function: one graph for all micro-batches, one backward behind it."""
    losses = [loss_of(model, tokens, targets) for tokens, targets in batches]
    return sum(losses[1:], losses[0]) / len(losses)


# --8<-- [end:accumulation]


def graphs_of_step(model: Model, batch: Batch) -> list[list[str]]:
    """What Dynamo captures where the whole step is compiled: the operations of each graph."""
    graphs: list[list[str]] = []

    def keep(graph: torch.fx.GraphModule, example_inputs: list) -> Callable:
        calls = [node.target for node in graph.graph.nodes if node.op.startswith("call_")]
        graphs.append([getattr(target, "__name__", str(target)) for target in calls])
        return graph

    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    torch.compiler.reset()
    torch.compile(train_step, backend=keep)(model, optimizer, [batch])
    return graphs


def show_steps(model: nn.Module, tokens: Tensor, targets: Tensor, plain: Kept) -> None:
    """What is compiled of a step: batches in parts, autocast, the optimizer."""
    print("==== accumulation")
    halves = [(tokens[:1], targets[:1]), (tokens[1:], targets[1:])]
    print(HEAD)
    print(line("one batch", plain, plain))
    print(line("two halves, loop outside", kept(*partition(loss_of, model, *halves[0])), plain))
    print(line("two halves, loop inside", kept(*partition(loss_of_all, model, *halves)), plain))

    print("==== autocast")
    print(f"autocast inside:                           backward multiplies in {dtype_of_backward(inside, False)}")
    print(f"autocast outside:                          backward multiplies in {dtype_of_backward(outside, True)}")
    off = dtype_of_backward(outside, True, backward_pass_autocast="off")
    print(f"outside, with backward_pass_autocast off:  backward multiplies in {off}")

    print("==== learning rates")
    rates = [0.1, 0.09, 0.08, 0.07]
    print(f"numbers: graphs so far {graphs_of_updates(rates, as_tensor=False)}")
    print(f"tensors: graphs so far {graphs_of_updates(rates, as_tensor=True)}")

    print("==== one cycle")
    logging.disable(logging.WARNING)  # the limit is reached
    print(f"OneCycleLR, a number:                graphs so far {graphs_of_a_cycle(False, True)}")
    print(f"OneCycleLR, a tensor:                graphs so far {graphs_of_a_cycle(True, True)}")
    print(f"a tensor, and cycle_momentum=False:  graphs so far {graphs_of_a_cycle(True, False)}")
    logging.disable(logging.NOTSET)

    print("==== whole step")
    for operations in graphs_of_step(model, (tokens, targets)):
        known = [name for name in ("cross_entropy", "_foreach_norm", "lerp_") if name in operations]
        print(f"a graph of {len(operations):>3} operations, among them {', '.join(known)}")

    print("==== compiled autograd")
    print(f"without: operations in each graph of backward {backward_graphs(False)}")
    print(f"with:    operations in each graph of backward {backward_graphs(True)}")

    print("==== exercise")
    print(HEAD)
    print(line("2 rows", plain, plain))
    twice = kept(*partition(loss_of, model, *small(rows=4)[1]))
    print(line("4 rows", twice, plain))
    matrices = [p for p in model.parameters() if p.dim() == 2 and p is not model.embedding.weight]
    print(f"{'does not grow':<28}{(2 * plain.nbytes - twice.nbytes) / 1024:>10.1f}")
    print(f"{'all matrices in bf16':<28}{sum(2 * p.numel() for p in matrices) / 1024:>10.1f}")


def main() -> None:
    """Nothing is generated, so it takes no compiler."""
    model, batch = small()
    plain = kept(*partition(loss_of, model, *batch))
    show_choices(model, *batch, plain)
    show_steps(model, *batch, plain)


if __name__ == "__main__":
    main()
