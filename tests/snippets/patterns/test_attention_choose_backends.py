"""Every mask is told to SDPA as it wants it, so that what is refused is refused by a kernel."""

import pytest
import torch

from snippets.patterns import attention_choose_backends as page

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def test_every_mask_is_right_where_all_kernels_are_allowed() -> None:
    torch.manual_seed(0)
    said = page.answers(DEVICE, tokens=192)
    assert {name: kernels["all allowed"] for name, kernels in said.items()} == dict.fromkeys(said, "right")
    assert len(said) == 8 and all(set(kernels) == {"all allowed", *page.BACKENDS} for kernels in said.values())


def test_a_mask_that_is_another_shows(monkeypatch) -> None:
    shifted = lambda row, head, query, key: key < query  # noqa: E731
    right = page.masks(192, 8, DEVICE)["causal, mask"]
    monkeypatch.setattr(page, "masks", lambda *given: {"causal, mask": (shifted, *right[1:])})
    assert page.answers(DEVICE, tokens=192)["causal, mask"]["all allowed"] != "right"


@pytest.mark.skipif(DEVICE.type == "cuda", reason="there it has the kernels")
def test_on_a_cpu_the_script_says_what_it_needs(script) -> None:
    assert "run this on a GPU" in script(page.__name__).stdout
