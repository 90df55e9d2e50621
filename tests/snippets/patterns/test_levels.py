"""What is called of a component, and how results are named and bounded."""

import warnings

import torch
from torch import Tensor

from snippets.patterns.levels import compiled, forward, in_float64, largest_summands, named, scripted, step, trained


def product(x: Tensor, weight: Tensor) -> Tensor:
    return x * weight


def both(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    return x * weight, x + weight


INPUTS = {"x": torch.randn(4, 8), "weight": torch.randn(8), "times": 3}


def test_a_step_has_outputs_and_gradients_in_order() -> None:
    given = {name: INPUTS[name] for name in ("x", "weight")}
    leaves, incoming = trained(given, ("x", "weight")), (torch.ones(4, 8),)
    results = named(step(product, leaves, ("x", "weight"), incoming), ("x", "weight"))
    assert list(results) == ["output", "x.grad", "weight.grad"]
    torch.testing.assert_close(results["x.grad"], given["weight"].expand(4, 8))
    torch.testing.assert_close(results["weight.grad"], given["x"].sum(0))
    assert not given["x"].requires_grad


def test_several_outputs_are_numbered() -> None:
    given = {name: INPUTS[name] for name in ("x", "weight")}
    assert list(named(forward(both, given))) == ["output 1", "output 2"]
    assert list(named(step(both, given, (), ()))) == ["output 1", "output 2"]


def test_only_numbers_with_a_point_become_float64() -> None:
    wide = in_float64(INPUTS | {"ids": torch.arange(3)})
    assert (wide["x"].dtype, wide["ids"].dtype, wide["times"]) == (torch.float64, torch.int64, 3)


def test_sums_over_many_rows_may_be_off_in_fp32_and_hardly_in_bf16() -> None:
    exact = {"x.grad": torch.ones(10_000, 8), "weight.grad": torch.full((8,), 2.0)}
    for dtype, least, most in ((torch.float32, 30, 60), (torch.bfloat16, 2, 2.001)):
        inputs = {"x": torch.ones(10_000, 8, dtype=dtype), "weight": torch.ones(8, dtype=dtype)}
        summands = largest_summands(exact, inputs)
        assert list(summands) == ["weight.grad"]
        assert least < summands["weight.grad"] < most


def test_script_and_compile_compute_the_same_and_do_not_warn() -> None:
    given = {name: INPUTS[name] for name in ("x", "weight")}
    with warnings.catch_warnings():
        warnings.simplefilter("error", DeprecationWarning)
        script = scripted(product)
    assert torch.equal(script(*given.values()), product(*given.values()))
    assert hasattr(compiled(product), "_torchdynamo_orig_callable")
