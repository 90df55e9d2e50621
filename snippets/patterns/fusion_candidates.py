"""Which operations of a model could share a kernel, and how many bytes that would save? Copy this file; it needs torch.

    print(report(find(model, *inputs)))

The operations are those that eager PyTorch would launch. They are traced with fake tensors: nothing is computed, and no
GPU is needed. `python -m snippets.patterns.fusion_candidates` shows it for a small network.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.func import functional_call
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_leaves, tree_map

SMALL = 2**16  # bytes; an operation that moves less is a matter of launches and not of bytes

# --8<-- [start:kinds]
MATRIX = {  # a library's kernels: what stands next to them is their prologue or epilogue
    "mm", "addmm", "bmm", "baddbmm", "convolution", "_scaled_mm", "_grouped_mm",
    "_scaled_dot_product_flash_attention", "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_efficient_attention", "_scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_fused_attention_overrideable",
}  # fmt: skip
BY_ROW = {"native_layer_norm", "_fused_rms_norm", "_softmax", "_log_softmax"}  # a program holds whole rows
WHOLE = {  # over more than one program holds, if it takes statistics of what it norms
    "native_batch_norm", "_native_batch_norm_legit", "cudnn_batch_norm", "_batch_norm_with_update", "native_group_norm",
}  # fmt: skip
ROW_SUMS = {"sum", "mean", "amax", "amin", "var", "var_mean", "linalg_vector_norm"}  # of the last dimension
# --8<-- [end:kinds]


@dataclass(eq=False)
class Operation:
    """One kernel of eager PyTorch, or several that PyTorch calls one operation.

    Attributes:
        kind: "matrix", "pointwise", "row" (a reduction along rows), "whole" (one over more), "other".
        reads, writes: its tensors by an id that all views share, with their bytes.
        returned: what it writes is a result of the call, or a part of one.
        after: all operations whose results it needs, at first or second hand.
    """

    name: str
    kind: str
    reads: dict[int, int]
    writes: dict[int, int]
    returned: bool = False
    after: set["Operation"] = field(default_factory=set, repr=False)

    @property
    def bytes(self) -> int:
        return sum(self.reads.values()) + sum(self.writes.values())


@dataclass
class Found:
    """Operations that one kernel could compute.

    Attributes:
        how: "vertical" (one reads what another writes), "horizontal" (they read the same tensor), "epilogue" (of the
            matrix product that is the first of them) or "one product" (products of the same input).
        before, after: bytes of all operations now, and of the one kernel.
    """

    how: str
    operations: list[Operation]
    before: int
    after: int

    @property
    def saved(self) -> int:
        return self.before - self.after


# --8<-- [start:operations]
def operations(model: nn.Module, *inputs: Tensor) -> list[Operation]:
    """What eager PyTorch would launch for a call, in order, with each operation's bytes: every tensor counts once."""
    fake = next((t.fake_mode for t in inputs if isinstance(t, FakeTensor)), None) or FakeTensorMode()
    tensors = dict([*model.named_parameters(), *model.named_buffers()])
    arguments = tree_map(lambda t: t if isinstance(t, FakeTensor) else fake.from_tensor(t), (tensors, inputs))
    with fake, torch.no_grad():
        graph = make_fx(lambda state, given: functional_call(model, state, given))(*arguments).graph
    return list(launched(graph))


def launched(graph: torch.fx.Graph) -> Iterator[Operation]:
    """A graph's nodes without views, and with the operations that each depends on."""
    memory: dict[torch.fx.Node, torch.fx.Node] = {}  # a view's: what it is a view of
    makers: dict[int, Operation] = {}
    number = {node: index for index, node in enumerate(graph.nodes)}
    for node in graph.nodes:
        if node.op != "call_function" or not tensors_of(node):
            continue
        arguments = [memory.get(one, one) for one in node.all_input_nodes]
        if is_view(node) or getattr(node.target, "__name__", "") == "getitem":
            memory[node] = arguments[0]
            continue
        if (name := node.target._schema.name.removeprefix("aten::")).startswith("empty"):
            continue
        reads = {number[one]: size_of(one) for one in arguments}
        name = name.removesuffix("_")  # in place it reads and writes as much
        operation = Operation(name, kind_of(node, name), reads, {number[node]: size_of(node)})
        for read in reads:
            if read in makers:
                operation.after |= {makers[read], *makers[read].after}
        makers[number[node]] = operation
    for result in graph.output_node().all_input_nodes:
        if (made := number[memory.get(result, result)]) in makers:
            makers[made].returned = True
    yield from (operation for operation in makers.values() if operation.bytes >= SMALL)


# --8<-- [end:operations]


def tensors_of(node: torch.fx.Node) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(node.meta.get("val")) if isinstance(leaf, Tensor)]


def size_of(node: torch.fx.Node) -> int:
    """Bytes of what a node stands for. Of several results the first: the others are statistics, and small."""
    first, *_ = tensors_of(node)
    return first.numel() * first.element_size()


def is_view(node: torch.fx.Node) -> bool:
    aliases = (
        [returned.alias_info for returned in node.target._schema.returns] if hasattr(node.target, "_schema") else []
    )
    aliased = any(alias is not None and not alias.is_write for alias in aliases)
    return aliased or node.target is torch.ops.aten._unsafe_view.default  # its schema hides that it shares


def kind_of(node: torch.fx.Node, name: str) -> str:
    if name in MATRIX:
        return "matrix"
    if name in WHOLE:
        always = name in ("native_group_norm", "_batch_norm_with_update")
        statistics = always or (len(node.args) > 5 and node.args[5] is True)
        return "whole" if statistics else "pointwise"  # batch norm in inference is a scale and a shift
    last = tensors_of(node.all_input_nodes[0])[0].dim() - 1 if node.all_input_nodes else 0
    dims = node.args[1] if len(node.args) > 1 and isinstance(node.args[1], list) else []
    if name in BY_ROW or (name in ROW_SUMS and {dim % (last + 1) for dim in dims} == {last}):
        return "row"
    if name in ROW_SUMS:
        return "whole"
    pointwise = torch.Tag.pointwise in node.target.tags or name in ("copy", "clone", "_to_copy", "gelu", "silu")
    return "pointwise" if pointwise else "other"


# --8<-- [start:legal]
def bytes_of(together: Iterable[Operation], everything: list[Operation]) -> int:
    """What one kernel would move: inputs made elsewhere once, and results that somebody else needs."""
    inside = set(together)
    made = {tensor: size for one in inside for tensor, size in one.writes.items()}
    needed = {tensor for one in everything if one not in inside for tensor in one.reads}
    needed |= {tensor for one in inside if one.returned for tensor in one.writes}
    read = {tensor: size for one in inside for tensor, size in one.reads.items() if tensor not in made}
    return sum(read.values()) + sum(size for tensor, size in made.items() if tensor in needed)


def may_share(together: set[Operation]) -> bool:
    """No operation outside may have to run between two of them."""
    return not any(
        other not in together and other.after & together for operation in together for other in operation.after
    )


# --8<-- [end:legal]


# --8<-- [start:find]
def find(model: nn.Module, *inputs: Tensor) -> tuple[list[Operation], list[Found]]:
    """The operations of a call, and those of them that one kernel could compute, most bytes first."""
    every = operations(model, *inputs)
    groups: list[set[Operation]] = []
    for one in every:  # vertical: together with the groups that make what it reads
        if one.kind not in ("pointwise", "row", "whole"):
            continue
        mine = {one}
        for group in groups if one.kind != "whole" else []:  # its statistics need all of the input first
            makes = {tensor for each in group for tensor in each.writes}
            if makes & one.reads.keys() and may_share(mine | group):
                mine |= group
        groups = [group for group in groups if not group <= mine] + [mine]
    found = [share("vertical", group, every) for group in groups if len(group) > 1]
    found += [share("horizontal", pair, every) for pair in siblings(groups, every)]
    products = [{one} for one in every if one.kind == "matrix"]
    found += [share("one product", pair, every) for pair in siblings(products, every, weights=True)]
    for group in groups:  # what reads the result of a product
        for product in (one for one in every if one.kind == "matrix"):
            with_it = group | {product}
            reads_it = any(product.writes.keys() & one.reads.keys() for one in group)
            if reads_it and all(one.kind == "pointwise" for one in group) and may_share(with_it):
                found.append(share("epilogue", with_it, every))
    return every, sorted((one for one in found if one.saved >= SMALL), key=lambda one: -one.saved)


# --8<-- [end:find]


def siblings(groups: list[set[Operation]], every: list[Operation], weights: bool = False) -> Iterator[set[Operation]]:
    """Groups that read a tensor that no operation may change, and need nothing of each other."""
    readers: dict[int, list[set[Operation]]] = {}
    for group in groups:
        first = next(iter(group))
        for tensor in {tensor for one in group for tensor in one.reads}:
            data = not weights or next(iter(first.reads if first.name != "addmm" else list(first.reads)[1:])) == tensor
            if data:
                readers.setdefault(tensor, []).append(group)
    given: list[set[Operation]] = []
    for reading in readers.values():
        together: set[Operation] = set()
        for group in reading:
            independent = not any(one.after & together for one in group) and not any(
                one.after & group for one in together
            )
            if not together or (independent and may_share(together | group)):
                together = together | group
        if len([group for group in reading if group <= together]) > 1 and together not in given:
            given.append(together)
            yield together


def share(how: str, together: set[Operation], every: list[Operation]) -> Found:
    ordered = [one for one in every if one in together]
    return Found(how, ordered, sum(one.bytes for one in ordered), bytes_of(together, every))


# --8<-- [start:report]
def report(result: tuple[list[Operation], list[Found]]) -> str:
    """The table: what the call moves, what is left with every vertical fusion, and what could be saved where."""
    every, found = result
    total, products = (
        sum(one.bytes for one in some) for some in (every, [one for one in every if one.kind == "matrix"])
    )
    fused = [one for one in found if one.how == "vertical"]  # no operation is in two of these
    fewer, saved = sum(len(one.operations) - 1 for one in fused), sum(one.saved for one in fused)
    lines = [
        f"{'all operations':<32}{len(every):>4}{megabytes(total)}",
        f"{'matrix products among them':<32}{sum(one.kind == 'matrix' for one in every):>4}{megabytes(products)}",
        f"{'with every vertical fusion':<32}{len(every) - fewer:>4}{megabytes(total - saved)}",
        "",
        f"{'':<13}{'before':>11}{'after':>11}{'saved':>11}   operations",
    ]
    for one in found:
        names = ", ".join(operation.name for operation in one.operations)
        lines.append(f"{one.how:<13}{megabytes(one.before)}{megabytes(one.after)}{megabytes(one.saved)}   {names}")
    return "\n".join(lines)


def megabytes(size: int) -> str:
    return f"{size / 1e6:>8.1f} MB"


# --8<-- [end:report]


def main() -> None:
    """A small network: a product, what follows it, and a residual connection around both."""

    class Small(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.product = nn.LayerNorm(512), nn.Linear(512, 512)

        def forward(self, x: Tensor) -> Tensor:
            return x + torch.sigmoid(self.product(self.norm(x))) * x

    print(report(find(Small(), torch.randn(4096, 512))))


if __name__ == "__main__":
    main()
