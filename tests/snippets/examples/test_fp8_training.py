"""The loss in emulated fp8 beside the plain one; the text; what is missing is said."""

from collections.abc import Callable

import pytest
import torch

pytest.importorskip("transformers", reason="a development dependency: constraints.txt names its version")
pytest.importorskip("torchao", reason="a development dependency: constraints.txt names its version")

from snippets.examples import fp8_training as page
from snippets.examples import fp8_training_convert
from snippets.examples.llama_model import TINY
from tests.benchmarks.captures import sections


@pytest.mark.parametrize("recipe", fp8_training_convert.RECIPES)
def test_the_loss_in_fp8_is_near_and_not_the_same(recipe: str) -> None:
    batches = page.text(4, 2, 48)
    (plain, *_), (found, *_) = (page.train(name, TINY, batches) for name in ("bf16", recipe))
    apart = (torch.tensor(plain) - torch.tensor(found)).abs()
    assert 1e-5 < apart.max() < 0.05 < abs(plain[0] - plain[-1])  # fp8 rounds, and the model learns far more than that


def test_text_is_python_in_rows_and_ends_where_the_library_ends() -> None:
    found = page.text(2, 3, 64)
    assert found.shape == (2, 3, 64) and found.max() < 256 and torch.equal(found, page.text(2, 3, 64))
    assert len(found.unique()) > 20
    with pytest.raises(ValueError, match=r"steps: expected at most \d+ of 4000000 bytes"):
        page.text(100, 4, 1_000_000)


def test_without_torchao_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "find_spec", lambda name: None)
    with pytest.raises(SystemExit, match=r"torchao is missing\. Install it"):
        page.main()


@pytest.mark.skipif(torch.cuda.is_available(), reason="takes more than a minute on a GPU")
def test_the_script_runs(script: Callable) -> None:
    done = script("snippets.examples.fp8_training")
    assert done.returncode == 0, done.stderr
    lines = sections(done.stdout)["step"].splitlines()
    assert [line.split("  ")[0] for line in lines[1:]] == ["bf16", "other weights", *fp8_training_convert.RECIPES]
