"""Facts of compiled kernels in sentences, and words that lead to a line: links into the viewer."""

from html import escape

from docs.publish.compiled import build
from docs.publish.compiled.build import Compiled
from docs.publish.compiled.compilation import TIMED
from docs.publish.compiled.facts import values
from docs.publish.compiled.index import shown
from docs.publish.compiled.subjects import configuration_of
from docs.publish.errors import PublishError, unknown
from docs.publish.evidence import Quantity
from docs.publish.place import kernel_files
from docs.publish.records.captures import Captures


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
