"""Terms in pages: where they are marked, and where they are not."""

import re

import pytest

from docs.publish.site.glossary import shown, terms

GLOSSARY = """# Glossary

## On the GPU

### Warp

Threads, with `id` and all,
32 of them.

### Cold cache {#cold data-also="cold L2, cold"}

Emptied.

### CUDA graph

Recorded.
"""
TERMS = terms(GLOSSARY)


def marked(page: str) -> list[str]:
    """What is marked, as it stands there."""
    return re.findall(r'<a class="rp-term"[^>]*>([^<]*)</a>', shown(page, TERMS, "../glossary/"))


def test_an_entry_has_an_anchor_names_and_plain_text() -> None:
    warp, cold, graph = TERMS
    assert (warp.id, warp.names, warp.text) == ("warp", ("warp",), "Threads, with id and all, 32 of them.")
    assert (cold.id, cold.names) == ("cold", ("cold cache", "cold L2", "cold"))
    assert (graph.id, graph.names) == ("cuda-graph", ("CUDA graph",))


@pytest.mark.parametrize(
    ("page", "expected"),
    [
        ("<p>A warp, and another warp.</p>", ["warp"]),
        ("<p>Warps of a\nCUDA graph</p>", ["Warps", "CUDA graph"]),
        ("<p>a cold cache, and cold</p>", ["cold cache"]),
        ("<p>a cold\nL2</p>", ["cold\nL2"]),
        ("<h2>Warp</h2><p><code>Warp</code> <a href='x'>Warps</a> the warp</p>", ["warp"]),
        ("<p>warped, warp-wide, pre-warp, x.warp, cuda graph</p>", []),
        ("<details><summary>warp?</summary><p>In the box a warp.</p></details><p>The Warp.</p>", ["Warp"]),
        ("<details><summary>?</summary><p>In the box a warp.</p></details>", ["warp"]),
        ("<svg><text>warp</text></svg><pre>warp</pre><script>warp</script><button>warp</button>", []),
    ],
)
def test_what_is_marked(page: str, expected: list[str]) -> None:
    found = marked(page)
    assert [re.sub(r"\s+", " ", each) for each in found] == [re.sub(r"\s+", " ", each) for each in expected]


def test_the_longer_of_two_terms_is_marked_whichever_comes_first() -> None:
    both = terms("### Launch\n\nAn order.\n\n### Launch time\n\nA unit.\n")
    found = shown("<p>2 launch times, one launch</p>", both, "../glossary/")
    assert re.findall(r"#([\w-]+)\"[^>]*>([^<]*)</a>", found) == [("launch-time", "launch times"), ("launch", "launch")]


def test_a_page_stays_as_it_is_around_its_terms() -> None:
    page = '<p class="warp">1 < 2, a warp &amp; more'
    result = shown(page, TERMS, "g/")
    link = '<a class="rp-term" href="g/#warp" aria-describedby="term-warp">warp</a>'
    assert result.startswith(page.replace("a warp", f"a {link}"))
    assert result.count('id="term-warp"') == 1
