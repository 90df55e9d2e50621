"""Each page keeps to the style guide's limits, as far as a program can tell: see tests/pages/style.py."""

import pytest

from docs.publish.markdown.pages import PAGES
from tests.benchmarks.source import ROOT
from tests.pages.style import faults, parts, words

READ = "docs/pages"  # through docs.publish
# Of it 5,500 on generation and fp8, 3,500 on several GPUs, 5,200 on matmul and large models, 800 on wrong results
# without an error.
MOST_WORDS_OF_ALL = 104_600
SEARCHED = ("reference/", "results/", "index.md")  # readers look something up there: they may be long


def test_pages_keep_to_the_limits():
    found = []
    for path in sorted(PAGES.rglob("*.md")):
        name = path.relative_to(PAGES).as_posix()
        reference = name.startswith(SEARCHED) or name.endswith("index.md")
        found += [f"{name}:{fault}" for fault in faults(path.read_text(encoding="utf-8"), reference)]
    assert not found, "\n".join(found)


def test_all_pages_together_keep_to_a_number_of_words():
    count = sum(words(part.text) for path in PAGES.rglob("*.md") for part in parts(path.read_text(encoding="utf-8")))
    assert count <= MOST_WORDS_OF_ALL, (
        f"{count} words on all pages, expected at most {MOST_WORDS_OF_ALL}: cut elsewhere, or raise it and say why"
    )
    said = f"{round(count, -3):,} words"
    assert said in (ROOT / "README.md").read_text(encoding="utf-8"), f"expected README.md to say {said!r}: {count} now"


SCREEN = "**Do this.** Use it.\n\n**Expect this.** A gain.\n\n**Paste this.** Code.\n\n"
LONG = "One two three four five six seven eight nine ten eleven twelve thirteen "


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("Use it.\n", "the first screen to have Do this."),
        (SCREEN + f"{LONG}{LONG}.\n", "a sentence of 26 words"),
        (SCREEN + f"- Short.\n- {LONG}{LONG}.\n", "8: a sentence of 26 words"),
        (SCREEN + f"| a | {LONG}{LONG} |\n|---|---|\n", "a sentence of 26 words"),
        (SCREEN + "A b. C d. E f. G h. I j. K l.\n", "a paragraph of 6 sentences"),
        (SCREEN + "\n\n".join(["Word " * 20 + "."] * 101), "words, expected at most 2000"),
        (SCREEN + f"## {LONG}\n", "a heading of 13 words"),
        (SCREEN + "It was mended.\n", "'mended', expected fix"),
        (SCREEN + "It takes two launch times.\n", "'launch times', expected µs"),
    ],
)
def test_what_a_page_has_too_much_of_is_found(text: str, fault: str):
    assert any(fault in found for found in faults(text)), list(faults(text))


@pytest.mark.parametrize(
    "text",
    [
        SCREEN + f"{LONG}.\n\n```python\n# {LONG}{LONG}\n```\n",
        SCREEN + f"{LONG}: {{{{ gpu('a', 'b') }}}}. Then {{{{ holds('{LONG}{LONG}') }}}} it ends.\n",
        SCREEN + f"- {LONG}.\n- {LONG}.\n",
        SCREEN + "`launch times` in code.\n",
        f"---\ntitle: {LONG}{LONG}\nmended: 1\n---\n{SCREEN}",
    ],
)
def test_what_keeps_to_the_limits_passes(text: str):
    assert list(faults(text)) == []
