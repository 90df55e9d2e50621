"""The tool blames the right stage, blames none where nothing is wrong, and leaves everything as it was."""

import random

import pytest
import torch
import torch.nn.functional as F

from snippets.compiler.debugging import STAGES, bisect, call, inside, not_finite, problem, too_far

AGAIN = "eager again, NaN in fresh memory"


@pytest.fixture
def short(monkeypatch):
    """Without Inductor, which none of these needs and which is slow."""
    monkeypatch.delitem(STAGES, "inductor")


def make_x() -> torch.Tensor:
    return torch.linspace(-1, 2, 32).view(4, 8)


def test_a_right_function_passes_every_stage_and_inductor_has_other_bits_in_bf16():
    report = bisect(lambda x: F.gelu(x * 1.5) * x, make_x().bfloat16())
    assert (report.first, report.reference) == ("", "float64")
    assert [row.stage for row in report.rows] == [AGAIN, *STAGES]
    assert [row.bits for row in report.rows][-1] == "others"


def test_dropout_is_not_blamed_and_the_generator_is_left_alone():
    state = torch.random.get_rng_state()
    report = bisect(lambda x: F.dropout(x, 0.5), make_x())
    assert report.first == "" and report.rows[-1].bits == "the same"
    assert torch.equal(torch.random.get_rng_state(), state)


def test_gradients_and_inputs_that_are_written_to_are_results(short):
    layer, x = torch.nn.Linear(8, 2), make_x().requires_grad_()
    results = call(layer, (x,))
    assert set(results) == {
        "output 0", "input 0 after the call", "gradient of input 0", "gradient of weight", "gradient of bias",
    }  # fmt: skip
    assert x.grad is None and layer.weight.grad is None
    y = make_x()
    assert torch.equal(call(lambda y: y.add_(1), (y,))["input 0 after the call"], make_x() + 1)
    assert torch.equal(y, make_x())


def test_what_a_module_remembers_is_a_result_and_the_module_itself_is_left_alone():
    norm, x = torch.nn.BatchNorm1d(8), make_x()
    results = call(norm, (x,))
    torch.testing.assert_close(results["running_mean after the call"], 0.1 * x.mean(0))
    assert torch.equal(norm.running_mean, torch.zeros(8))


def test_inputs_in_containers_and_what_is_no_tensor_are_passed_on(short):
    report = bisect(lambda batch, factor: batch["x"].sin() * factor, {"x": make_x()}, 2)
    assert report.first == ""


def test_random_numbers_that_torch_does_not_draw_are_found_without_compiling():
    draw = random.Random(0)
    report = bisect(lambda x: x * draw.random(), make_x())
    assert (report.first, report.reference) == (AGAIN, "eager") and len(report.rows) == 1


def test_eager_stands_in_where_there_is_no_float64(short):
    weight = torch.ones(8, 2)
    report = bisect(lambda x: x @ weight, make_x())
    assert (report.first, report.reference) == ("", "eager")


def test_a_stage_that_raises_is_named_with_its_error(short):
    def scaled(x: torch.Tensor) -> torch.Tensor:
        if torch.compiler.is_compiling():
            return x @ x  # shapes that do not fit
        return x

    report = bisect(scaled, make_x())
    assert report.first == "eager" and "raises TorchRuntimeError" in str(report)


def test_what_is_wrong_only_in_a_gradient_is_found(short):
    def function(x: torch.Tensor) -> torch.Tensor:
        return x * 3 - x.detach() if torch.compiler.is_compiling() else x * 2

    report = bisect(function, make_x().requires_grad_())
    assert report.first == "eager" and report.rows[-1].problem.startswith("gradient of input 0")


@torch.library.custom_op("planted_debugging::halves", mutates_args=())
def halves(x: torch.Tensor) -> torch.Tensor:
    x.mul_(0.5)
    return x.clone()


@halves.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def test_what_a_custom_operator_writes_to_without_saying_so_is_blamed_on_it(short):
    report = bisect(lambda x: halves(x.sin()) + 1, make_x())
    assert report.first == "eager, operators as declared"
    assert "planted_debugging::halves writes to x, which its schema does not declare" in str(report)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.fft.fft(x) * torch.fft.fft(x.sin()),
        lambda x: (x.argmax(-1), x.exp().sum(-1)),
        lambda x: x[:0].softmax(-1).sum(0),
        lambda x: (x[:0] @ x.T, torch.view_as_complex(x.unflatten(-1, (-1, 2)))),
    ],
    ids=["complex", "integers", "empty", "both"],
)
def test_results_of_every_kind_pass_where_they_are_right(function, short):
    for x in (make_x(), make_x().requires_grad_()):
        report = bisect(function, x)
        assert (report.first, report.reference) == ("", "float64"), report


def test_complex_parameters_have_a_float64_and_a_wrong_one_is_found(short):
    module = torch.nn.Module()
    module.w = torch.nn.Parameter(torch.randn(8, dtype=torch.cfloat))
    module.forward = lambda x: torch.fft.fft(x) * (module.w.conj() if torch.compiler.is_compiling() else module.w)
    found = call(module, (make_x(),))
    assert (
        found["output 0"].shape == (4, 8, 2)
        and call(module, (make_x(),), double=True)["output 0"].dtype == torch.float64
    )
    assert (
        bisect(lambda x: torch.fft.fft(x).conj() if torch.compiler.is_compiling() else torch.fft.fft(x), make_x()).first
        == "eager"
    )


def test_inside_says_where_nothing_is_wrong(monkeypatch):
    from torch._inductor import compiler_bisector

    only = {name: compiler_bisector.BACKENDS[name] for name in ("eager", "inductor")}
    monkeypatch.setattr(compiler_bisector, "BACKENDS", only)
    assert inside(lambda x: x.sin(), make_x()) == "no stage is wrong"


# ---- the judgement --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("wrong", [1.05, 0.0, -1.0])
def test_five_per_cent_off_zeros_and_a_sign_are_wrong_and_rounding_is_not(dtype, wrong):
    reference = torch.linspace(0.1, 3, 1000, dtype=torch.float64).exp()
    eager = reference.to(dtype)
    assert too_far(eager, eager, reference) == ""
    assert too_far((reference * (1 + torch.finfo(dtype).eps / 2)).to(dtype), eager, reference) == ""
    assert "times its bound" in too_far((reference * wrong).to(dtype), eager, reference)


def test_small_values_left_out_are_wrong_although_each_is_small():
    reference = torch.full((4096,), 1e-3, dtype=torch.float64)
    reference[0] = 1
    found = torch.zeros_like(reference)
    found[0] = 1
    assert too_far(found.bfloat16(), reference.bfloat16(), reference) != ""


def test_nan_is_wrong_where_neither_float64_nor_eager_has_it():
    nan, one = torch.tensor([float("nan"), 1.0]), torch.ones(2)
    assert not_finite(nan, one, one.double()) == "1 of 2 are NaN or infinite"
    assert not_finite(nan, nan, one.double()) == not_finite(nan, one, nan.double()) == ""
    assert not_finite(one, nan, nan.double()) == "1 of 2 are NaN or infinite"


@pytest.mark.parametrize(
    ("found", "text"),
    [
        ({}, "output 0 is missing"),
        ({"output 0": torch.ones(3)}, "output 0 has shape (3,), eager (2,)"),
        ({"output 0": torch.ones(2).double()}, "output 0 is torch.float64, eager torch.float32"),
    ],
)
def test_a_result_of_another_kind_is_wrong(found, text):
    one = {"output 0": torch.ones(2)}
    assert problem(found, one, {"output 0": torch.ones(2).double()}) == text


def test_integers_have_to_be_equal():
    one, other = {"output 0": torch.tensor([1])}, {"output 0": torch.tensor([2])}
    assert problem(other, one, one) == "output 0 is not eager's" and problem(one, one, one) == ""
