"""A captured step becomes a drawing: bars to scale, arrows from launch to kernel, words for those who do not see it."""

import json
import xml.etree.ElementTree as ET
from types import SimpleNamespace

import pytest

from docs.publish.errors import PublishError
from docs.publish.macros.timelines import LEFT, WIDTH, figure

STEP = {
    "lanes": [
        {"name": "launches", "bars": [[0, 5, "cudaLaunchKernel", "launch"], [50, 5, "cudaLaunchKernel", "launch"]]},
        {"name": "GPU", "bars": [[10, 20, "mul & add", "kernel"], [60, 40, "triton_poi_fused_0", "compiled"]]},
    ],
    "arrows": [[0, 10], [50, 60]],
}


def drawn(step: object, title: str = "A step") -> ET.Element:
    content = step if isinstance(step, str) else json.dumps(step)
    return ET.fromstring(
        figure(SimpleNamespace(name="a step", script="validation/a", section="step", content=content), title)
    )


def test_bars_are_to_scale_and_named():
    svg = drawn(STEP)
    bars = [rect for rect in svg.iter("rect") if rect.find("title") is not None]
    assert [bar.find("title").text for bar in bars] == [
        "cudaLaunchKernel, 5 us", "cudaLaunchKernel, 5 us", "mul & add, 20 us", "triton_poi_fused_0, 40 us",
    ]  # fmt: skip
    whole = WIDTH - 2 * LEFT
    assert float(bars[3].get("x")) == pytest.approx(LEFT + 0.6 * whole, abs=0.1)
    assert float(bars[3].get("width")) == pytest.approx(0.4 * whole, abs=0.1)
    assert bars[2].get("fill") != bars[3].get("fill")


def test_an_arrow_leads_from_each_launch_to_its_kernel():
    paths = [path.get("d") for path in drawn(STEP).iter("path")]
    assert paths[0].count("M") == paths[0].count("L") == 2


def test_it_is_described_and_no_text_leaves_the_drawing():
    svg = drawn(STEP, "Eager & small")
    assert svg.find("title").text == "Eager & small"
    assert svg.find("desc").text == (
        "100 microseconds. launches: 2 bars, 10 microseconds together; GPU: 2 bars, 60 microseconds together."
    )
    for text in svg.iter("text"):
        assert 0 <= float(text.get("x")) <= WIDTH


def test_long_steps_are_in_milliseconds():
    step = {"lanes": [{"name": "GPU", "bars": [[0, 12000, "mm", "kernel"]]}], "arrows": []}
    labels = [text.text for text in drawn(step).iter("text")]
    assert "12 ms" in labels and not any(label.endswith(" us") for label in labels)


@pytest.mark.parametrize("content", ["no JSON", "[]", '{"lanes": [], "arrows": []}'])
def test_what_is_no_timeline_is_refused(content):
    with pytest.raises(PublishError, match="expected a timeline"):
        drawn(content)


def test_a_kind_without_a_colour_is_refused():
    step = {"lanes": [{"name": "GPU", "bars": [[0, 1, "x", "odd"]]}], "arrows": []}
    with pytest.raises(PublishError, match="no colour for odd"):
        drawn(step)
