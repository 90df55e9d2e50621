"""Files offered to copy, to download and at a stable address: kernels as they are, snippets with all that they use."""

import re
from html import escape
from pathlib import Path

from docs.publish.errors import unknown
from docs.publish.markdown import markers, scripts
from docs.publish.markdown.elsewhere import lines_of
from docs.publish.place import Place, cuda_files, kernel_files
from snippets.environment import NEWEST, OLDEST
from tests.benchmarks.source import ROOT

LONG = 1000  # lines: their colours would be most of a page's elements, and a phone lays out each
TORCH = "torch " + " to ".join(".".join(map(str, version)) for version in (OLDEST, NEWEST))


def panel(name: str, place: Place, root: Path = ROOT) -> str:
    """The panel of a kernel file, as Markdown.

    Raises:
        PublishError: there is no such file.
    """
    in_triton, in_cuda = kernel_files(root), cuda_files(root)
    if name not in in_triton | in_cuda:
        raise unknown("kernel_file", name, {*in_triton, *in_cuda})
    if name in in_triton:
        needs = {in_triton[name]: f"{TORCH} and the Triton of that torch, and nothing else"}
    else:
        python, source = in_cuda[name]
        beside = f"<code>{source.name}</code> beside it and {TORCH} for CUDA, and nothing else"
        needs = {python: beside, source: f"<code>{python.name}</code>"}
    texts = {file: file.read_text(encoding="utf-8") for file in needs}
    plain = sum(len(text.splitlines()) for text in texts.values()) > LONG
    panels = (
        _panel(f"kernels/{file.name}", text, licence(text), needs[file], place, plain) for file, text in texts.items()
    )
    return "\n".join(panels)


def snippet(path: str, place: Place, root: Path = ROOT) -> str:
    """The panel of a file of snippets/, as Markdown.

    Raises:
        PublishError: there is no such file.
    """
    known = sorted(file.relative_to(root).as_posix() for file in (root / "snippets").rglob("*.py"))
    if path not in known:
        raise unknown("snippet_file", path, known)
    text = scripts.script(path, root, place.site_url)
    needed = set(re.findall(r"^\s*(?:import|from) (torch|triton)\b", text, re.M))
    needs = TORCH if "torch" in needed else "Triton" if needed else "Python's standard library"
    shown = _panel(scripts.served(path), text, "MIT", f"{needs} and nothing else", place)
    return shown.replace("<div ", "<div data-search-exclude ", 1)  # its sections on the page are what is found


def section_lines(name: str, section: str, root: Path = ROOT) -> int:
    """How many lines a section of a kernel's Triton file has.

    Raises:
        PublishError: there is no such file or section.
    """
    files = kernel_files(root)
    if name not in files:
        raise unknown("section_lines", name, files)
    lines = files[name].read_text(encoding="utf-8").splitlines()
    sections = {marker["name"] for line in lines if (marker := markers.MARKER.match(line))}
    if section not in sections:
        raise unknown(f"section_lines of {name}", section, sections)
    return len(lines_of(files[name], section))


def _panel(served: str, text: str, licence: str, needs: str, place: Place, plain: bool = False) -> str:
    file, link, address = Path(served).name, place.to(served), f"{place.site_url}{served}"
    lines = len(text.splitlines())
    language = "text" if plain else {".cu": "cuda"}.get(Path(served).suffix, "python")
    shown = "\n".join(f"    {line}".rstrip() for line in markers.without(text).rstrip("\n").splitlines())
    return f"""<div class="rp-kernel-file" markdown="1">
<p><strong><code>{file}</code></strong>: one file, {lines} lines, {licence} licence. It needs {needs}.</p>
<p><button type="button" class="rp-button" data-copy-url="{link}">Copy the file</button>
<a class="rp-button" href="{link}" download>Download</a>
<button type="button" class="rp-button" data-copy-text="curl -O {escape(address)}">Copy the curl command</button></p>
<p>Permanent address: <a href="{link}"><code>{address}</code></a></p>

??? example "The whole file"

    ```{language}
{shown}
    ```

</div>
"""


def licence(text: str) -> str:
    """The licence that a file's SPDX line names; "no stated" if there is none."""
    found = re.search(r"SPDX-License-Identifier: *(\S+)", text)
    return found[1] if found else "no stated"
