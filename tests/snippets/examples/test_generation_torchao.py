"""A step with torchao's weights gives the logits of the weights that these stand for, in fewer bytes."""

from collections.abc import Callable
from dataclasses import fields, replace

import pytest
import torch
from torch import Tensor

pytest.importorskip("transformers", reason="a development dependency: constraints.txt names its version")
pytest.importorskip("torchao", reason="a development dependency: constraints.txt names its version")

from snippets.examples import generation_torchao as page
from snippets.examples import generation_torchao_weights
from snippets.examples.generation import TINY
from snippets.examples.generation_step import Decoder
from tests.benchmarks.captures import sections

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def decoders() -> dict[str, Decoder]:
    torch.manual_seed(0)
    return page.of_kinds(TINY, CPU, ("int8",), 64)


def logits(decoder: Decoder, batch: int = 3) -> Tensor:
    with torch.no_grad():
        return page.batched(decoder, batch)(torch.arange(batch), torch.full((batch,), 40)).float()


def restored(decoder: Decoder) -> Decoder:
    """The weights that the smaller ones stand for, as plain tensors."""

    def plain(layer: object) -> object:
        pairs = {f.name: v for f in fields(layer) if isinstance(v := getattr(layer, f.name), tuple)}
        return replace(layer, **{name: (weight.dequantize(), None) for name, (weight, _) in pairs.items()})

    found = page.batched(decoder, 1)
    found.layers = [plain(layer) for layer in decoder.layers]
    found.head = decoder.head[0].dequantize(), None
    return found


def apart(a: Tensor, b: Tensor) -> float:
    return ((a - b).norm() / b.norm()).item()


def test_int8_computes_what_its_weights_stand_for_and_rounds_them(decoders: dict[str, Decoder]) -> None:
    found = logits(decoders["int8"])
    rounded, plain = logits(restored(decoders["int8"])), logits(decoders["bf16"])
    assert apart(found, rounded) < 0.02 < apart(plain.roll(1, 0), plain)
    assert 1e-4 < apart(restored(decoders["int8"]).head[0].float(), decoders["bf16"].head[0].float()) < 0.01


def test_int8_takes_half_the_bytes_of_every_matrix_and_leaves_the_plain_ones(decoders: dict[str, Decoder]) -> None:
    pairs = zip(
        generation_torchao_weights.matrices(decoders["int8"]),
        generation_torchao_weights.matrices(decoders["bf16"]),
        strict=True,
    )
    shares = [
        generation_torchao_weights.bytes_of(small) / generation_torchao_weights.bytes_of(plain)
        for small, plain in pairs
    ]
    assert len(shares) == 4 * TINY["num_hidden_layers"] + 1 and all(0.5 < share < 0.54 for share in shares)
    assert all(type(matrix) is Tensor for matrix in generation_torchao_weights.matrices(decoders["bf16"]))


def test_rows_of_int8_by_int8(decoders: dict[str, Decoder]) -> None:
    torch.manual_seed(0)
    weight, x = torch.randn(48, 64, dtype=torch.bfloat16), torch.randn(32, 64, dtype=torch.bfloat16)
    found = torch.nn.functional.linear(x, generation_torchao_weights.quantized(weight, "int8 both"))
    assert 1e-3 < apart(found.float(), (x @ weight.T).float()) < 0.03
    inputs = [generation_torchao_weights.quantized(weight, kind).act_quant_kwargs for kind in ("int8 both", "int8")]
    assert inputs[0] is not None and inputs[1] is None
    assert page.fits("int8 both", 17) and not page.fits("int8 both", 16) and page.fits("int8", 1)


def test_without_torchao_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "find_spec", lambda name: None)
    with pytest.raises(SystemExit, match=r"torchao is missing\. Install it"):
        page.main()


@pytest.mark.skipif(torch.cuda.is_available(), reason="takes more than a minute on a GPU")
def test_the_script_runs(script: Callable) -> None:
    done = script("snippets.examples.generation_torchao")
    assert done.returncode == 0, done.stderr
    assert [line.split()[0] for line in sections(done.stdout)["small"].splitlines()[1:]] == ["bf16", "int8"]
