"""Errors while code runs leave the settings as they were, and some are never raised."""

import torch

from snippets.compiler.debugging_errors import provoke, said
from snippets.compiler.debugging_errors_compiler import X
from snippets.compiler.debugging_errors_running import not_deterministic


def test_nan_asserts_name_an_input_and_refuse_infinity():
    def infinite() -> None:
        with torch._inductor.config.patch(nan_asserts=True):
            torch.compile(lambda x: x.sin())(X - float("inf"))

    assert said(provoke(infinite)) == "assert not arg0_1.isinf().any().item()"


def test_inductor_does_not_ask_whether_put_is_deterministic():
    torch.compiler.reset()
    torch.use_deterministic_algorithms(True)
    try:
        compiled = torch.compile(lambda x: x.clone().put_(torch.tensor([1]), X[:1]))
        torch.testing.assert_close(compiled(X)[1], X[0])
    finally:
        torch.use_deterministic_algorithms(False)


def test_provoking_leaves_the_settings_as_they_were():
    provoke(not_deterministic)
    assert not torch.are_deterministic_algorithms_enabled() and torch.equal(X, torch.linspace(0, 1, 8))
