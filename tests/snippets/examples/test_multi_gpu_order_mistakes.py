"""Which mistakes are silent, and which are refused."""

import contextlib
import io

import pytest
import torch

pytest.importorskip("transformers", reason="a development dependency: constraints.txt names its version")

from snippets.examples.multi_gpu_order_mistakes import MISTAKES, say_outcome
from snippets.examples.multi_gpu_order_wraps import SIZES
from tests.snippets.reference.ranks import on_ranks


def outcomes() -> str:
    """What the first rank prints of each mistake."""
    torch.set_num_threads(1)
    tokens = torch.randint(SIZES["vocab_size"], (2, 32))
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        for name, make in MISTAKES.items():
            say_outcome(name, lambda make=make: make(tokens))
    return printed.getvalue()


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> str:
    return on_ranks(outcomes, 2, tmp_path_factory.mktemp("ranks"))[0]


@pytest.mark.parametrize(
    "said",
    [
        "optimizer before fully_shard: no error; parameters that the step changed: 0",
        "only the backward in no_sync: no error; all-reduces in the backward: 1",
        "fully_shard, then parallelize_module: RuntimeError",
        "fully_shard, then DDP: RuntimeError",
    ],
)
def test_mistakes_are_silent_or_refused(said: str, printed: str) -> None:
    assert said in printed
