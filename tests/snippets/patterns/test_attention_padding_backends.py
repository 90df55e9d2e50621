"""What names kernels, asks SDPA's backends and counts bytes does so."""

import pytest
import torch

from snippets.patterns import attention_padding_backends as page
from snippets.patterns.attention_padding_backends import made, short, size_of, ways
from snippets.patterns.attention_padding_takes import make_batch
from snippets.patterns.attention_padding_varlen import spread_lengths

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
        (
            "cudnn_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x128_4x1x1_kernel0_0",
            "cudnn_sdpa_sm90_flash_fprop_wgmma_f16",
        ),
        ("triton_tem_fused_0", "triton_tem_fused_0"),
    ],
)
def test_names_are_shortened(name: str, expected: str) -> None:
    assert short(name) == expected


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
