"""Kernel files, offered to copy, to download and at a stable address: served as they are in kernels/."""

import re
from html import escape
from pathlib import Path

from docs.publish.errors import unknown
from docs.publish.markdown import markers
from docs.publish.place import Place, kernel_files
from snippets.environment import NEWEST, OLDEST
from tests.benchmarks.source import ROOT


def panel(name: str, place: Place, root: Path = ROOT) -> str:
    """The panel of a kernel file, as Markdown.

    Raises:
        PublishError: there is no such file.
    """
    known = kernel_files(root)
    if name not in known:
        raise unknown("kernel_file", name, known)
    text = known[name].read_text(encoding="utf-8")
    file = known[name].name
    link, address = place.to(f"kernels/{file}"), f"{place.site_url}kernels/{file}"
    lines = len(text.splitlines())
    shown = "\n".join(f"    {line}".rstrip() for line in markers.without(text).rstrip("\n").splitlines())
    versions = " to ".join(".".join(map(str, version)) for version in (OLDEST, NEWEST))
    return f"""<div class="rp-kernel-file" markdown="1">
<p><strong><code>{file}</code></strong>: one file, {lines} lines, {licence(text)} licence. It needs torch {versions}
and the Triton of that torch, and nothing else.</p>
<p><button type="button" class="rp-button" data-copy-url="{link}">Copy the file</button>
<a class="rp-button" href="{link}" download>Download</a>
<button type="button" class="rp-button" data-copy-text="curl -O {escape(address)}">Copy the curl command</button></p>
<p>Its address stays: <a href="{link}"><code>{address}</code></a></p>

??? example "The whole file"

    ```python
{shown}
    ```

</div>
"""


def licence(text: str) -> str:
    """The licence that a file's SPDX line names; "no stated" if there is none."""
    found = re.search(r"SPDX-License-Identifier: *(\S+)", text)
    return found[1] if found else "no stated"
