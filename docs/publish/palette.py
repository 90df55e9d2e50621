"""What a variant is called, and one colour for its role everywhere, for charts and for CSS.

docs/theme/palette.json has the roles (colour and order) and the variants that many cases share. A case declares its
own variants, and so where they stand among those of the same role:

    LABELS = {"better": {"label": "better design", "short": "better", "role": "rewrite"}}

Colours are used through CSS variables (`var(--rp-ours)`), so that one drawing follows light and dark mode. The hook
writes `css()` to the site as stylesheets/palette.css, which docs/theme/main.html links.

A case may call a variant as another case does not, since what "torch.compile" compiled differs from case to case. The
role stays the same:

    LABELS = {"compile": {"label": "better design, compiled", "role": "compile"}}
"""

import json
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from docs.publish.errors import PublishError
from tests.benchmarks import source
from tests.benchmarks.runner import discover

FILE = Path(__file__).parents[1] / "theme" / "palette.json"
MODES = ("light", "dark")
SCHEMES = {"light": ":root, [data-md-color-scheme=default]", "dark": "[data-md-color-scheme=slate]"}


@cache
def load() -> dict[str, Any]:
    """The palette: roles (id: light, dark, order), shared variants (id: label, short, role), surfaces (light, dark)."""
    return json.loads(FILE.read_text(encoding="utf-8"))


@cache
def declared() -> dict[str, dict[str, dict[str, str]]]:
    """The variants of each case by its name: those that many share, then its own.

    Raises:
        PublishError: a declaration is no label with a known role, or another case gives the same variant another
            role, which is its colour.
    """
    shared, cases = load()["variants"], {}
    seen = {variant: (entry, FILE.name) for variant, entry in shared.items()}
    for case, path in discover().items():
        try:
            own = source.labels(path)
        except ValueError as error:
            raise PublishError(str(error)) from error
        for variant, entry in own.items():
            if (
                not {"label", "role"} <= entry.keys() <= {"label", "short", "role"}
                or entry["role"] not in load()["roles"]
            ):
                roles = ", ".join(load()["roles"])
                raise PublishError(f"{case}: {variant}: expected a label, maybe a short one, and a role of {roles}")
            other, where = seen.setdefault(variant, (entry, case))
            if other["role"] != entry["role"]:
                said = f"expected the role {other['role']}, as {where} declares it, got {entry['role']}"
                raise PublishError(f"{case}: {variant}: {said}")
        cases[case] = shared | own
    return cases


def check(case: str, variants: Iterable[str]) -> None:
    """Refuse a variant that neither its case nor the palette declares.

    Raises:
        PublishError: with the case and the variant.
    """
    known = declared().get(case, load()["variants"])
    for variant in variants:
        if variant not in known:
            raise PublishError(f"{case}: no label for the variant {variant!r}: declare it in the case's LABELS")


@cache
def variants() -> dict[str, dict[str, str]]:
    """All variants by id, in the order in which tables show them: by role, then as they are declared."""
    roles = load()["roles"]
    every = {variant: entry for known in declared().values() for variant, entry in known.items()} | load()["variants"]
    return dict(sorted(every.items(), key=lambda item: roles[item[1]["role"]]["order"]))


def label(variant: str, short: bool = False, case: str = "") -> str:
    """How prose, tables and charts call a variant, in a case if one is given; a short one where room is scarce.

    Raises:
        KeyError: no case declares it.
    """
    known = variants()
    if variant not in known:
        raise KeyError(f"no variant {variant!r} in {FILE.name} or a case's LABELS: expected one of {', '.join(known)}")
    entry = declared().get(case, known).get(variant, known[variant])
    return entry.get("short", entry["label"]) if short else entry["label"]


def colour(name: str) -> str:
    """The CSS colour of a variant's role, of a role or of a surface: "liger" gives "var(--rp-peer-1)"."""
    known = colours("light")
    role = name if name in known or name not in variants() else variants()[name]["role"]
    if role not in known:
        raise KeyError(f"no colour {name!r} in {FILE.name}: expected one of {', '.join(known)}")
    return f"var(--rp-{role})"


def colours(mode: str) -> dict[str, str]:
    """Every colour of a role or surface by name in "light" or "dark" mode, as #rrggbb."""
    palette = load()
    return {name: entry[mode] for name, entry in (palette["surfaces"] | palette["roles"]).items()}


def css() -> str:
    """The palette as CSS variables, in both modes. On paper it is always light."""
    rules = {selector: _declarations(mode) for mode, selector in SCHEMES.items()}
    screen = "\n".join(f"{selector} {{ {rule} }}" for selector, rule in rules.items())
    paper = f"@media print {{ {', '.join(SCHEMES.values())} {{ {_declarations('light')} }} }}"
    return f"{screen}\n{paper}\n"


def _declarations(mode: str) -> str:
    return " ".join(f"--rp-{name}: {value};" for name, value in colours(mode).items())
