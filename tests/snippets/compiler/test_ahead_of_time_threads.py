"""Threads that call a warm compiled model compile nothing and get their own results; a thread in another mode does."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

from snippets.compiler.ahead_of_time_threads import answer, serve, warm

READ = "tests/benchmarks/captures.py", "tests/forked.py"  # to run the script in
MODULE = "snippets.compiler.ahead_of_time_threads"


@pytest.fixture(scope="module")
def model() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 2)).eval()


@pytest.fixture
def compiled(model: nn.Module, captured: None) -> nn.Module:
    """Captured: the script, below, runs what is compiled."""
    return warm(model, torch.randn(4, 8))


def test_threads_get_their_own_results_and_compile_nothing(model: nn.Module, compiled: nn.Module):
    requests = [torch.randn(4, 8) for _ in range(200)]
    with torch.compiler.set_stance("fail_on_recompile"):
        answers = serve(compiled, requests)
    with torch.inference_mode():
        torch.testing.assert_close(answers, [model(x) for x in requests])


def test_a_thread_does_not_inherit_the_mode_and_would_recompile(compiled: nn.Module):
    with torch.inference_mode(), ThreadPoolExecutor(1) as pool:
        assert not pool.submit(torch.is_inference_mode_enabled).result()
        assert torch.is_inference_mode_enabled()
        with torch.compiler.set_stance("fail_on_recompile"), pytest.raises(RuntimeError, match="recompile"):
            pool.submit(compiled, torch.randn(4, 8)).result()


def test_the_threads_work_at_the_same_time(compiled: nn.Module):
    """Otherwise nothing is shown: eight threads are in the model before one leaves."""
    meet = threading.Barrier(8, timeout=60)
    with ThreadPoolExecutor(8) as pool:
        inputs = torch.randn(8, 4, 8)
        together = list(pool.map(lambda x: (meet.wait(), answer(compiled, x))[1], inputs))
    torch.testing.assert_close(together, [answer(compiled, x) for x in inputs])


def test_the_script_says_so(script):
    assert script(MODULE).stdout == "200 calls from eight threads: right, without a recompilation\n"
