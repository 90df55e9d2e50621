"""A training step under torch.compile: what is kept for backward, and what each choice around it changes.

Run `python -m snippets.compiler.training`.
"""

import copy
import logging
import re
import textwrap
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial

import torch
import torch._dynamo.compiled_autograd
import torch._functorch.config
import torch.nn.functional as F
from functorch.compile import make_boxed_func, min_cut_rematerialization_partition
from torch import Tensor, nn
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.backends.registry import lookup_backend
from torch._inductor.decomposition import select_decomp_table
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

Batch = tuple[Tensor, Tensor]  # tokens and targets, both (rows, length)
Run = Callable[[nn.Module, Tensor], Tensor]  # applies a block to its input
aten = torch.ops.aten
MAX_NORM = 0.1  # so small that the gradients of this model are always clipped


# --8<-- [start:mlp]
def mlp(x: Tensor, scale: Tensor, up: Tensor, down: Tensor) -> Tensor:
    """x (tokens, width), scale (width,), up (8 * width, width), down (width, 4 * width)."""
    gate, value = F.linear(F.rms_norm(x, scale.shape, scale), up).chunk(2, dim=-1)
    return x + F.linear(F.silu(gate) * value, down)


# --8<-- [end:mlp]


class Block(nn.Module):
    """A transformer block: x (rows, length, width) to the same shape."""

    def __init__(self, width: int):
        super().__init__()
        self.heads = max(width // 128, 1)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 8 * width, bias=False), nn.Linear(4 * width, width, bias=False)
        self.scale, self.scale_mlp = nn.Parameter(torch.ones(width)), nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        rows, length, width = x.shape
        heads = self.qkv(F.rms_norm(x, self.scale.shape, self.scale)).view(rows, length, 3, self.heads, -1)
        q, k, v = heads.transpose(1, 3).unbind(2)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(rows, length, width))
        return mlp(x, self.scale_mlp, self.up.weight, self.down.weight)


# --8<-- [start:model]
class Model(nn.Module):
    """Next-token loss of a small language model. `run` applies a block: here checkpointing comes in."""

    def __init__(self, vocabulary: int, width: int, layers: int):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.run: Run = nn.Module.__call__

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = self.run(block, x)
        logits = self.head(F.rms_norm(x, x.shape[-1:]))
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


# --8<-- [end:model]


# --8<-- [start:step]
def loss_of(model: nn.Module, tokens: Tensor, targets: Tensor) -> Tensor:
    """The forward, in bf16 where autocast thinks that safe."""
    with torch.autocast(tokens.device.type, torch.bfloat16):
        return model(tokens, targets)


def clip_and_update(parameters: Sequence[Tensor], optimizer: torch.optim.Optimizer) -> None:
    nn.utils.clip_grad_norm_(parameters, MAX_NORM)
    optimizer.step()


def train_step(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    batches: Sequence[Batch],
    loss_of: Callable[..., Tensor] = loss_of,
    clip_and_update: Callable[..., None] = clip_and_update,
) -> Tensor:
    """One update from one batch, or from several: the gradients of `batches` are accumulated."""
    losses = []
    for tokens, targets in batches:
        loss = loss_of(model, tokens, targets) / len(batches)
        loss.backward()
        losses.append(loss.detach())
    clip_and_update(list(model.parameters()), optimizer)
    optimizer.zero_grad()
    return torch.stack(losses).sum()


# --8<-- [end:step]


# --8<-- [start:checkpointing]
def whole(block: nn.Module, x: Tensor) -> Tensor:
    """Keeps the block's input, and runs the block again in backward."""
    return checkpoint(block, x, use_reentrant=False)


PRODUCTS = [
    aten.mm.default,
    aten._scaled_dot_product_flash_attention.default,
    aten._scaled_dot_product_cudnn_attention.default,
    aten._scaled_dot_product_efficient_attention.default,
    aten._scaled_dot_product_flash_attention_for_cpu.default,
]


def selective(block: nn.Module, x: Tensor) -> Tensor:
    """As `whole`, but the results of products are kept."""
    return checkpoint(block, x, use_reentrant=False, context_fn=partial(create_selective_checkpoint_contexts, PRODUCTS))


def with_run(model: Model, run: Run) -> Model:
    """The same parameters, with its blocks run in another way."""
    other = copy.copy(model)
    other.run = run
    return other


# --8<-- [end:checkpointing]


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


# --8<-- [start:kept]
@dataclass(frozen=True)
class Kept:
    """What a partition keeps for backward, in bytes, and what it computes again.

    Inputs of the graph, which exist anyway, are not counted, nor are views of them.
    """

    nbytes: int
    products: int  # matrix products and attention that backward repeats
    others: int  # other operations that it repeats


def kept(forward: torch.fx.GraphModule, backward: torch.fx.GraphModule, outputs: int = 1) -> Kept:
    """An operation is repeated if backward has a node of the same name, or runs it with forward's random numbers."""
    saved = {base(node) for node in forward.graph.output_node().args[0][outputs:]}
    in_forward = {node.name for node in forward.graph.nodes}
    again = [
        operation
        for node in backward.graph.nodes
        if (operation := work(node)) and (node.name in in_forward or node.target is not operation)
    ]
    products = sum(operation in PRODUCTS for operation in again)
    return Kept(sum(nbytes(node) for node in saved if node.op != "placeholder"), products, len(again) - products)


# --8<-- [end:kept]


# --8<-- [start:dropout]
def dropped(x: Tensor, weight: Tensor) -> Tensor:
    """x (rows, width), weight (width, width)."""
    scores = F.softmax(x @ weight @ x.mT, dim=-1)
    return (F.dropout(scores, 0.5) @ x).relu().sum()


def with_dropout(budget: float) -> tuple[Tensor, Tensor]:
    """Loss and weight gradient, compiled under a budget, from one seed."""
    torch.manual_seed(0)
    x, weight = torch.randn(64, 32), torch.randn(32, 32, requires_grad=True)
    torch.compiler.reset()
    backend = "aot_eager_decomp_partition"
    with torch._functorch.config.patch(activation_memory_budget=budget):
        loss = torch.compile(dropped, backend=backend)(x, weight)
    return loss.detach(), *torch.autograd.grad(loss, weight)


# --8<-- [end:dropout]


def base(node: torch.fx.Node) -> torch.fx.Node:
    """What a view is a view of."""
    while node.op != "placeholder" and getattr(node.target, "is_view", False):
        node = node.args[0]
    return node


def work(node: torch.fx.Node) -> torch._ops.OpOverload | None:
    """The operation that a node runs; None if it is a view or picks from a tuple.

    Attention counts as random, dropout or not, so a graph that repeats it wraps it with the state to begin from.
    """
    wrapped = {"run_and_save_rng_state": 0, "run_with_rng_state": 1}.get(str(node.target))
    operation = node.target if wrapped is None else node.args[wrapped]
    return operation if isinstance(operation, torch._ops.OpOverload) and not operation.is_view else None


def nbytes(node: torch.fx.Node) -> int:
    """Of a tensor; the state of a random generator, whose size is left open, counts as nothing."""
    value = node.meta.get("val")
    fixed = isinstance(value, Tensor) and all(isinstance(size, int) for size in value.shape)
    return value.nbytes if fixed else 0


# --8<-- [start:order]
def checkpoint_compiled(run: Run, block: nn.Module, compiler: Callable) -> Callable[[Tensor], Tensor]:
    """The checkpoint around the compiled block."""
    compiled = compiler(block)
    return lambda x: run(compiled, x)


def compile_checkpointed(run: Run, block: nn.Module, compiler: Callable) -> Callable[[Tensor], Tensor]:
    """The compiled function around the checkpoint."""
    return compiler(lambda x: run(block, x))


# --8<-- [end:order]


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


# --8<-- [start:accumulation]
def loss_of_all(model: nn.Module, *batches: Batch) -> Tensor:
    """Accumulation inside the compiled function: one graph for all micro-batches, one backward behind it."""
    losses = [loss_of(model, tokens, targets) for tokens, targets in batches]
    return sum(losses[1:], losses[0]) / len(losses)


# --8<-- [end:accumulation]


# --8<-- [start:autocast]
def fragile(x: Tensor, weight: Tensor) -> Tensor:
    """Its author wants this product in fp32, whatever stands around it."""
    with torch.autocast(x.device.type, enabled=False):
        return x @ weight


def inside(x: Tensor, weight: Tensor) -> Tensor:
    """Autocast belongs to the compiled function. Called without autocast around it."""
    with torch.autocast(x.device.type, torch.bfloat16):
        return fragile(x, weight)


def outside(x: Tensor, weight: Tensor) -> Tensor:
    """Autocast is on around the call, as the caller left it. (A function of its own: it shall share nothing.)"""
    return fragile(x, weight)


def dtype_of_backward(function: Callable[..., Tensor], around: bool, **config: str) -> str:
    """In which dtype the compiled backward multiplies, with autocast on around the call or not."""
    graphs: list[torch.fx.GraphModule] = []

    def keep(graph: torch.fx.GraphModule, example_inputs: list) -> Callable:
        graphs.append(graph)
        return make_boxed_func(graph)

    x, weight = (torch.ones(4, 4, requires_grad=True) for _ in range(2))
    torch.compiler.reset()
    with torch._functorch.config.patch(**config):
        with torch.autocast("cpu", torch.bfloat16, enabled=around):
            y = torch.compile(function, backend=aot_autograd(fw_compiler=keep))(x, weight)
        y.sum().backward()
    (dtype,) = {str(node.meta["val"].dtype) for node in graphs[-1].graph.nodes if node.target is aten.mm.default}
    return dtype


# --8<-- [end:autocast]


# --8<-- [start:rates]
def graphs_of_updates(rates: Iterable[float], as_tensor: bool) -> list[int]:
    """How many graphs a compiled optimizer has needed after each of several learning rates."""
    weight = nn.Parameter(torch.zeros(8))
    optimizer = torch.optim.AdamW([weight], lr=torch.tensor(0.1) if as_tensor else 0.1)
    graphs: list[torch.fx.GraphModule] = []

    def keep(graph: torch.fx.GraphModule, example_inputs: list) -> Callable:
        graphs.append(graph)
        return graph

    torch.compiler.reset()
    update = torch.compile(optimizer.step, backend=keep)
    counts = []
    for rate in rates:
        optimizer.param_groups[0]["lr"] = torch.tensor(rate) if as_tensor else rate
        weight.grad = torch.ones(8)
        update()
        counts.append(len(graphs))
    return counts


# --8<-- [end:rates]


# --8<-- [start:cycle]
def graphs_of_a_cycle(as_tensor: bool, cycle_momentum: bool) -> list[int]:
    """The same under OneCycleLR, which by default changes Adam's betas, too. AOTAutograd makes constants of these."""
    weight = nn.Parameter(torch.zeros(8))
    optimizer = torch.optim.AdamW([weight], lr=torch.tensor(0.1) if as_tensor else 0.1)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=20, cycle_momentum=cycle_momentum)
    graphs: list[torch.fx.GraphModule] = []

    def keep(graph: torch.fx.GraphModule, example_inputs: list) -> Callable:
        graphs.append(graph)
        return lookup_backend("aot_eager")(graph, example_inputs)

    torch.compiler.reset()
    update = torch.compile(optimizer.step, backend=keep)
    counts = []
    for _ in range(12):
        weight.grad = torch.ones(8)
        update()
        schedule.step()
        counts.append(len(graphs))
    return counts


# --8<-- [end:cycle]


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


# --8<-- [start:compiled-autograd]
def in_three(x: Tensor) -> Tensor:
    """Two graph breaks, so three graphs forward, and as many backward."""
    x = x.sin().cos()
    torch._dynamo.graph_break()
    x = x.sin().cos()
    torch._dynamo.graph_break()
    return x.sin().cos()


def backward_graphs(compiled_autograd: bool) -> list[int]:
    """Operations in each graph that runs during a backward."""
    ran: list[int] = []

    def counted(graph: torch.fx.GraphModule, example_inputs: list) -> Callable:
        def run(*inputs: object) -> object:
            ran.append(sum(work(node) is not None for node in graph.graph.nodes))
            return graph(*inputs)

        return make_boxed_func(run)

    backend = aot_autograd(fw_compiler=counted)
    torch.compiler.reset()
    x = torch.ones(4, requires_grad=True)
    loss = torch.compile(in_three, backend=backend)(x).sum()
    ran.clear()
    engine = torch._dynamo.compiled_autograd._enable if compiled_autograd else nullcontext
    with engine(torch.compile(backend=backend)):
        loss.backward()
    return ran


# --8<-- [end:compiled-autograd]


def readable(graph: torch.fx.GraphModule) -> str:
    """A graph as Python: each operation with its result's type, under the line of source that it comes from."""
    text = graph.print_readable(print_output=False).partition("\n")[2]
    text = re.sub(r"# File: .*, code: ", "# ", text)
    return textwrap.dedent(re.sub(r";  \w+ = .*None$", "", text, flags=re.MULTILINE)).strip()


def small(width: int = 128, rows: int = 2, length: int = 256, vocabulary: int = 512) -> tuple[Model, Batch]:
    """A model with one block, and a batch."""
    torch.manual_seed(0)
    tokens = torch.randint(vocabulary, (rows, length + 1))
    return Model(vocabulary, width, layers=1), (tokens[:, :-1], tokens[:, 1:])


def mlp_inputs(tokens: int = 256, width: int = 64) -> list[Tensor]:
    shapes = (tokens, width), (width,), (8 * width, width), (width, 4 * width)
    return [torch.ones(shape, requires_grad=True) for shape in shapes]


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
