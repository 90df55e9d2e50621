"""Nobody types a result into a page."""

import pytest

from docs.publish.markdown.pages import PAGES
from tests.benchmarks.source import ROOT
from tests.pages.prose import literals

READ = "docs/pages"  # through docs.publish


def test_no_result_is_typed_into_a_page():
    found = [
        f"{path.relative_to(ROOT)}:{line}: {kind}: {text!r}"
        for path in sorted([*PAGES.rglob("*.md"), *PAGES.rglob("*.svg")])
        for line, kind, text in literals(path.read_text())
    ]
    assert not found, "use gpu(), datasheet(), bound() or another macro instead of:\n" + "\n".join(found)


@pytest.mark.parametrize(
    ("sentence", "kind"),
    [
        ("It is 3.2x faster.", "factor"),
        ("It is 1.7× on the H200.", "factor"),
        ("It is 1.7 x faster.", "factor"),
        ("A 2x speedup.", "factor"),
        ("| ours | 3.2x |", "factor"),
        ("It is three times faster than eager.", "speedup"),
        ("A twofold gain.", "factor"),
        ("It runs twice as fast.", "speedup"),
        ("It takes half the time.", "speedup"),
        ("It reaches 4 TB/s.", "rate"),
        ("It reaches 3,900 GB/s.", "rate"),
        ("It reaches 3.9&nbsp;TB/s.", "rate"),
        ("It moves 4 terabytes per second.", "rate"),
        ("cuBLAS does 656 TFLOP/s.", "rate"),
        ("cuBLAS does 656 TFLOPS.", "rate"),
        ("It makes 1200 tokens/s.", "rate"),
        ("It clocks at 1.9 GHz.", "rate"),
        ("That is 85% of copy.", "percentage"),
        ("That is 85 % of copy.", "percentage"),
        ("That is 20-30% less.", "percentage"),
        ("That is 85 percent of copy.", "percentage"),
        ("A launch takes 63 us.", "time"),
        ("A launch takes 63us.", "time"),
        ("A launch takes 63 µs.", "time"),
        ("A launch takes 0.06 ms.", "time"),
        ("A launch takes ~63 microseconds.", "time"),
        ("A 5-second build.", "time"),
        ("The build takes 20 s.", "time"),
        ("The build takes ten seconds.", "time"),
        ("It takes **63 us**.", "time"),
        ("It takes **63** us.", "time"),
        ("[63 us](../results/index.md)", "time"),
        ("<td>63 us</td>", "time"),
        ('{{ chart(kind="bars", case="a", title="Ours reaches 88% of copy") }}', "percentage"),
        ('!!! note "3.2x faster"', "factor"),
    ],
)
def test_a_typed_result_is_found(sentence: str, kind: str):
    assert [found for _, found, _ in literals(f"# Page\n\n{sentence}\n")] == [kind]


@pytest.mark.parametrize(
    "sentence",
    [
        "It is {{ gain('ours', over='eager', at='a') }} faster.",
        '{{ gpu("ours", "wide", case="kernels/add") }} at 32768×4096, or 32768 x 4096.',
        '{{ bound("2 * rows / 4e12", rows=8) }}',
        '{{ chart(kind="bars", case="a", title="Ours reaches {ours} of copy; the compiler {compile}") }}',
        "`3.2x faster` and ``4 TB/s`` are what the test looks for.",
        "```text\n3.2x faster\n```",
        "    ```text\n    3.2x faster\n    ```",
        "We report p50, with p20 and p80.",
        "In bf16 and fp32, on sm_90, with torch 2.13 and Python 3.11 to 3.14.",
        "Three kernels, 128-byte lines, 16-bit loads, 2 KB of shared memory.",
        "It moves 2 × rows × columns elements.",
        "The 4090s and the H200s agree.",
        "It reads every byte once and writes it once; twice the bytes would be wasted.",
        "At 8 warps, 1 row a program.",
        "Rows of 4096 columns, 2^31 elements, eps=1e-6.",
        "See [the docs](https://example.org/3.2x/85%25).",
        '<div style="width: 50%">A figure.</div>',
        '![A figure](a.svg){ width="50%" }',
        "<!-- 3.2x faster -->",
        "A microsecond, a few seconds, half of the work.",
    ],
)
def test_what_is_no_result_passes(sentence: str):
    assert list(literals(f"# Page\n\n{sentence}\n")) == []


def test_the_line_is_named():
    text = "---\nreading_time: 5 minutes\n---\n\n```text\n85%\n```\n\n{{ gpu(\n'a') }}\n\nOnly 3.2x here.\n"
    assert list(literals(text)) == [(12, "factor", "3.2x")]


def test_the_description_is_prose():
    assert [line for line, *_ in literals("---\ntitle: A page\ndescription: Get 3.2x faster.\n---\n")] == [3]
