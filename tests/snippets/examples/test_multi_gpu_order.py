"""Every order gives the right gradients; which of them splits, breaks or recomputes; which mistakes are silent."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

pytest.importorskip("transformers", reason="a development dependency: constraints.txt names its version")

from snippets.examples import multi_gpu_order, multi_gpu_order_wraps
from snippets.examples.multi_gpu_order_wraps import ORDERS
from tests.snippets.reference.ranks import on_ranks

READ = ("tests/forked.py", "tests/benchmarks/captures.py")  # by the fixture `script`: named for remembered.py
Printed = dict[str, list[float]]
VARIES = {"orders": r"\d+e-0\d"}  # rounding that a processor decides: see tests/benchmarks/captures.py


@pytest.fixture(scope="module")
def printed(script: Callable) -> Printed:
    """Numbers of each order."""
    done = script("snippets.examples.multi_gpu_order", "cpu")
    assert not done.returncode, done.stderr
    orders = done.stdout.partition("==== mistakes")[0]
    rows = {name: line for name in ORDERS for line in orders.splitlines() if line.startswith(f"{name}  ")}
    return {name: [float(cell) for cell in line[28:].split()] for name, line in rows.items()}


def test_all_orders_give_the_gradients_of_the_whole_model(printed: Printed) -> None:
    assert printed.keys() == ORDERS.keys()
    assert all(off < 1e-5 for *_, off in printed.values())


ON_FOUR = "DDP, compile", "compile blocks, FSDP2"


def graph_alone(graph: torch.fx.GraphModule, inputs: list) -> Callable:
    """A backend that counts, and leaves out what does the same on two ranks: AOTAutograd."""
    multi_gpu_order_wraps.GRAPHS.append(graph)
    return graph.forward


def counts_and_distances() -> list[tuple[int, float]]:
    """Graphs of each order, and how far its gradients are from those of the whole model."""
    multi_gpu_order_wraps.counting = graph_alone  # type: ignore[assignment]
    torch.set_num_threads(1)
    torch.manual_seed(1)
    tokens = torch.randint(multi_gpu_order_wraps.SIZES["vocab_size"], (dist.get_world_size(), 32))
    whole = multi_gpu_order_wraps.tiny()
    multi_gpu_order_wraps.loss(whole, tokens).backward()
    right, mine = multi_gpu_order.gradients(whole), tokens[dist.get_rank() :][:1]
    found = [multi_gpu_order.observe(ORDERS[name], mine) for name in ON_FOUR]
    return [(seen["graphs"], multi_gpu_order.distance(seen["gradients"], right)) for seen in found]


def test_two_orders_on_four_ranks(printed: Printed, tmp_path: Path) -> None:
    """As many graphs as on two."""
    graphs = [printed[name][0] for name in ON_FOUR]
    for found in on_ranks(counts_and_distances, 4, tmp_path):
        assert [count for count, _ in found] == graphs
        assert all(off < 1e-5 for _, off in found)


def test_ddp_splits_in_both_orders(printed: Printed) -> None:
    assert printed["DDP, compile"][0] > 1 and printed["compile, DDP"][0] > 1


def test_blocks_share_one_graph_and_a_whole_model_breaks_at_fsdp(printed: Printed) -> None:
    assert printed["compile blocks, FSDP2"][:2] == [1, 0]
    assert printed["FSDP2, compile whole"][1] > 1


def test_no_order_compiles_again_for_a_second_step(printed: Printed) -> None:
    assert {name: row[4] for name, row in printed.items()} == dict.fromkeys(ORDERS, 0)


def test_what_compiles_again_is_counted() -> None:
    torch._dynamo.utils.clear_compilation_metrics()
    doubled = multi_gpu_order_wraps.compiled(lambda x: x * 2)
    for rows in (2, 2, 3, 4):
        doubled(torch.ones(rows))
    assert multi_gpu_order.recompiled() == 2


def test_a_checkpoint_saves_memory_on_either_side_of_compile(printed: Printed) -> None:
    for order in ("checkpoint, compile, FSDP2", "compile, checkpoint, FSDP2"):
        assert printed[order][2] < printed["compile blocks, FSDP2"][2] / 2
