"""Changes that can be made automatically: a causal mask becomes a flag."""

import pytest
import torch
import torch.nn.functional as F

from snippets.validation.assistant import candidates
from tests.snippets.validation.planted import kernels

pytestmark = pytest.mark.usefixtures("one_core")


def test_a_causal_mask_becomes_a_flag_and_the_function_stays_the_same():
    asked = []

    class Watch(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            if function is F.scaled_dot_product_attention:
                asked.append((len(args), (kwargs or {}).get("attn_mask"), (kwargs or {}).get("is_causal")))
            return function(*args, **(kwargs or {}))

    module, x = kernels.MaskAsData(), kernels.sequence()
    with Watch():
        changed = candidates.Inside(module, candidates.CausalFlag)(x)
    assert asked == [(3, None, True)]
    torch.testing.assert_close(changed, module(x))


def test_a_captured_mask_becomes_a_flag():
    counts = []

    def backend(graph, inputs):
        def run(*given):
            counts.append(len(candidates.causal_nodes(graph, given)))
            return graph(*given)

        return run

    for module in (kernels.MaskAsData(), kernels.WindowedAttention()):
        torch.compile(module, backend=backend)(kernels.sequence())
    assert counts == [1, 0]
