"""What torchao's recipes convert and leave alone, the loss in emulated fp8 beside the plain one, what is refused."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

pytest.importorskip("transformers", reason="a development dependency: constraints.txt names its version")
pytest.importorskip("torchao", reason="a development dependency: constraints.txt names its version")

from snippets.examples import fp8_training as page
from snippets.examples.llama_model import TINY, make_model
from tests.benchmarks.captures import sections

CPU = torch.device("cpu")
LAYERS = {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj"}
LAYERS |= {"mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"}


def model() -> nn.Module:
    torch.manual_seed(0)
    return make_model(TINY, CPU, torch.float32)


@pytest.mark.parametrize("recipe", page.RECIPES)
def test_all_layers_but_the_last_are_converted_and_keep_their_weights(recipe: str) -> None:
    plain = model()
    weights = dict(plain.named_parameters())
    changed = page.in_fp8(plain, recipe)
    assert set(page.converted(changed)) == {f"model.layers.{i}.{name}" for i in range(2) for name in LAYERS}
    assert type(changed.lm_head) is nn.Linear
    assert all(parameter is weights[name] for name, parameter in changed.named_parameters())


@pytest.mark.parametrize(("columns", "rows"), [(64, 24), (24, 64)])
def test_sizes_that_the_tensor_cores_do_not_take_stay(columns: int, rows: int) -> None:
    layers = nn.Sequential(nn.Linear(columns, rows), nn.Linear(64, 64))
    assert page.converted(page.in_fp8(layers, "rowwise")) == ["1"]


def test_narrow_layers_stay_if_asked() -> None:
    found = page.converted(page.in_fp8(model(), "tensorwise", smallest=64))
    assert {name.rpartition(".")[2] for name in found} == {"q_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}


@pytest.mark.parametrize("recipe", page.RECIPES)
def test_the_loss_in_fp8_is_near_and_not_the_same(recipe: str) -> None:
    batches = page.text(4, 2, 48)
    (plain, *_), (found, *_) = (page.train(name, TINY, batches) for name in ("bf16", recipe))
    apart = (torch.tensor(plain) - torch.tensor(found)).abs()
    assert 1e-5 < apart.max() < 0.05 < abs(plain[0] - plain[-1])  # fp8 rounds, and the model learns far more than that


def test_the_gradients_are_rounded_to_fp8_as_the_recipe_says() -> None:
    """With `rowwise_with_gw_hp` the gradient of the weight is computed without rounding."""
    torch.manual_seed(0)
    x, dy = torch.randn(32, 64), torch.randn(32, 48)
    errors = {}
    for recipe in page.RECIPES:
        layer = page.in_fp8(nn.Sequential(nn.Linear(64, 48, bias=False)), recipe)
        layer(x).backward(dy)
        errors[recipe] = (layer[0].weight.grad - dy.T @ x).norm() / (dy.T @ x).norm()
    assert errors["rowwise_with_gw_hp"] < 1e-5 < 0.01 < errors["rowwise"] < errors["tensorwise"] < 0.1


def test_text_is_python_in_rows_and_ends_where_the_library_ends() -> None:
    found = page.text(2, 3, 64)
    assert found.shape == (2, 3, 64) and found.max() < 256 and torch.equal(found, page.text(2, 3, 64))
    assert len(found.unique()) > 20
    with pytest.raises(ValueError, match=r"steps: expected at most \d+ of 4000000 bytes"):
        page.text(100, 4, 1_000_000)


def test_another_recipe_is_refused() -> None:
    with pytest.raises(ValueError, match=r"recipe: expected one of tensorwise, rowwise, .*, got 'blockwise'"):
        page.in_fp8(model(), "blockwise")


def test_without_torchao_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "find_spec", lambda name: None)
    with pytest.raises(SystemExit, match=r"torchao is missing\. Install it"):
        page.main()


@pytest.mark.skipif(torch.cuda.is_available(), reason="takes more than a minute on a GPU")
def test_the_script_runs(script: Callable) -> None:
    done = script("snippets.examples.fp8_training")
    assert done.returncode == 0, done.stderr
    lines = sections(done.stdout)["step"].splitlines()
    assert [line.split("  ")[0] for line in lines[1:]] == ["bf16", "other weights", *page.RECIPES]
