"""What fp8 loses: the emulation is the kernel's quantising, and the printed errors are as fp8's digits let expect."""

import pytest
import torch

from snippets.kernels import fp8_matmul_error as page
from tests.benchmarks.captures import sections
from tests.kernels import test_fp8_matmul as kernel


@pytest.mark.parametrize("squares", (False, True))
@pytest.mark.parametrize("scales", ("rows", "blocks"))
def test_the_emulation_rounds_as_the_kernel_does(scales: str, squares: bool) -> None:
    x = torch.randn(256, 384, generator=torch.Generator().manual_seed(0)).bfloat16()
    by = "row" if scales == "rows" else "square" if squares else "strip"
    expected = kernel.quantised(x, by, False, torch.float8_e4m3fn)[2]
    ours = page.emulated(x, scales, squares).double()
    off = (ours - expected).abs() > 1e-6 * expected.abs()
    assert off.float().mean() < 2e-3, "ties alone may fall otherwise: the page divides by a scale, a kernel multiplies"


def test_errors_of_fp8_and_of_bf16_do_not_grow_with_the_terms() -> None:
    """Both round their operands; emulated, the sum itself is exact."""
    found: dict[str, list[float]] = {}
    for terms in (512, 4096):
        a, b = page.operands(terms, "cpu", 1.0)
        exact = a.double() @ b.double().t()
        for name, result in page.products(a, b).items():
            found.setdefault(name, []).append(page.error(result, exact))
    for name, (few, many) in found.items():
        low, high = (0.001, 0.003) if name == "bf16" else (0.03, 0.045)
        assert low < few < high and abs(many - few) < 0.1 * few, name


def test_the_script_prints_a_line_for_each_number_of_terms(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the fewest terms: with all, it takes seconds."""
    monkeypatch.setattr(page, "TERMS", page.TERMS[:1])
    page.main()
    printed = sections(capsys.readouterr().out)
    assert printed.keys() == {"error", "outliers", "sums"}
    for section, text in printed.items():
        heads, line = map(str.split, text.splitlines())
        assert line[0] == "512" and len(line) == len(heads) > 2, section


def test_scales_are_spread_over_what_they_scale() -> None:
    q = torch.ones(4, 256).to(torch.float8_e4m3fn)
    rows, strips = torch.arange(4.0), torch.arange(8.0).view(4, 2)
    assert torch.equal(page.spread(q, rows), rows.double()[:, None].expand(4, 256))
    assert torch.equal(page.spread(q, strips), strips.double().repeat_interleave(128, 1))
