"""Every order gives the right gradients; which of them splits, breaks or recomputes; which mistakes are silent."""

from collections.abc import Callable

import pytest
import torch

pytest.importorskip("transformers", reason="a development dependency: constraints.txt names its version")

from snippets.examples import multi_gpu_order, multi_gpu_order_wraps
from snippets.examples.multi_gpu_order_wraps import ORDERS

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
