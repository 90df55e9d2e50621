"""A backend refuses, or is judged by its result."""

import torch
from torch.nn.attention import SDPBackend

from snippets.patterns import attention_padding_takes
from snippets.patterns.attention_padding_masks import causal_only
from snippets.patterns.attention_padding_takes import make_batch, show_takes, verdict
from snippets.patterns.attention_padding_varlen import pack


def test_a_backend_refuses_or_is_judged_by_its_result(monkeypatch, capsys) -> None:
    """On a CPU flash and the formula run; only flash takes a mask beside the flag."""
    monkeypatch.setattr(attention_padding_takes, "TOKENS", 64)
    small = make_batch(3, 64, 2, 16, torch.device("cpu"))
    batch = small._replace(inputs=[t.float() for t in small.inputs])
    expected = pack(causal_only(*batch.inputs), batch.packing)
    assert verdict(SDPBackend.MATH, batch, expected, is_causal=True) == "right"
    assert verdict(SDPBackend.MATH, batch, expected) == "wrong"
    assert verdict(SDPBackend.CUDNN_ATTENTION, batch, expected, is_causal=True) == "refused"
    show_takes(batch)
    lines = {line.split()[0]: line.split()[1:] for line in capsys.readouterr().out.splitlines()[1:]}
    assert lines["FLASH_ATTENTION"] == ["right"] * 4
    assert lines["MATH"] == ["right"] * 3 + ["refused"]
