"""Complex numbers: the line is named, and a full spectrum of a real signal is a fault."""

import pytest
import torch
from torch import nn

from snippets.validation.assistant.found import find
from tests.snippets.validation.planted.seen import evidence, faults

pytestmark = pytest.mark.usefixtures("one_core")


class Filter(nn.Module):
    def __init__(self, real):
        super().__init__()
        self.real, self.w = real, nn.Parameter(torch.randn(8, 5 if real else 8, dtype=torch.cfloat))

    def forward(self, x):
        if self.real:
            return torch.fft.irfft2(torch.fft.rfft2(x) * self.w)
        return torch.fft.ifft2(torch.fft.fft2(x) * self.w).real


class Signal(nn.Module):
    def forward(self, x):
        return torch.fft.fft(x).abs()


class Real(nn.Module):
    def forward(self, x):
        return torch.view_as_real(torch.view_as_complex(x))


def complex_found(module, x):
    return [one for one in find(*evidence(lambda: (module, x))) if one.kind == "complex"]


def test_a_full_spectrum_of_a_real_signal():
    (found,) = faults(complex_found(Filter(False), torch.randn(2, 8, 8)))
    assert "torch.fft.rfft2" in found.change and "fft2(x)" in found.line.text


def test_complex_numbers_alone_are_a_note():
    for module, x in ((Filter(True), torch.randn(2, 8, 8)), (Signal(), torch.randn(4, 8, dtype=torch.cfloat))):
        found = complex_found(module, x)
        assert {one.weight for one in found} == {"note"} and "no code" in found[0].evidence


class Twice(Filter):
    def forward(self, x):
        y = torch.fft.rfft2(x)
        y = y * self.w
        return torch.fft.irfft2(y)


def test_all_lines_of_a_module_are_one_note():
    (found,) = complex_found(Twice(True), torch.randn(2, 8, 8))
    assert len(found.lines) == 2 and found.evidence.startswith("2 lines compute complex numbers, for which")


def test_views_compute_nothing():
    assert not complex_found(Real(), torch.randn(4, 2))
