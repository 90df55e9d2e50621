"""What a kernel's page shows of the compiled code: some facts, what differs from the timed binaries, a button."""

from docs.publish import markup, units
from docs.publish.compiled import build, inductor
from docs.publish.compiled.build import Compiled
from docs.publish.compiled.compilation import TIMED
from docs.publish.compiled.facts import TITLES, values
from docs.publish.compiled.subjects import MADE, TARGETS, Point, graphs_of, names
from docs.publish.compiled.timed import Timed, timed
from docs.publish.errors import unknown
from docs.publish.evidence import Evidence
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
