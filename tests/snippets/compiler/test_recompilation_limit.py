"""What calls do past the limit and under each stance, as the page says it."""

import pytest
import torch

from snippets.compiler.recompilation_counter import Counter, said
from snippets.compiler.recompilation_limit import STANCES, eager_first, past_the_limit, stance
from snippets.compiler.recompilation_specialised import double


def test_past_the_limit_a_call_runs_eagerly_and_only_the_first_says_so():
    outcomes, messages = past_the_limit([*range(2, 14), 5])
    assert outcomes == ["compiles"] * 8 + ["runs eagerly"] * 4 + ["runs its graph"]
    assert len(messages) == 1
    assert "torch._dynamo hit config.recompile_limit (8)" in messages[0]
    assert "last reason: 0/7: tensor 'x' size mismatch at index 0. expected 9, actual 10" in messages[0]


def inner(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def outer(x: torch.Tensor) -> torch.Tensor:
    return inner(x) + 1


def test_past_the_limit_what_the_function_calls_is_eager_too():
    counter = Counter()
    torch.compiler.reset()
    compiled = torch.compile(outer, backend=counter, dynamic=False)
    with said():
        for length in range(2, 14):
            compiled(torch.ones(length))
    assert (counter.compiled, counter.ran) == (8, 8)


def test_past_the_limit_the_result_is_still_right():
    torch.compiler.reset()
    compiled = torch.compile(double, backend="eager", dynamic=False)
    with said():
        for length in range(2, 14):
            assert compiled(torch.ones(length)).tolist() == [2.0] * length


def test_with_fullgraph_or_a_setting_the_limit_is_an_error():
    for options, setting in (({"fullgraph": True}, {}), ({}, {"fail_on_recompile_limit_hit": True})):
        torch.compiler.reset()
        compiled = torch.compile(double, backend="eager", dynamic=False, **options)
        with said(), torch._dynamo.config.patch(setting):
            for length in range(2, 10):
                compiled(torch.ones(length))
            with pytest.raises(torch._dynamo.exc.FailOnRecompileLimitHit):
                compiled(torch.ones(10))


def test_stances():
    assert {name: stance(name) for name in STANCES} == {
        "default": ["runs its graph", "compiles"],
        "eager_on_recompile": ["runs its graph", "runs eagerly"],
        "fail_on_recompile": ["runs its graph", "raises RuntimeError"],
        "force_eager": ["runs eagerly", "runs eagerly"],
    }
    assert eager_first((5, 6, 7, 8)) == ["runs eagerly", "compiles", "runs its graph", "runs its graph"]
