"""Make the site's fonts from their sources: pinned, subset, renamed (the licence reserves the name "Source").

npm install source-serif@4.5.1 @fontsource/iosevka@5.3.0
pip install fonttools brotli
python docs/theme/fonts/make.py node_modules
"""

import sys
from pathlib import Path

from fontTools.subset import Options, Subsetter, parse_unicodes
from fontTools.ttLib import TTFont
from fontTools.varLib.instancer import instantiateVariableFont

HERE = Path(__file__).parent
SERIF = "source-serif/VAR/SourceSerif4Variable-{}.ttf"
MONO = "@fontsource/iosevka/files/iosevka-latin-{}-normal.woff2"
LATIN = (
    "20-7E,A0-FF,391-3A9,3B1-3C9,2010-2015,2018-201D,2022,2026,2070-2079,207B,2080-2089,"
    "2190-2193,2202,2211-2212,221A,221E,2248,2260,2264-2265"
)
TEXT = LATIN + ",131,152-153,2020-2021,2030,2032-2033,20AC,2122,2206,220F"
CODE = LATIN + ",2194-2195,21D2,2208,2500-257F,2580-2593,25A0-25A1,25B2,25B6,25BC,25CF,2713,2717"
DISPLAY = "20-7E,A0,D7,2013-2014,2018-201D,2026"
FIGURES = ["kern", "liga", "ccmp", "mark", "lnum", "tnum", "pnum"]

# name: (family, source, axes pinned or limited, characters, features)
FONTS = {
    "ridgepoint-serif": ("Ridgepoint Serif", SERIF.format("Roman"), {"wght": (400, 700), "opsz": 15}, TEXT,
                         [*FIGURES, "onum", "sups", "subs", "smcp"]),
    "ridgepoint-serif-italic": ("Ridgepoint Serif", SERIF.format("Italic"), {"wght": 400, "opsz": 15}, TEXT, FIGURES),
    "ridgepoint-display": ("Ridgepoint Display", SERIF.format("Roman"), {"wght": 480, "opsz": 44}, DISPLAY, FIGURES),
    "ridgepoint-mono-400": ("Ridgepoint Mono", MONO.format(400), {}, CODE, ["ccmp", "mark"]),
    "ridgepoint-mono-600": ("Ridgepoint Mono", MONO.format(600), {}, CODE, ["ccmp", "mark"]),
}  # fmt: skip


def make(name: str, sources: Path) -> Path:
    """Write one font as WOFF2 beside this file."""
    family, source, axes, characters, features = FONTS[name]
    font = TTFont(sources / source)
    if axes:
        font = instantiateVariableFont(font, axes)
    options = Options(layout_features=features, name_IDs=[0, 1, 2, 4, 6, 13, 14])
    subsetter = Subsetter(options)
    subsetter.populate(unicodes=parse_unicodes(characters))
    subsetter.subset(font)
    for record in font["name"].names:
        if record.nameID in (1, 4):
            record.string = family
        elif record.nameID == 6:
            record.string = family.replace(" ", "") + "-" + name.rpartition("-")[2]
    font.flavor = "woff2"
    target = HERE / f"{name}.woff2"
    font.save(target)
    return target


if __name__ == "__main__":
    for each in FONTS:
        made = make(each, Path(sys.argv[1]))
        print(f"{made.name}: {made.stat().st_size // 1024} KB")
