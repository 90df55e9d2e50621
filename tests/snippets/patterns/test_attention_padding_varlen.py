"""Rows are packed and come back, and varlen_attn takes what it is given."""

import inspect

import torch
from torch.nn.attention.varlen import varlen_attn

from snippets.patterns.attention_padding_masks import real_tokens
from snippets.patterns.attention_padding_varlen import pack, spread_lengths, unpack
from tests.snippets.patterns.test_attention_padding import DEVICE, LENGTHS, ON_DEVICE, PACKING, TOKENS


def test_packing_and_back() -> None:
    t = torch.randn(3, TOKENS, 2, device=DEVICE)
    packed = pack(t, PACKING)
    assert len(packed) == LENGTHS.sum() == PACKING.offsets[-1]
    assert (PACKING.shortest, PACKING.longest) == (3, 200)
    real = real_tokens(ON_DEVICE, TOKENS)[..., None]
    assert torch.equal(unpack(packed, PACKING, 3, TOKENS), torch.where(real, t, 0.0))


def test_varlen_attn_takes_what_it_is_given() -> None:
    """The same names in torch 2.11 to 2.13, and the same defaults for the rest."""
    given = inspect.signature(varlen_attn).parameters
    assert list(given)[:7] == ["query", "key", "value", "cu_seq_q", "cu_seq_k", "max_q", "max_k"]
    assert given["window_size"].default == (-1, -1)
    assert all(given[name].default is not inspect.Parameter.empty for name in list(given)[7:])


def test_lengths_are_half_of_the_longest_on_average() -> None:
    for rows, tokens in ((8, 2048), (16, 512)):
        lengths = spread_lengths(rows, tokens)
        assert lengths.max() == tokens and lengths.min() > 0 and len(set(lengths.tolist())) == rows
        assert abs(lengths.float().mean() / tokens - 0.5) < 0.01
    assert spread_lengths(2, 8192).tolist() == [1843, 8192]
