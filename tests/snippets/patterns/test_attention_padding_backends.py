"""What names kernels, asks SDPA's backends and counts bytes does so."""

import pytest
import torch
from torch.nn.attention import SDPBackend

from snippets.patterns import attention_padding_backends as page
from snippets.patterns.attention_padding import causal_only, pack, spread_lengths
from snippets.patterns.attention_padding_backends import made, make_batch, short, show_takes, size_of, verdict, ways

CPU = torch.device("cpu")


@pytest.fixture
def small(monkeypatch):
    for name, size in {"ROWS": 3, "TOKENS": 64, "HEADS": 2, "SIZE": 16}.items():
        monkeypatch.setattr(page, name, size)
    return make_batch(3, 64, 2, 16, CPU)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("void pytorch_flash::flash_fwd_kernel<Traits<128, 64>, true>(Params)", "pytorch_flash::flash_fwd_kernel"),
        ("fmha_cutlassF_bf16_aligned_64x128_rf_sm80(P::Params)", "fmha_cutlassF_bf16_aligned_64x128_rf_sm80"),
        ("cudnn_native_sdpa_sm90_flash_fprop_64x128_kernel0_0", "cudnn_native_sdpa_sm90_flash_fprop_64x128"),
        ("triton_tem_fused_0", "triton_tem_fused_0"),
    ],
)
def test_names_are_shortened(name: str, expected: str) -> None:
    assert short(name) == expected


def test_a_backend_refuses_or_is_judged_by_its_result(small, capsys) -> None:
    """On a CPU flash and the formula run; only flash takes a mask beside the flag."""
    batch = small._replace(inputs=[t.float() for t in small.inputs])
    expected = pack(causal_only(*batch.inputs), batch.packing)
    assert verdict(SDPBackend.MATH, batch, expected, is_causal=True) == "right"
    assert verdict(SDPBackend.MATH, batch, expected) == "wrong"
    assert verdict(SDPBackend.CUDNN_ATTENTION, batch, expected, is_causal=True) == "refused"
    show_takes(batch)
    lines = {line.split()[0]: line.split()[1:] for line in capsys.readouterr().out.splitlines()[1:]}
    assert lines["FLASH_ATTENTION"] == ["right"] * 4
    assert lines["MATH"] == ["right"] * 3 + ["refused"]


def test_sizes(small) -> None:
    sizes = {name: size_of(call()) for name, call in made(small).items() if "compiled" not in name}
    real = int(spread_lengths(3, 64).sum())
    assert sizes["boolean mask"] == 3 * 64
    assert sizes["boolean mask, causal"] == 3 * 64 * 64
    assert sizes["float mask of it"] == 2 * sizes["boolean mask, causal"]
    assert sizes["index and offsets"] == 8 * real + 4 * 4
    assert sizes["q, k and v packed"] == 3 * real * 2 * 16 * 2
    assert 0 < sizes["block mask, causal"] < sizes["boolean mask, causal"]


def test_what_is_shown_without_causality_are_the_masks(small) -> None:
    assert [name for name, *_ in ways(small, False)] == ["SDPA, boolean mask", "SDPA, float mask"]
    assert len(list(ways(small, True))) == 5


@pytest.mark.skipif(torch.cuda.is_available(), reason="there it shows the kernels, which the captures hold")
def test_a_cpu_is_told(script) -> None:
    assert script("snippets.patterns.attention_padding_backends").stdout.startswith("a CPU has none of these kernels")
