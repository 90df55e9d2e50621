"""What a kernel's page shows of the compiled code: some facts, what differs from the timed binaries, a button;
and, in the sentences of pages, facts and words that link to a line in the viewer.
"""

from html import escape

from docs.publish import markup, units
from docs.publish.compiled import build, inductor
from docs.publish.compiled.build import Compiled
from docs.publish.compiled.compilation import TIMED
from docs.publish.compiled.explorer import shown
from docs.publish.compiled.facts import TITLES, Timed, timed, values
from docs.publish.compiled.subjects import MADE, TARGETS, Point, configuration_of, graphs_of, names
from docs.publish.errors import PublishError, unknown
from docs.publish.evidence import Evidence, Quantity
from docs.publish.markup import code, table
from docs.publish.place import kernel_files
from docs.publish.records.captures import Captures
from docs.publish.records.measured import DIRECTIONS
from docs.publish.records.store import Store

HEADLINE = ("registers", "spilled", "loads", "stores")


def panel(store: Store, captures: Captures, page: Evidence, name: str) -> str:
    """The panel as HTML.

    Raises:
        PublishError: there is no explorer of that name.
    """
    if name not in names():
        raise unknown("explorer", name, dict.fromkeys(names()))
    inductor.mark(graphs_of(captures, name), page)
    gpus = "A100, H100, B200 and MI300X"
    if name in kernel_files():
        ours = f"{_headline(name)}{_differences(store, name)}"
        made = f"Compiled for {gpus} by {MADE} when this site was built, without a GPU."
    else:
        ours = ""
        made = (
            f"Triton that torch.compile wrote on a GPU, compiled again for {gpus} by {MADE}. "
            "C++ that it wrote for the CPU which built this site."
        )
    return (
        f'<div class="rp-explorer" data-search-exclude>{ours}<p>{made}</p>'
        f'<p><a class="rp-button" href="{page.place.to(f"compiled/{name}/")}" '
        f'data-explorer="{page.place.to(f"compiled/{name}/index.json")}">'
        "Open the compiled code</a></p></div>\n"
    )


def _headline(name: str) -> str:
    """The facts of the first listed point's kernels as a small table."""
    timed_gpu = ((point, by_target[TIMED]) for point, by_target in build.results(name).items())
    point, kernels = next((point, kernels) for point, kernels in timed_gpu if any(k.listings for k in kernels))
    rows = [
        ("", [code(kernel.function), *(markup.unbroken(values(kernel)[key]) for key in HEADLINE)])
        for kernel in kernels
        if kernel.listings
    ]
    gpus = TARGETS[TIMED].replace(", ", " and ")
    shape = markup.unbroken(units.size(point[1]))
    what = f"<p>{DIRECTIONS[point[0]].capitalize()} of {shape}, {point[2]}, for {gpus}:</p>"
    return what + table(("", *(TITLES.get(key, key) for key in HEADLINE)), rows)


def _differences(store: Store, name: str) -> str:
    """Where a binary that was timed has other resources than what was compiled for the site."""
    pairs = [
        (point, kernel, measured)
        for point, by_target in build.results(name).items()
        for kernel in by_target[TIMED]
        if (measured := timed(store, name, point, kernel.function))
    ]
    if not pairs:
        return ""
    other = [pair for pair in pairs if pair[2].differs(pair[1])]
    if not other:
        return f"<p>All {len(pairs)} binaries that were timed have as many registers as those compiled here.</p>"
    lines = dict.fromkeys(_difference(*pair) for pair in other)
    few = f"Of the {len(pairs)} binaries that were timed, {len(other)} differ in resources from those compiled here"
    return f"<details><summary>{few}</summary><ul>{''.join(lines)}</ul></details>"


def _difference(point: Point, kernel: Compiled, measured: Timed) -> str:
    then, now = measured.binary.registers, kernel.facts["registers"]
    registers = f"{then} registers, {now} here" if then != now else "other shared memory"
    how = f"{registers}; timed with Triton {measured.row.record.software['triton']}"
    return f"<li>{code(kernel.function)} at {markup.unbroken(units.size(point[1]))} ({how})</li>"


def reference(
    captures: Captures, name: str, at: str, function: str, fact: str = "", line: str = "", text: str = ""
) -> str:
    """A link into the viewer, as HTML: a fact of a kernel, or words that lead to the line which has `line` in it.

    Args:
        name: of the kernel file.
        at: a configuration of the viewer: "forward-32768x4096".
        fact: the key of one of facts.FACTS, whose value is shown.

    Raises:
        PublishError: there is no such configuration, kernel, fact or line.
    """
    kernel = _kernel(captures, name, at, function)
    facts = values(kernel)
    if fact and fact not in facts:
        raise unknown("fact", fact, facts)
    place = f"#compiled/{at}/{function}/{TIMED}"
    if line:
        place += f"/python/{list(kernel.listings)[-1]}/L{_line_with(line, name)}"
    words = facts[fact] if fact else text
    return f'<a href="{place}">{escape(words)}</a>'


def counted(captures: Captures, name: str, at: str, function: str, fact: str) -> Quantity:
    """A count of a compiled kernel, such as its instructions, as a quantity.

    Raises:
        PublishError: there is no such configuration, kernel or count.
    """
    kernel = _kernel(captures, name, at, function)
    if not isinstance(kernel.facts.get(fact), int):
        raise unknown("counted fact", fact, (key for key, value in kernel.facts.items() if isinstance(value, int)))
    href = f"#compiled/{at}/{function}/{TIMED}"
    entry = {"label": f"{fact} of {function}, {at}, compiled for {TIMED}", "value": str(kernel.facts[fact])}
    return Quantity(kernel.facts[fact], "", entry, href)


def _kernel(captures: Captures, name: str, at: str, function: str) -> Compiled:
    results = build.results(name)
    points = {configuration_of(point): results[point] for point in shown(captures, name) if point in results}
    if at not in points:
        raise unknown("configuration", at, points)
    kernels = {kernel.function: kernel for kernel in points[at].get(TIMED, [])}
    if function not in kernels:
        raise unknown(f"kernel of {at} for {TIMED}", function, kernels)
    return kernels[function]


def _line_with(fragment: str, name: str) -> int:
    lines = kernel_files()[name].read_text(encoding="utf-8").splitlines()
    found = [number for number, line in enumerate(lines, 1) if fragment in line]
    if len(found) != 1:
        raise PublishError(f"line: expected one line of kernels/{name}.py with {fragment!r}, got {len(found)}")
    return found[0]
