"""A page's HTML as Markdown, the line above it, and the archive of records."""

import io
import json
import zipfile
from pathlib import Path

import pytest

from docs.publish import palette
from docs.publish.generated import exports
from docs.publish.site import llms

RUN = {
    "machine": "NVIDIA H200",
    "software": "python 3.12, torch 2.13.0+cu130, triton 3.7.1",
    "date": "2026-11-22T10:00Z",
}


def page(*entries: dict) -> str:
    evidence = json.dumps({f"e{number}": entry for number, entry in enumerate(entries)})
    return f'<p>text</p><script type="application/json" id="rp-evidence">{evidence}</script>'


@pytest.mark.parametrize(
    ("entries", "first"),
    [
        ([RUN], "Measured on NVIDIA H200 with torch 2.13.0+cu130; 2026-11-22."),
        ([{"formula": "2 × 3"}, RUN, RUN], "Measured on NVIDIA H200 with torch 2.13.0+cu130; 2026-11-22."),
        (
            [RUN | {"date": "2026-11-26"}, RUN | {"machine": "AMD EPYC, 2 cores", "software": "torch 2.11.0"}],
            "Measured on NVIDIA H200 with torch 2.13.0+cu130; AMD EPYC, 2 cores with torch 2.11.0; "
            "2026-11-22 to 2026-11-26.",
        ),
        ([{"formula": "2 × 3"}], llms.NOT_OF_ONE),
    ],
)
def test_the_first_line_says_where_and_when(entries: list[dict], first: str) -> None:
    assert llms.markdown(page(*entries), "A", {}).splitlines()[0] == first


def test_a_page_without_evidence_names_no_machine() -> None:
    said = {"title": "Modes & more", "description": "What it is."}
    assert llms.markdown("<h1>Modes</h1><p>text</p>", "Modes", said) == (
        f"{llms.NOT_OF_ONE}\n\n# Modes & more\n\nWhat it is.\n\ntext\n"
    )


@pytest.mark.parametrize(
    ("html", "markdown"),
    [
        ('<h2 id="a">One<a class="headerlink" href="#a">#</a></h2>\n<p>It.</p>', "## One\n\nIt."),
        ('<p>takes <a class="rp-number rp-stale" href="#">5 µs <small>stale</small></a>.</p>', "takes 5 µs (stale)."),
        ('<p>see <a href="../b/">B &amp; C</a> &lt; D</p>', "see [B & C](../b/) < D"),
        ("<ul>\n<li><p>one</p></li>\n<li><em>two</em></li>\n</ul>", "- one\n\n- *two*"),
        (
            "<table>\n<thead>\n<tr>\n<th>a</th>\n<th>b </th>\n</tr>\n</thead>\n<tbody>\n<tr>\n<td>1 | 2</td>\n"
            "<td><p><code>x</code></p></td>\n</tr></tbody></table>",
            "| a | b |\n|---|---|\n| 1 \\| 2 | `x` |",
        ),
        (
            '<div class="language-python highlight"><pre><span></span><code><a id="l"></a><span class="n">a</span> &lt;'
            " b\n\n    <span>c</span>\n</code></pre></div><p>end</p>",
            "```python\na < b\n\n    c\n```\n\nend",
        ),
        ("<svg><title>t</title><desc>A line.</desc><text>9</text></svg><svg><text>8</text></svg>", "A line."),
        ("<p>a</p><button>Copy</button><script>1 < 2</script><style>p {}</style>", "a"),
        ("<details><summary>Predict</summary><p>Yes</p></details>", "**Predict**\n\nYes"),
    ],
)
def test_html_becomes_markdown(html: str, markdown: str) -> None:
    assert llms._converted(llms.UNSEEN.sub("", html)) == markdown


def test_the_archive_is_the_same_for_the_same_records(tmp_path: Path) -> None:
    for name in ("runs/a.json", "sweeps/softmax/b.json", "captures/c/d.json", "local/e.json", "tests/f.json"):
        (tmp_path / "docs/measurements" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "docs/measurements" / name).write_text(f'"{name}"')
    packed = exports.archive(tmp_path)
    (tmp_path / "docs/measurements/runs/a.json").touch()
    assert exports.archive(tmp_path) == packed
    assert zipfile.ZipFile(io.BytesIO(packed)).namelist() == [
        "captures/c/d.json", "runs/a.json", "sweeps/softmax/b.json",
    ]  # fmt: skip


def test_a_picture_has_the_colours_of_the_palette() -> None:
    drawing = (
        '<svg xmlns="http://www.w3.org/2000/svg" width="4" height="4"><rect width="4" height="4" fill="{}"/></svg>'
    )
    assert llms.picture(drawing.format("var(--rp-ours)")) == llms.picture(
        drawing.format(palette.colours("light")["ours"])
    )
    with pytest.raises(KeyError, match="none"):
        llms.picture(drawing.format("var(--rp-none)"))
