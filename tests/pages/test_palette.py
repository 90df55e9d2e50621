"""The palette can be read by everyone, in both modes."""

import itertools

import pytest

from docs.publish import palette

TEXT, APART = 4.5, 9.0
TOGETHER = [
    {"eager", "compile", "compile-max", "ours", "liger", "quack"},
    {"first-draft", "better", "compile", "compile-draft", "graph"},
    {"naive", "fused-qkv", "tiled", "sdpa"},
]
# Machado, Oliveira and Fernandes (2009), in linear RGB
BLINDNESS = {
    "none": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protanopia": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "deuteranopia": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.01182, 0.04294, 0.968881)),
}


def linear(colour: str) -> list[float]:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    return [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]


def luminance(colour: str) -> float:
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear(colour), strict=True))


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def lab(rgb: list[float]) -> list[float]:
    """CIE L*a*b* of linear sRGB, D65."""
    matrix = ((0.4124, 0.3576, 0.1805), (0.2126, 0.7152, 0.0722), (0.0193, 0.1192, 0.9505))
    white = (0.9505, 1.0, 1.089)
    xyz = [sum(a * b for a, b in zip(line, rgb, strict=True)) / w for line, w in zip(matrix, white, strict=True)]
    x, y, z = (max(v, 0) ** (1 / 3) if v > 0.008856 else 7.787 * v + 16 / 116 for v in xyz)
    return [116 * y - 16, 500 * (x - y), 200 * (y - z)]


def seen(colour: str, blindness: str) -> list[float]:
    return lab([sum(a * b for a, b in zip(line, linear(colour), strict=True)) for line in BLINDNESS[blindness]])


@pytest.mark.parametrize("mode", palette.MODES)
def test_what_is_read_has_contrast(mode):
    colours = palette.colours(mode)
    on_paper = {
        name: contrast(colours[name], colours["paper"]) for name in colours if name not in ("paper", "raised", "line")
    }
    assert {name: ratio for name, ratio in on_paper.items() if ratio < TEXT} == {}
    in_code = {
        name: contrast(value, colours["raised"]) for name, value in colours.items() if name.startswith(("code-", "ink"))
    }
    assert {name: ratio for name, ratio in in_code.items() if ratio < TEXT} == {}


@pytest.mark.parametrize("blindness", BLINDNESS)
@pytest.mark.parametrize("mode", palette.MODES)
def test_variants_of_one_chart_can_be_told_apart(mode, blindness):
    colours = palette.colours(mode)
    for variants in TOGETHER:
        for one, other in itertools.combinations(sorted(variants), 2):
            first, second = (seen(colours[name], blindness) for name in (one, other))
            distance = sum((a - b) ** 2 for a, b in zip(first, second, strict=True)) ** 0.5
            assert distance > APART, f"{one} and {other} look alike: {distance:.1f}"


def test_css_has_every_colour_in_both_modes():
    css = palette.css()
    for mode in palette.MODES:
        for name, value in palette.colours(mode).items():
            assert f"--rp-{name}: {value};" in css


def test_an_unknown_variant_is_refused():
    with pytest.raises(KeyError, match="expected one of eager"):
        palette.label("egaer")
