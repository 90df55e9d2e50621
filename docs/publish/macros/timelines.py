"""A captured step of a program as a timeline: bars in lanes, and a line from each launch to its kernel.

The capture is JSON, in microseconds:
{"lanes": [{"name", "bars": [[start, length, name, kind], ...]}, ...], "arrows": [[from, to], ...]}.
The last lane is where the arrows end, the lane before it where they begin.
"""

import json
import math
import re
from html import escape

from docs.publish.errors import PublishError
from docs.publish.records.captures import Capture

WIDTH, LEFT, LANE, BAR, CHARACTER = 640, 4, 46, 22, 6.6  # a bar's text is drawn where its characters fit
KINDS = {  # of a bar: its colour, and what it is
    "host": ("var(--rp-eager)", "host"),
    "compiled": ("var(--rp-compile)", "of the compiler"),
    "launch": ("var(--rp-ink-soft)", "a launch"),
    "wait": ("var(--rp-warn)", "the host waits"),
    "kernel": ("var(--rp-ours)", "a kernel"),
}


def figure(capture: Capture, title: str) -> str:
    """The timeline as a figure, with a line that says where it comes from (which the caller appends).

    Raises:
        PublishError: the capture is no timeline.
    """
    try:
        drawn = json.loads(capture.content)
        lanes, arrows = drawn["lanes"], drawn["arrows"]
        ends = [start + length for lane in lanes for start, length, _, _ in lane["bars"]]
        kinds = {kind for lane in lanes for *_, kind in lane["bars"]}
        end = max(ends)
    except (ValueError, KeyError, TypeError) as error:
        raise PublishError(
            f"output of {capture.name}: expected a timeline, as snippets/validation/profiling_timeline.py"
        ) from error
    if unknown := kinds - KINDS.keys():
        raise PublishError(f"output of {capture.name}: no colour for {', '.join(sorted(unknown))}")
    scale = (WIDTH - 2 * LEFT) / end
    height = LANE * len(lanes) + 62
    key = re.sub(r"\W+", "-", f"{capture.script}-{capture.section}")
    parts = [
        f'<svg viewBox="0 0 {WIDTH} {height}" style="max-width: 40rem; min-width: 27.2rem" role="img" '
        f'aria-labelledby="{key}-title {key}-text">',
        f'<title id="{key}-title">{escape(title)}</title>',
        f'<desc id="{key}-text">{escape(described(lanes, end))}</desc>',
    ]
    for number, lane in enumerate(lanes):
        parts += lane_of(lane, LANE * number, scale)
    parts += arrows_of(arrows, len(lanes), scale)
    parts += axis(end, LANE * len(lanes) + 4, scale)
    parts += legend([kind for kind in KINDS if kind in kinds], height - 8)
    return "\n".join([*parts, "</svg>"])


def lane_of(lane: dict, top: float, scale: float) -> list[str]:
    """The name above, the bars below; a bar's whole name and length on hover."""
    parts = [
        f'<text class="rp-label rp-label--soft" x="{LEFT}" y="{top + 15}" font-size="13">{escape(lane["name"])}</text>',
        f'<rect x="{LEFT}" y="{top + 20}" width="{WIDTH - 2 * LEFT}" height="{BAR}" fill="var(--rp-raised)"/>',
    ]
    for start, length, name, kind in lane["bars"]:
        x, width, (colour, _) = LEFT + start * scale, max(length * scale, 0.7), KINDS[kind]
        parts.append(
            f'<rect x="{x:.1f}" y="{top + 22}" width="{width:.1f}" height="{BAR - 4}" fill="{colour}" '
            f'fill-opacity="0.3" stroke="{colour}" stroke-width="0.7">'
            f"<title>{escape(name)}, {length:g} us</title></rect>"
        )
        fits = int((width - 6) / CHARACTER)
        if fits >= min(len(name), 5):
            text = name if len(name) <= fits else name[: fits - 1] + "…"
            parts.append(
                f'<text class="rp-label" x="{x + 3:.1f}" y="{top + 35.5}" font-size="12">{escape(text)}</text>'
            )
    return parts


def arrows_of(arrows: list, lanes: int, scale: float) -> list[str]:
    """From the launches, in the last lane but one, to the kernels in the last."""
    top, bottom = LANE * (lanes - 2) + 20 + BAR, LANE * (lanes - 1) + 22
    lines = "".join(f"M{LEFT + a * scale:.1f} {top}L{LEFT + b * scale:.1f} {bottom}" for a, b in arrows)
    return [f'<path d="{lines}" stroke="var(--rp-ink-soft)" stroke-width="0.7" fill="none"/>'] if arrows else []


def axis(end: float, top: float, scale: float) -> list[str]:
    """Ticks at round numbers, four to eight of them, in microseconds or, of long steps, in milliseconds."""
    unit, factor = ("ms", 1000.0) if end > 2000 else ("us", 1.0)
    step = next(s for s in (m * 10**e for e in range(-2, 7) for m in (1, 2, 5)) if end / factor / s <= 8)
    parts = []
    last = math.floor(end / factor / step)
    for number in range(last + 1):
        x = LEFT + number * step * factor * scale
        anchor = "start" if number == 0 else "middle" if x < WIDTH - 40 else "end"
        label = f"{number * step:g} {unit}" if number in (0, last) else f"{number * step:g}"
        parts.append(f'<path d="M{x:.1f} {top}v5" stroke="var(--rp-ink-soft)"/>')
        parts.append(
            f'<text class="rp-label rp-label--soft" x="{x:.1f}" y="{top + 18}" font-size="12" '
            f'text-anchor="{anchor}">{label}</text>'
        )
    return parts


def legend(kinds: list[str], baseline: float) -> list[str]:
    """What the colours are: kinds differ in their lanes, too, so that nothing hangs on colour alone."""
    parts, x = [], float(LEFT)
    for colour, meaning in map(KINDS.__getitem__, kinds):
        parts += [
            f'<rect x="{x:.0f}" y="{baseline - 10}" width="12" height="12" fill="{colour}" fill-opacity="0.3" '
            f'stroke="{colour}"/>',
            f'<text class="rp-label rp-label--soft" x="{x + 18:.0f}" y="{baseline}" font-size="12">{meaning}</text>',
        ]
        x += 18 + CHARACTER * len(meaning) + 16
    return parts


def described(lanes: list, end: float) -> str:
    """The drawing in words: the lanes, how many bars each has, and for how much of the time."""
    parts = []
    for lane in lanes:
        length = sum(length for _, length, _, _ in lane["bars"])
        parts.append(f"{lane['name']}: {len(lane['bars'])} bars, {length:.0f} microseconds together")
    return f"{end:.0f} microseconds. " + "; ".join(parts) + "."
