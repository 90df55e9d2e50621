"""The largest batch by hand is the last that fits, and the page names the largest errors."""

import json
import re
from dataclasses import replace

from snippets.examples import (
    large_models,
    large_models_measure,
    large_models_moments,
    large_models_shape,
)
from snippets.examples.hf_llama import LLAMA_8B
from snippets.examples.large_models_change import EACH, Change
from tests.benchmarks.source import ROOT


def test_the_largest_batch_is_the_last_that_fits() -> None:
    s, lean = large_models_shape.shape_of(LLAMA_8B), replace(EACH["and gradients released"], states="8 bit")
    room = 78 * large_models_measure.GIB
    rows = large_models.largest(s, room, lean, 2048)
    fits = [large_models_moments.predicted(s, each * 2048, lean)[1] <= room for each in (rows, rows + 1)]
    assert rows > 0 and fits == [True, False] and not large_models.largest(s, room, Change(), 2048)


def test_the_errors_that_the_page_names_are_the_largest() -> None:
    """Of every peak on the record; the page shows these two."""
    record = json.loads((ROOT / "docs/measurements/captures/examples/large_models.cuda.json").read_text("utf-8"))
    printed = {each["section"]: each["content"] for each in record["sections"]}
    lines = "\n".join(printed[name] for name in ("parts 1B", "each", "parts 3B", "large")).splitlines()
    errors = {line[:34].strip(): float(found[1]) for line in lines if (found := re.search(r" ([-+]\d+\.\d) %", line))}
    assert len(errors) > len(EACH)
    assert min(errors.values()) == errors["compiled, budget 0.9"]
    assert max(errors.values()) == errors["checkpoints, chunks"]
