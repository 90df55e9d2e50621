"""What is counted by hand is what PyTorch counts, and each redesign does what its name says."""

import pytest

from snippets.patterns import compute_intensity
from snippets.patterns.compute_intensity import LAYERS, REDESIGNS
from snippets.patterns.compute_intensity_layers import counted
from tests.benchmarks.captures import sections


@pytest.mark.parametrize("name", LAYERS)
def test_by_hand_and_by_machine_agree(name):
    work, function, inputs = LAYERS[name]
    assert counted(function, *inputs) == work


def test_each_redesign_raises_the_intensity_but_for_merging_few_rows():
    for name, (before, after) in REDESIGNS.items():
        gain = after.intensity / before.intensity
        assert gain == pytest.approx(1, abs=0.01) if name.startswith("merge q") else gain > 1.9, name
    before, after = REDESIGNS["widen: 64 layers of 256, 1 of 2048"]
    assert before.flops == after.flops
    before, after = REDESIGNS["share keys: 1 head, 8 heads"]
    assert after.intensity / before.intensity == pytest.approx(8, rel=0.01)


def test_the_script_prints_what_the_page_shows(script):
    printed = script(compute_intensity.__name__).stdout
    assert list(sections(printed)) == ["map", "redesigns", "decode"]
