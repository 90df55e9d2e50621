"""snippets/compiler/custom_kernels.py: four ways, one result; opcheck passes what is right and finds each mistake."""

import pytest
import torch
import torch.nn.functional as F

from snippets.compiler import custom_kernels as page
from snippets.compiler.custom_kernels import DEVICE, EPS, WAYS, block, inputs, rms_cast, verdict, written_out
from snippets.validation.equivalence import compare

DIFFERENTIABLE = {name: way for name, way in WAYS.items() if name != "plain"}
INTERPRETED = DEVICE.type == "cpu"


def norms(x, w):
    exact = F.rms_norm(x.double(), w.shape, w.double(), EPS)
    return F.rms_norm(x, w.shape, w, EPS), exact


@pytest.mark.parametrize("columns", [1, 100, 1024])
@pytest.mark.parametrize("name", [*WAYS, "cast"])
def test_each_way_computes_the_norm(name, columns):
    x, w = inputs(5, columns)
    way = WAYS.get(name, rms_cast)
    assert compare(way(x, w, EPS), *norms(x, w)).holds
    assert compare(written_out(x, w, EPS), *norms(x, w)).holds


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_each_registered_way_has_both_gradients(name):
    x, w = inputs(5, 100, grad=True)
    dy = torch.randn(5, 100, device=DEVICE)
    found = torch.autograd.grad(DIFFERENTIABLE[name](x, w, EPS), (x, w), dy)
    plain = torch.autograd.grad(F.rms_norm(x, w.shape, w, EPS), (x, w), dy)
    x64, w64 = (t.detach().double().requires_grad_() for t in (x, w))
    exact = torch.autograd.grad(F.rms_norm(x64, w64.shape, w64, EPS), (x64, w64), dy.double())
    for one, other, reference in zip(found, plain, exact, strict=True):
        assert compare(one, other, reference).holds


def test_a_plain_launch_has_no_gradient_and_nothing_says_so():
    x, w = inputs(2, 16, grad=True)
    assert not page.rms_plain(x, w, EPS).requires_grad


@pytest.mark.parametrize("name", ["custom-op", "library"] if INTERPRETED else list(WAYS))
def test_the_block_compiles_whole(name):
    x, w = inputs(8, 64)
    torch._dynamo.reset()
    found = torch.compile(block, backend="aot_eager" if INTERPRETED else "inductor", fullgraph=True)(
        x, x, w, WAYS[name]
    )
    exact = F.silu(F.rms_norm(2 * x.double(), w.shape, w.double(), EPS))
    assert compare(found, block(x, x, w, lambda x, w, eps: F.rms_norm(x, w.shape, w, eps)), exact).holds


@pytest.mark.parametrize("name", ["custom-op", "library"] if INTERPRETED else list(DIFFERENTIABLE))
def test_opcheck_passes_what_is_registered_right(name):
    assert all(line.endswith(" passes") for line in verdict(DIFFERENTIABLE[name], *inputs(4, 32, grad=True), EPS))


@pytest.mark.parametrize(
    ("operator", "arguments", "test", "words"),
    [
        (page.rms_no_fake, (EPS,), "test_faketensor", "no fake impl registered"),
        (page.rms_false_fake, (EPS,), "test_faketensor", "torch.float32 and torch.float64 are not equal"),
    ],
)
def test_opcheck_finds_a_fake_that_is_missing_or_false(operator, arguments, test, words):
    (line,) = [line for line in verdict(operator, *inputs(4, 32), *arguments) if line.startswith(test)]
    assert words in line


def test_opcheck_finds_a_change_that_is_not_declared_and_an_input_that_is_returned():
    x, _ = inputs(4, 32)
    assert any("was mutated" in line for line in verdict(page.scale_quietly, x, 2.0))
    assert not all(line.endswith(" passes") for line in verdict(page.same, x))


@pytest.mark.skipif(INTERPRETED, reason="what Inductor writes for a GPU")
def test_inductor_types_eps_as_fp64_up_to_torch_2_14():
    typed = page.signature(page.rms_triton)
    if tuple(map(int, torch.__version__.split(".")[:2])) <= (2, 14):
        assert typed and "'eps': 'fp64'" in typed[0]
