"""Kinds of kernels, timed apart: together they read what the step reads, and each writes what the step writes."""

import pytest
import torch

pytest.importorskip("transformers", reason="a development dependency: constraints.txt names its version")
pytest.importorskip("triton", reason="a development dependency: constraints.txt names its version")

from snippets.examples import generation, generation_missing
from snippets.examples.generation_kernels import TritonDecoder

HERE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def test_the_kinds_read_all_matrices_and_the_filled_cache_once(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    monkeypatch.setattr(generation_missing, "PLACES", 20)
    model = generation.make_model(generation.TINY | {"num_hidden_layers": 1}, HERE, torch.float32)
    decoder = TritonDecoder(model, 64)
    layer, (keys, _) = decoder.layers[0], decoder.cache[0]
    matrices = (layer.qkv, layer.out, layer.gate_up, layer.down, decoder.head)
    kinds = generation_missing.kinds(decoder)
    assert sum(read for _, read in kinds.values()) == sum(w.nbytes for w, _ in matrices) + 2 * keys.nbytes * 20 // 64
    tokens, position = torch.tensor([7], device=HERE), torch.tensor([19], device=HERE)
    expected = decoder(tokens, position).clone()
    decoder.h.copy_(decoder.embedding[7])
    for call, _ in kinds.values():
        call()
    assert torch.equal(layer.before, layer.between) and torch.equal(layer.before, decoder.norm)  # kinds use one norm
    torch.testing.assert_close(decoder.logits[None], expected)


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what it needs where there is none")
def test_without_a_gpu_it_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    generation_missing.main()
    assert capsys.readouterr().out == "expected a GPU, found none\n"
