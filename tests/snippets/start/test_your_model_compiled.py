"""Derivatives and spectrograms compile in one graph."""

import pytest
import torch
from torch._inductor.utils import run_and_get_code

from snippets.start.your_model import KINDS, SMALL
from snippets.start.your_model_compiled import power, residual_by_autograd, residual_traced
from tests.snippets.start.test_your_model import CPU


@pytest.mark.skipif(not hasattr(torch._dynamo.config, "trace_autograd_ops"), reason="a newer torch has the option")
def test_derivatives_by_autograd_compile_in_one_graph_with_an_option() -> None:
    inputs = KINDS["physics-informed"].inputs(SMALL["physics-informed"], CPU, torch.float64)
    torch.testing.assert_close(residual_traced(*inputs), residual_by_autograd(*inputs), rtol=1e-9, atol=1e-9)
    torch.compiler.reset()
    with pytest.raises(torch._dynamo.exc.Unsupported, match=r"torch\.autograd\.grad"):
        torch.compile(residual_by_autograd, fullgraph=True)(*inputs)


def test_a_spectrogram_is_one_graph_without_complex_kernels() -> None:
    signal, window = torch.randn(2, 1600), torch.hann_window(400)
    compiled, (code,) = run_and_get_code(torch.compile(power, fullgraph=True), signal, window)
    expected = torch.stft(signal, 400, 100, window=window, return_complex=True).abs().square()
    torch.testing.assert_close(compiled, expected)
    assert "_fft_r2c" in code and "aten.abs" not in code


@pytest.mark.skipif(not torch.__version__.startswith("2.13"), reason="the page says so of torch 2.13")
def test_compiled_istft_does_not_check_the_window() -> None:
    def back(spectrum):
        return torch.istft(spectrum, 400, 100, window=window, center=False)

    window = torch.hann_window(400)
    spectrum = torch.stft(torch.randn(1600), 400, 100, window=window, center=False, return_complex=True)
    with pytest.raises(RuntimeError, match="window overlap add min"):
        back(spectrum)
    assert torch.compile(back, fullgraph=True)(spectrum).isnan().any()
