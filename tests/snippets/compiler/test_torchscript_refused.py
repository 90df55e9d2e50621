"""Each refusal is one, and torch.compile takes the function."""

import pytest
import torch

from snippets.compiler import torchscript_refused
from snippets.compiler.torchscript_refused import refusals

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")


def test_each_refusal_is_one_and_the_compiler_takes_the_same_function():
    assert [name for name, _ in refusals()] == ["with_options", "with_a_lambda", "maybe_nothing", "with_a_number"]
    x = torch.ones(2)
    for function, more in (
        (torchscript_refused.with_options, {"scale": 3.0}),
        (torchscript_refused.with_a_lambda, {}),
        (torchscript_refused.maybe_nothing, {"give": True}),
        (torchscript_refused.with_a_number, {"n": 3}),
    ):
        torch._dynamo.reset()
        assert torch.equal(torch.compile(function, backend="eager", fullgraph=True)(x, **more), function(x, **more))
