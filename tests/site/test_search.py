"""The search, as a reader uses it: what comes first, what an excerpt shows, and what is said where there is nothing."""

import json
import re
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Page, expect

from tests.site.conftest import DESKTOP, Site

BEST = """() => {
    const score = (link) => Number(link.firstElementChild.dataset.mdScore)
    const better = (best, link) => score(link) > score(best) ? link : best
    return [...document.querySelectorAll('.md-search-result__item')].map(
        (page) => [...page.querySelectorAll('a')].reduce(better).href)
}"""

# What is typed, and what has to be among the first three results: the first of them first. A page, or a section of one.
# Nothing means that there has to be no result. A page that is new takes its rows along.
QUERIES = {
    "int8 weights": ["patterns/compute-intensity/#decode"],
    "decode one token": ["patterns/attention-choose/"],
    "which fusions are in my model": ["patterns/fusion/"],
    "epilogue": ["patterns/fusion/#epilogue", "compiler/fusion/#products"],
    "mixed precision": ["patterns/mixed-precision/"],
    "channels last": ["patterns/memory/#channels-last"],
    "view or reshape": ["patterns/memory/"],
    "modified by an inplace operation": ["patterns/memory/#in-place"],
    "compile whole": ["patterns/compiler-friendly/"],
    "counter recompiles": ["patterns/compiler-friendly/#state"],
    "mixture of experts": ["patterns/linear/#experts"],
    "LayerDrop": ["patterns/compiler-friendly/#drop"],
    "BERT padding": ["patterns/attention-padding/"],
    "embedding backward slow": ["patterns/embeddings/#mechanism"],
    "sparse gradients": ["patterns/embeddings/#sparse"],
    "KV cache recompiles": ["patterns/compiler-friendly/#cache"],
    "fold batch norm": ["patterns/fusion/"],
    "GradScaler": ["patterns/mixed-precision/#scaling"],
    "tf32": ["patterns/mixed-precision/#tf32"],
    "fp8": ["patterns/mixed-precision/#fp8"],
    "C++": ["compiler/ahead-of-time/#cpp"],
    "run a compiled model from C++": ["compiler/ahead-of-time/#cpp"],
    "gpu busy": ["validation/diagnosis/"],
    "illegal memory access": ["compiler/debugging/#gpu"],
    "first optimized module": ["examples/first-optimized-module/"],
    "where do I begin": ["learning/beginner/"],
    "the beginner's path": ["learning/beginner/"],
    "moving average without a loop": ["examples/first-optimized-module/"],
    "fused softmax": ["kernels/softmax/", "kernels/softmax-dropout/"],
    "softmax": ["kernels/softmax/", "kernels/softmax-dropout/"],
    "how do I time": ["validation/timing/"],
    "do_bench": ["validation/timing/"],
    "torch.utils.benchmark": ["validation/timing/#three-timers"],
    "grid and num_warps of a compiled kernel": ["compiler/reading-the-output/#launched"],
    "out of memory": ["validation/memory/"],
    "torch.compile": ["compiler/what-compile-does/", "compiler/compile-time/"],
    "TORCH_LOGS": ["compiler/reading-the-output/#logs", "reference/environment-variables/#torch-logs"],
    "TORCHINDUCTOR_CACHE_DIR": ["reference/environment-variables/#torchinductor-cache-dir"],
    "PYTORCH_CUDA_ALLOC_CONF": ["reference/environment-variables/#pytorch-cuda-alloc-conf"],
    "recompile_limit": [
        "compiler/recompilation/#past-the-limit-silently-eager",
        "reference/environment-variables/#recompile-limit",
    ],
    "TRITON_INTERPRET": ["reference/environment-variables/#triton-interpret"],
    "nan_asserts": ["reference/environment-variables/#torchinductor-nan-asserts"],
    "environment variables": ["reference/environment-variables/"],
    "_orig_mod": ["compiler/ahead-of-time/#checkpoints"],
    'TORCH_LOGS="recompiles"': [
        "compiler/reading-the-output/#logs",
        "compiler/recompilation/#what-the-log-says-and-what-ends-it",
    ],
    "recompile": ["compiler/recompilation/", "reference/questions/#recompilation"],
    # two forms of a word at one place
    "recompile recompiles": ["compiler/recompilation/"],
    "recompilation": ["compiler/recompilation/", "reference/questions/#recompilation"],
    "torchscript": ["compiler/torchscript/"],
    "torch.jit.script deprecated": ["compiler/torchscript/"],
    "torch.jit.trace": ["compiler/torchscript/"],
    "custom op": ["compiler/custom-kernels/"],
    "triton_op": ["compiler/custom-kernels/"],
    "opcheck": ["compiler/custom-kernels/#opcheck"],
    "register_fake": ["compiler/debugging/#shape", "compiler/custom-kernels/"],
    "fragmentation": ["validation/memory/#allocator"],
    "expandable_segments": ["reference/environment-variables/#pytorch-alloc-conf", "validation/memory/#allocator"],
    "FlashAttention 4": ["examples/llama-flash4/"],
    "normalization": ["patterns/normalization/"],
    "activations": ["patterns/activations/"],
    "QuickGELU": ["patterns/activations/#forms", "patterns/activations/"],
    "masked softmax": ["kernels/softmax/", "patterns/softmax-and-loss/"],
    "embeddings": ["patterns/embeddings/"],
    "SparseAdam": ["patterns/embeddings/#sparse"],
    "tied weights": ["patterns/embeddings/#tied", "patterns/embeddings/"],
    "linear": ["patterns/linear/"],
    "grouped_mm": ["patterns/linear/#experts"],
    "vocabulary multiple of 64": ["patterns/linear/#sizes", "patterns/linear/"],
    "fused QKV": ["patterns/linear/#merged", "patterns/linear/"],
    "transformer block": ["patterns/transformer-block/"],
    "folklore": ["reference/folklore/"],
    "F.scaled_dot_product_attention": ["patterns/attention/"],
    "which attention": ["patterns/attention/"],
    "padding mask": ["patterns/attention-padding/"],
    "attention mask slow": ["patterns/attention-padding/"],
    "sliding window": ["patterns/attention-choose/", "patterns/attention-masks/"],
    "alibi": ["patterns/attention-choose/", "patterns/attention-masks/"],
    "one query and a cache": ["patterns/attention-masks/"],
    "grouped query attention": ["patterns/attention-choose/", "patterns/attention-masks/"],
    "variable length": ["compiler/recompilation/", "patterns/attention-padding/"],
    "attention with variable length": ["patterns/attention-padding/"],
    "varlen": ["patterns/attention-padding/"],
    "which attention for training with a padding mask": ["patterns/attention-padding/"],
    "cuda graph": ["#compiled-then-recorded", "compiler/modes/#what-a-cuda-graph-holds-on-to"],
    "what does cold mean": ["reference/glossary/#cold-cache"],
    "cold": ["reference/questions/#compile-time", "reference/glossary/#cold-cache"],  # caches of two kinds
    "speed up training": ["validation/diagnosis/"],
    "what does 'cold' mean in this table?": ["reference/glossary/#cold-cache"],
    "what does host-bound mean": ["reference/glossary/#host-bound"],
    "ridge point": ["validation/roofline/#two-bounds-and-the-point-where-they-meet", "reference/glossary/#ridge-point"],
    "how do I prove that it is the same?": ["validation/equivalence/"],
    "does the kernel spill": ["validation/compiled-code/#three-findings"],
    "layernorm": ["kernels/layer-norm/", "kernels/layer-norm-gelu/"],
    "rms norm": ["kernels/rms-norm/", "kernels/add-rms-norm/"],
    "cross-entropy backward": ["kernels/cross-entropy/"],
    "rotary": ["kernels/rope/"],
    "swiglu": ["kernels/swiglu/"],
    "float64 reference": ["results/methodology/#right-before-fast", "validation/equivalence/"],
    "stale": ["results/methodology/#stale-numbers"],
    "compile made it slower": ["compiler/modes/#loses", "compiler/graph-breaks/#what-a-break-costs"],
    "which mode for a decode service": ["compiler/modes/"],
    "graph break": ["compiler/graph-breaks/", "reference/questions/#graph-breaks"],
    # questions as people ask them: answered, in the code's own words, and without an answer yet
    "why is my compiled model slower than eager?": [
        "compiler/modes/#loses",
        "compiler/graph-breaks/#what-a-break-costs",
    ],
    "what does divisible_by_16 mean": ["validation/compiled-code/"],
    "should clipping be compiled": ["compiler/training/#optimizer"],
    "may several threads call a compiled model?": ["reference/questions/#open-shipping"],
    "wrong results": ["compiler/debugging/"],
    "device-side assert": ["compiler/debugging/#asserts"],
    "compute-sanitizer": ["compiler/debugging/#sanitizer"],
    "no working C++ compiler found": ["compiler/debugging/#machine"],
    "minifier": ["compiler/debugging/#minifier"],
    "my first kernel": ["kernels/first-kernel/"],
    "write a kernel": ["kernels/first-kernel/"],
    "profiler": ["validation/profiling/"],
    "torch.profiler": ["validation/profiling/"],
    "how to read a trace": ["validation/profiling/", "validation/diagnosis/"],
    "profiler trace": ["validation/profiling/"],
    "profiling tools": ["validation/profiling-tools/"],
    "nsight compute": ["validation/profiling-tools/#counters"],
    "ERR_NVGPUCTRPERM": ["validation/profiling-tools/#counters", "reference/questions/#profiling"],
    "cudaLaunchKernel": ["validation/profiling/#full"],
    "record_function": ["validation/profiling/"],
    # whole questions: small words say nothing, and most of the others are enough
    "is my 2% speedup real": ["validation/regressions/"],
    "2% faster": ["validation/regressions/"],
    "speedup real": ["validation/regressions/"],
    "why is torch.compile slower than eager for my model": [
        "compiler/modes/#loses",
        "compiler/graph-breaks/#what-a-break-costs",
    ],
    "how do I know whether a speedup isn't just noise in my zebra benchmark?": ["validation/regressions/"],
    "zebra crossing": [],
    "break the zebra umbrella": [],  # one word of three is not most of them
}


@pytest.fixture(scope="module")
def searching(site: Site, tab: Page) -> Iterator[Page]:
    """The first page, with the search open."""
    tab.set_viewport_size(DESKTOP)  # the last test may have left a phone's
    tab.goto(site.address)
    tab.locator(".md-search__input").click()
    yield tab
    tab.goto("about:blank")


def search(page: Page, words: str) -> None:
    """Type words; returns when there is an answer."""
    said = page.locator(".md-search-result__meta")
    for text, answer in (("", "Type to start searching"), (words, re.compile("matching document"))):
        page.fill(".md-search__input", text)
        page.press(".md-search__input", "Shift")  # the field listens to keys
        expect(said).to_have_text(answer)


def first_three(site: Site, page: Page, words: str) -> list[str]:
    """The best section of each of the first three pages, as addresses below the site's."""
    search(page, words)
    links = [urlsplit(link) for link in page.evaluate(BEST)[:3]]
    return [f"{link.path.removeprefix(site.prefix)}{'#' * bool(link.fragment)}{link.fragment}" for link in links]


@pytest.mark.parametrize("turn", ["focus", "hover", "address"])
def test_the_index_waits_until_somebody_turns_to_the_search(site: Site, page: Page, turn: str) -> None:
    asked: list[str] = []
    page.on("request", lambda request: asked.append(urlsplit(request.url).path))
    index = json.loads(site.content(f"{site.prefix}search/search_index.json") or b"")
    index["docs"] = [each for each in index["docs"] if each["location"].startswith("kernels/softmax/")]
    page.route("**/search/search_index.json", lambda route: route.fulfill(json=index))  # the whole one takes long
    page.set_viewport_size(DESKTOP)
    page.goto(site.address, wait_until="networkidle")
    assert f"{site.prefix}scripts/asked.js" in asked and f"{site.prefix}search/search_index.json" not in asked
    with page.expect_response("**/search/search_index.json"):
        if turn == "address":
            page.goto(f"{site.address}?q=softmax")
        else:
            getattr(page.locator(".md-search__input"), turn)()
    page.locator(".md-search__input").fill("softmax")
    page.press(".md-search__input", "Shift")
    expect(page.locator(".md-search-result__meta")).to_have_text(re.compile("matching document"))


@pytest.mark.parametrize(("words", "wanted"), QUERIES.items(), ids=QUERIES)
def test_what_people_type_finds_what_they_want(site: Site, searching: Page, words: str, wanted: list[str]) -> None:
    found = first_three(site, searching, words)
    missing = [each for each in wanted if not any(is_in(each, result) for result in found)]
    assert not missing, f"expected {missing} among the first three results, got {found}"
    assert bool(found) == bool(wanted), f"expected {wanted or 'no result'}, got {found}"
    assert not found or is_in(wanted[0], found[0]), f"expected {wanted[0]!r} first, got {found}"


def is_in(wanted: str, result: str) -> bool:
    """Whether a result is a page, or a section of it where no section is wanted."""
    return wanted == (result if "#" in wanted else result.partition("#")[0])


def test_nothing_found_is_said(searching: Page) -> None:
    search(searching, "zebra crossing")
    expect(searching.locator(".md-search-result__meta")).to_have_text("No matching documents")


def test_most_of_the_words_are_said_to_be_not_all_of_them(searching: Page) -> None:
    note = searching.locator(".rp-most")
    for words, said in (("graph break zebra", True), ("graph break", False), ("zebra crossing", False)):
        search(searching, words)
        expect(note).to_be_visible(visible=said)
    search(searching, "graph break zebra")
    expect(note).to_have_text("Nothing has all of these words. These sections have most of them.")
    expect(searching.locator(".md-search-result__terms").first).to_have_text("Missing: zebra")


def test_a_word_that_is_missing_is_named(searching: Page) -> None:
    """Of four words and more."""
    search(searching, "float64 reference largest error zebra")
    expect(searching.locator(".md-search-result__terms").first).to_have_text("Missing: zebra")


def test_an_excerpt_is_short_and_shows_what_was_found_among_prose(searching: Page) -> None:
    search(searching, "bandwidth copy")
    texts = [article.inner_text() for article in searching.locator(".md-search-result article:has(mark)").all()]
    assert texts
    assert all(len(text) < 400 for text in texts)
    assert searching.locator(".md-search-result pre").count() == 0


def test_the_index_has_prose_for_its_text_and_no_tables_of_numbers(site: Site) -> None:
    sections = json.loads((site.folder / "search" / "search_index.json").read_text())["docs"]
    assert any("rms_norm" in section.get("code", "") for section in sections)
    assert not [each["location"] for each in sections if "<pre>" in each["text"] or "p20 to p80" in each["text"]]


def test_every_question_is_in_the_index(site: Site) -> None:
    """At the section that answers it, or while none does where it stands."""
    sections = json.loads((site.folder / "search" / "search_index.json").read_text())["docs"]
    found = {text for each in sections for text in re.findall(r"<p>(.*?)</p>", each.get("questions", ""))}
    asked = re.findall(r"<tr>\s*<td>(.*?)</td>", site.pages["reference/questions/"])
    assert asked and {re.sub(r"<[^>]*>", "", each).strip() for each in asked} == found


def test_a_result_leads_to_its_section(site: Site, searching: Page) -> None:
    search(searching, "ridge point")
    searching.locator(".md-search-result__item").first.locator("a[href*='#']").first.click()
    expect(searching.locator("#two-bounds-and-the-point-where-they-meet")).to_be_in_viewport()
