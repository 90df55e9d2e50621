"""The palette can be read by everyone, in both modes."""

import itertools
import math

import pytest
import torch

from docs.publish import palette
from docs.publish.errors import PublishError
from docs.publish.records.store import Store
from tests.benchmarks.runner import discover, load

READ = "docs/pages", "snippets/**/*.py", "tests/benchmarks"  # through docs.publish

TEXT, APART = 4.5, 9.0
NEVER_IN_ONE_CHART = {("peer-2", "rewrite")}  # of attention, where they are 8.5 apart in the dark for deuteranopia
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


def test_variants_of_one_case_can_be_told_apart(cases):
    together = {
        pair: case
        for case, variants in cases.items()
        for pair in itertools.combinations(sorted({palette.variants()[variant]["role"] for variant in variants}), 2)
    }
    alike = []
    for (one, other), case in together.items():
        for mode, blindness in itertools.product(palette.MODES, BLINDNESS):
            first, second = (palette.colours(mode)[role] for role in (one, other))
            if first != second and (one, other) not in NEVER_IN_ONE_CHART:
                distance = math.dist(seen(first, blindness), seen(second, blindness))
                if distance <= APART:
                    alike.append(f"{case}: {one} and {other}, {mode}, {blindness}: {distance:.1f}")
    assert not alike, "\n".join(alike)


def test_in_the_dark_ours_outshines_plain_code_and_its_rewrites():
    """What is brightest is looked at first, and that must not be what is merely written in another way."""
    dark = {name: luminance(colour) for name, colour in palette.colours("dark").items()}
    assert max(dark[name] for name in ("eager", "rewrite", "rewrite-2", "other", "other-2")) < dark["ours"]


def test_css_has_every_colour_in_both_modes():
    css = palette.css()
    for mode in palette.MODES:
        for name, value in palette.colours(mode).items():
            assert f"--rp-{name}: {value};" in css


# ---- variants -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cases(published: Store):
    """The variants of each case, as it would measure them here and as they were measured where that is published."""
    device, found = torch.device("cpu"), {}
    for row in published.select():
        found.setdefault(row.case, set()).add(row.variant)
    for name, path in discover().items():
        case = load(path)
        for point in case.points(device):
            found.setdefault(name, set()).update(case.prepare(point, device).variants)
    return found


def test_every_variant_has_a_label_and_a_role(cases):
    for case, variants in cases.items():
        palette.check(case, variants)


def test_a_case_declares_only_variants_that_it_has(cases):
    shared = palette.load()["variants"]
    for case, known in palette.declared().items():
        assert known.keys() - shared.keys() <= cases[case], f"{case}: LABELS of variants that it lacks"


def test_a_variant_that_nobody_declared_is_refused_with_its_case():
    with pytest.raises(PublishError, match="kernels/softmax: no label for the variant 'tiled': declare it in the case"):
        palette.check("kernels/softmax", ["ours", "tiled"])
    with pytest.raises(KeyError, match=r"no variant 'egaer' in .*expected one of eager"):
        palette.label("egaer")


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ('{"a": {"label": "b"}}', "x: a: expected a label, maybe a short one, and a role of eager"),
        ('{"a": {"label": "b", "role": "green"}}', "x: a: expected a label"),
        ('{"a": {"label": "b", "role": "eager", "colour": "red"}}', "x: a: expected a label"),
        (
            '{"ours": {"label": "mine", "role": "eager"}}',
            "x: ours: expected the role ours, as palette.json declares it, got eager",
        ),
        ('{"a": make()}', "x.py: expected LABELS of literals"),
    ],
)
def test_a_declaration_that_cannot_be_is_refused(labels, message, tmp_path, monkeypatch):
    (tmp_path / "x.py").write_text(f"LABELS = {labels}\nCASE = Case()\n")
    monkeypatch.setattr(palette, "discover", lambda: {"x": tmp_path / "x.py"})
    with pytest.raises(PublishError, match=message):
        palette.declared.__wrapped__()
