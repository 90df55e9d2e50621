"""A stored capture as a fenced block, with a line that says where it comes from."""

from docs.publish.errors import PublishError
from docs.publish.evidence import Evidence
from docs.publish.place import Place
from docs.publish.records.captures import Captures
from docs.publish.records.schema import Capture


def show(captures: Captures, capture: Capture, place: Place, page: Evidence, lines: str = "", title: str = "") -> str:
    """A capture as Markdown: a fenced block, and a line with its provenance.

    Args:
        lines: "1-20": only these lines; "1-20,30-40": both.

    Raises:
        PublishError: the capture does not have these lines.
    """
    content = picked(capture, lines)
    fence = "`" * max(3, 1 + max((len(line) - len(line.lstrip("`")) for line in content.splitlines()), default=0))
    options = f' title="{title}"' if title else ""
    return f"{fence}{capture.language}{options}\n{content}\n{fence}\n\n{provenance(captures, capture, place, page)}"


def provenance(captures: Captures, capture: Capture, place: Place, page: Evidence) -> str:
    """The line that says where a capture comes from, with a badge if the code has changed since."""
    stale = captures.is_stale(capture)
    if stale:
        page.stale.append(f"capture {capture.name}")
    version = ", ".join(f"{name} {capture.software[name]}" for name in ("torch", "triton") if name in capture.software)
    record = place.source(f"docs/measurements/captures/{capture.name}.json")
    source = place.source(capture.sources.files[0], capture.commit)
    badge = ' <small class="rp-badge">stale</small>' if stale else ""
    return (
        f'<p class="rp-provenance">Printed by <a href="{source}"><code>{capture.command}</code></a> '
        f"on {capture.machine['name']}, "
        f'{version}, {capture.date[:10]} (<a href="{record}">record</a>).{badge}</p>\n'
    )


def picked(capture: Capture, lines: str) -> str:
    """The lines that are asked for, all if none."""
    every = capture.content.rstrip("\n").splitlines()
    if not lines:
        return "\n".join(every)
    chosen: list[str] = []
    for part in lines.split(","):
        first, _, last = part.strip().partition("-")
        try:
            begin, end = int(first), int(last or first)
        except ValueError as error:
            raise PublishError(
                f'capture {capture.name}: lines: expected "1-20" or "1-20,30-40", got {lines!r}'
            ) from error
        if not 1 <= begin <= end <= len(every):
            raise PublishError(
                f"capture {capture.name}: lines: expected between 1 and {len(every)}, got {part.strip()!r}"
            )
        chosen += every[begin - 1 : end]
    return "\n".join(chosen)
