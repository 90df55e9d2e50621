"""Vega-Lite as static SVG, kept by what it was drawn from; and the script that draws it again in a browser."""

import hashlib
import json
import re

import vl_convert

from docs.publish import kept
from docs.publish.macros.charts.vega import VERSION, Spec
from tests.benchmarks.source import ROOT

CACHE = ROOT / ".cache" / "charts"


def svg(spec: Spec) -> str:
    """The drawing, on one line; from the cache where this very specification was drawn before."""
    text = json.dumps(spec, sort_keys=True)
    key = hashlib.sha256(f"{vl_convert.__version__}{text}".encode()).hexdigest()[:20]
    drawn = kept.file(CACHE / f"{key}.svg", lambda: vl_convert.vegalite_to_svg(text, vl_version=VERSION))
    drawn = drawn[drawn.index("<svg") :].replace("<svg", '<svg aria-hidden="true"', 1).replace("\n", " ")
    drawn = re.sub(r' (role|aria-roledescription)="[^"]*"', "", drawn)  # the plot around it is the named image
    return re.sub(r'(\bid="|url\(#)', rf"\g<1>c{key[:8]}-", drawn)


def bundle() -> str:
    """Vega, Vega-Lite and vega-embed as one script that sets window.vegaEmbed: the site's assets/vega.js."""
    name = f"vega-{vl_convert.__version__}-{VERSION}.js"
    return kept.file(CACHE / name, lambda: vl_convert.javascript_bundle(vl_version=VERSION))
