"""Workloads keep their scale, and steps of decoding are the causal block."""

import pytest
import torch

from snippets.compiler.modes_workloads import WORKLOADS, Block, make

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_workload_says_its_kind_and_its_inputs_fit(name: str):
    shape = {size: min(value, 64) for size, value in WORKLOADS[name].items()}
    module, inputs = make(shape, DEVICE, torch.float32)
    results = module(*inputs)
    for x, y in zip(inputs, results if isinstance(results, tuple) else (results,), strict=False):
        assert y.shape == x.shape and 0.1 < y.std() < 10, "layers that shrink or blow up compare nothing"


def test_steps_of_decoding_are_the_causal_block():
    """Token by token through the cache, and all at once."""
    torch.manual_seed(0)
    whole = Block(128).to(DEVICE).requires_grad_(False)
    step = Block(128, cached=8, batch=2).to(DEVICE).requires_grad_(False)
    step.load_state_dict(whole.state_dict(), strict=False)
    x = torch.randn(2, 8, 128, device=DEVICE)
    steps = [step(x[:, n : n + 1], torch.tensor([n], device=DEVICE)) for n in range(8)]
    torch.testing.assert_close(torch.cat(steps, 1), whole(x), atol=1e-4, rtol=1e-4)
