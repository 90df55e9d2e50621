"""Every fenced block of every page is embedded from a tested file, run, or listed with its reason."""

import re
from pathlib import Path

import markdown
import pytest
from mkdocs.config import load_config

from docs.publish.generated import census
from docs.publish.markdown import pages
from docs.publish.markdown.fences import blocks_of, code_in
from tests.benchmarks.runner import discover
from tests.benchmarks.source import ROOT

READ = "docs/pages", "snippets/**/*", "tests/benchmarks"  # through docs.publish


def proof_of(path: str) -> Path | None:
    """The test file of an embeddable source file, by the naming rule; None where pages may not embed from."""
    source = Path(path)
    if source.parts[0] in ("snippets", "kernels"):
        return ROOT / "tests" / source.with_name(f"test_{source.stem}.py")  # also of gate.yml, beside gate.py
    if source.parts[:2] == ("tests", "benchmarks"):  # cases: tests/pages/test_house.py loads each
        return ROOT / source
    if source.parts[:2] == ("tests", "mutants"):
        return ROOT / source.with_name("test_mutants.py")
    return None


def test_every_block_is_accounted_for():
    missing = census.by_kind()["unaccounted"]
    assert not missing, (
        "embed these from a tested file, show them with output(), or list them in "
        f"docs/publish/generated/unrunnable.toml (`python -m docs.publish.generated.census` prints the entries): "
        f"{', '.join(map(str, missing))}"
    )


def test_every_listed_block_exists():
    shown = {(block.page, block.hash) for block in census.blocks()}
    gone = [entry for entry in census.listed() if (entry["page"], entry["hash"]) not in shown]
    assert not gone, f"changed or gone from their pages; remove them from unrunnable.toml: {gone}"


def test_every_listed_block_has_one_entry_with_a_reason():
    entries = census.listed()
    assert all(entry["reason"].strip() for entry in entries)
    assert len({(entry["page"], entry["hash"]) for entry in entries}) == len(entries)


def unproven(path: str, section: str | None) -> str | None:
    """What is wrong with an embedded file, or a section of it; None if it is there and tested."""
    proof = proof_of(path)
    if not (ROOT / path).is_file():
        return f"{path} does not exist"
    if not proof:
        return f"pages embed from snippets/ and kernels/, not from {path}"
    if not proof.is_file():
        return f"{path} has no test; expected {proof.relative_to(ROOT)}"
    if section and f"[start:{section}]" not in (ROOT / path).read_text():
        return f"{path} has no section {section}"
    return None


def test_embedded_code_is_tested():
    found = [
        f"{block}: {wrong}"
        for block in census.by_kind()["embedded"]
        for path, section in block.includes
        if (wrong := unproven(path, section))
    ]
    assert not found, "\n".join(found)


def test_markdown_shows_no_other_block():
    """Indented code and raw HTML would escape the census."""
    site = load_config(str(ROOT / "mkdocs.yml"))
    settings = site.mdx_configs | {"pymdownx.highlight": {"use_pygments": False}}  # the colours of code take longest
    found = []
    for page, text in pages.texts().items():
        body = re.sub(r"\A---\n.*?\n---\n", "", text, flags=re.DOTALL)
        html = markdown.markdown(body, extensions=site.markdown_extensions, extension_configs=settings)
        if html.count("<pre") != len(blocks_of(text, page)):
            found.append(f"{page}: {len(blocks_of(text, page))} fenced blocks, {html.count('<pre')} shown")
    assert not found, "\n".join(found)


def test_fences_are_backticks():
    tildes = [str(block) for block in census.blocks() if block.fence.startswith("~")]
    assert not tildes, f"pytest-codeblocks does not see ~~~ fences: {tildes}"


def test_the_census_finds_what_markdown_shows():
    """Titles, options, nesting and fences inside fences."""
    text = """
```python title="kernel.py" hl_lines="1"
x = 1
```

!!! note

    ``` {.sh .annotate}
    echo "```"
    ```

````text
```python
inner
```
````
"""
    found = blocks_of(text, "page.md")
    assert [(block.line, block.last, block.language, block.body) for block in found] == [
        (2, 4, "python", "x = 1"),
        (8, 10, "sh", 'echo "```"'),
        (12, 16, "text", "```python\ninner\n```"),
    ]


def test_code_among_prose_is_found():
    text = "A `span`.\n\n```text\nnot a `span\n```\n\nIts `end.\n\n> ```sh\n> ls\n> ```\n"
    code = [text[begin:end] for begin, end in code_in(text)]
    assert code == ["`span`", "```text\nnot a `span\n```", "> ```sh\n> ls\n> ```"]


def test_a_title_may_change_but_not_a_line():
    plain, titled, other = (
        blocks_of(text, "page.md")[0]
        for text in ("```python\nx = 1\n```", '```python title="a"\nx = 1\n```', "```python\nx = 2\n```")
    )
    assert plain.hash == titled.hash != other.hash


def test_a_command_that_measures_names_a_case():
    named = {(str(block), case) for block in census.by_kind()["measures"] for case in block.measures}
    unknown = sorted((block, case) for block, case in named if case not in discover())
    assert not unknown, f"no such case: {unknown}"


@pytest.mark.parametrize(
    ("body", "cases"),
    [
        ("python -m tests.benchmarks kernels/rope", ["kernels/rope"]),
        ("python -m tests.benchmarks kernels/rope\nrm -rf /", []),
        ("python -m tests.benchmarks kernels/rope; rm -rf /", []),
        ("python -m tests.benchmarks", []),
    ],
)
def test_a_block_measures_if_it_does_nothing_else(body: str, cases: list[str]):
    (block,) = blocks_of(f"```sh\n{body}\n```\n", "page.md")
    assert block.measures == cases


@pytest.mark.parametrize(
    ("body", "runs"),
    [
        ("python -m snippets.first_speedup", True),
        ("# on a GPU\nTORCH_LOGS=output_code python -m snippets.first_speedup", True),
        ("nox -s docs", False),
        ("python -m snippets.first_speedup\ngit commit", False),
        ("python -m tests.benchmarks", False),
    ],
)
def test_shell_runs_only_if_it_starts_snippets(body: str, runs: bool):
    assert blocks_of(f"```sh\n{body}\n```", "page.md")[0].runnable == runs


def test_an_open_fence_is_an_error():
    with pytest.raises(ValueError, match=r"page\.md:1"):
        blocks_of("```python\nx = 1\n", "page.md")
