"""One colour for a variant, everywhere: what docs/theme/palette.json says, for charts and for CSS.

Colours are used through CSS variables (`var(--rp-ours)`), so that one drawing follows light and dark mode. The hook
writes `css()` to the site as stylesheets/palette.css, which docs/theme/main.html links.
"""

import json
from functools import cache
from pathlib import Path
from typing import Any

FILE = Path(__file__).parents[1] / "theme" / "palette.json"
MODES = ("light", "dark")
SCHEMES = {"light": ":root, [data-md-color-scheme=default]", "dark": "[data-md-color-scheme=slate]"}


@cache
def load() -> dict[str, Any]:
    """The palette: variants (id: label, short, light, dark, order), surfaces (name: light, dark) and aliases."""
    return json.loads(FILE.read_text(encoding="utf-8"))


def variants() -> dict[str, dict[str, Any]]:
    """Variants by id, in the order in which tables show them."""
    return dict(sorted(load()["variants"].items(), key=lambda item: item[1]["order"]))


def label(variant: str, short: bool = False) -> str:
    """How prose, tables and charts call a variant; a short one where room is scarce.

    Raises:
        KeyError: the palette does not know it.
    """
    known = load()["variants"]
    if variant not in known:
        raise KeyError(f"no variant {variant!r} in {FILE.name}: expected one of {', '.join(known)}")
    entry = known[variant]
    return entry.get("short", entry["label"]) if short else entry["label"]


def colour(name: str) -> str:
    """The CSS colour of a variant or a surface: "ours" gives "var(--rp-ours)"."""
    known = colours("light")
    if name not in known:
        raise KeyError(f"no colour {name!r} in {FILE.name}: expected one of {', '.join(known)}")
    return f"var(--rp-{name})"


def colours(mode: str) -> dict[str, str]:
    """Every colour by name in "light" or "dark" mode, as #rrggbb."""
    palette = load()
    named = {name: entry[mode] for name, entry in (palette["surfaces"] | palette["variants"]).items()}
    return named | {alias: named[name] for alias, name in palette["aliases"].items()}


def css() -> str:
    """The palette as CSS variables, in both modes. On paper it is always light."""
    rules = {selector: _declarations(mode) for mode, selector in SCHEMES.items()}
    screen = "\n".join(f"{selector} {{ {rule} }}" for selector, rule in rules.items())
    paper = f"@media print {{ {', '.join(SCHEMES.values())} {{ {_declarations('light')} }} }}"
    return f"{screen}\n{paper}\n"


def _declarations(mode: str) -> str:
    return " ".join(f"--rp-{name}: {value};" for name, value in colours(mode).items())
