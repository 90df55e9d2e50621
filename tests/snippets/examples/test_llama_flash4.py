"""snippets/examples/llama_flash4.py: the same loss in one piece, and by FlashAttention 4, swapped in and out."""

import importlib.machinery
import sys
import types

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("transformers", reason="a development dependency: constraints.txt names its version")

from snippets.examples import llama_flash4, llama_kernels, llama_model
from tests.snippets.examples.test_llama_model import DTYPES, holds, model, tokens


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("rows", [64, 16384])
def test_the_size_of_a_piece_changes_no_result(rows, dtype):
    holds(lambda model: llama_flash4.in_pieces_of(rows, model), dtype)


@pytest.fixture
def stand_in(monkeypatch):
    """What flash_attn.cute has, computed by PyTorch: heads within a token, and a tuple comes back."""
    given = []

    def flash_attn_func(q, k, v, causal=False):
        given.append(causal)
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True).transpose(1, 2), None

    for name in ("flash_attn", "flash_attn.cute"):
        module = types.ModuleType(name)
        module.__spec__ = importlib.machinery.ModuleSpec(name, None)  # transformers asks for it
        module.flash_attn_func = flash_attn_func
        monkeypatch.setitem(sys.modules, name, module)
    return given


def test_the_step_calls_it_causally_in_every_layer_and_only_while_it_runs(stand_in):
    before = llama_kernels.attend
    holds(llama_flash4.flash4, torch.float32)
    assert stand_in == [True, True] and llama_kernels.attend is before


def test_where_it_is_not_installed_the_import_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "flash_attn", None)
    with pytest.raises(ImportError, match="flash_attn"):
        llama_flash4.flash4(llama_model.sharing(model()))(tokens())
