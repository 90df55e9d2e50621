"""`nox -s record`: what pages show of scripts' output, made again on this CPU, with what changed.

    python -m docs.publish.site.record              # all
    python -m docs.publish.site.record NAME ...     # of these pages (compiler/modes) or scripts (compiler/modes_traps)

Each script's file is written when the script has ended, so an interruption loses nothing. A section that says what it
said, with the same versions of torch and Triton, keeps its bytes. At the end stand the commands for a machine with a
GPU.
"""

import argparse
import difflib
import re
import shlex
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence

from docs.publish.errors import PublishError, unknown
from docs.publish.markdown import pages
from docs.publish.records import asked
from docs.publish.records.captures import DEVICES, Captures
from docs.publish.records.store import Store
from tests.benchmarks import captures as printing
from tests.benchmarks.source import ROOT

Wanted = dict[str, dict[str, None]]  # the sections of each script, in the order of pages


def main(arguments: Sequence[str]) -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(prog="nox -s record --", description="Make CPU captures again.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="a page or a script: compiler/modes; default: all")
    parser.add_argument("--commit", default="", help="the commit that runs, where the folder is no git checkout")
    options = parser.parse_args(arguments)
    try:
        known = Captures.load()
        shown = [one for page, text in pages.texts().items() for one in asked.of_page(page, text)]
        scripts = wanted(picked(shown, options.names), shown, known, "cpu")
        failed = again(scripts, options.commit)
        if not options.names:
            forget(scripts)
        print(on_a_gpu(wanted(shown, shown, known, "cuda"), Captures.load(), Store.load(local=False)))
    except PublishError as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\ninterrupted: what was done is kept; `nox -s record` begins again", file=sys.stderr)
        return 130
    return 1 if failed else 0


def picked(shown: Sequence[asked.Asked], names: Sequence[str]) -> list[asked.Asked]:
    """The sections of some pages or scripts, all if none are named.

    Raises:
        PublishError: a name is neither that of a page that shows output, nor of its script.
    """
    known = {name: None for one in shown for name in (one.page.removesuffix(".md"), one.script)}
    for name in names:
        if name not in known and (ROOT / printing.source_of(asked.script_of(name))).is_file():
            expected = f"{name}: expected a page that shows what it prints, found none"
            raise PublishError(f'{expected}: write {{{{ output("NAME") }}}} on its page, then run this again')
        if name not in known:
            raise unknown("page or script", name, known)
    return [one for one in shown if not names or {one.page.removesuffix(".md"), one.script} & set(names)]


def wanted(some: Iterable[asked.Asked], shown: Iterable[asked.Asked], known: Captures, device: str) -> Wanted:
    """What pages want of a device, of each script of which something is picked: all of a script is stored together.

    Where a page leaves the device open, it is the GPU if that has the section, else the CPU.
    """
    scripts: Wanted = {}
    for one in shown:
        file = known.files.get((one.script, "cuda"))
        its = DEVICES[one.on] if one.on else "cuda" if file and one.section in file.contents else "cpu"
        if its == device:
            scripts.setdefault(one.script, {})[one.section] = None
    return {script: scripts[script] for script in dict.fromkeys(one.script for one in some) if script in scripts}


def again(scripts: Wanted, commit: str) -> list[str]:
    """Run the scripts on the CPU, store what they print, show what changed; returns the scripts that failed."""
    failed = []
    for number, (script, sections) in enumerate(scripts.items(), 1):
        print(f"[{number}/{len(scripts)}] {script} ", end="", flush=True)
        began = time.monotonic()
        try:
            old, new = printing.capture(script, "cpu", sections, commit)
        except RuntimeError as error:
            failed.append(script)
            print(f"failed\n{error}", flush=True)
            continue
        told = list(changes(script, old, new))
        print(f"{time.monotonic() - began:.0f} s: {'changed' if told else 'as it was'}", flush=True)
        for line in told:
            print(line, flush=True)
    if failed:
        print(f"{len(failed)} of {len(scripts)} scripts failed: {', '.join(failed)}")
    return failed


def changes(script: str, old: Mapping | None, new: Mapping) -> Iterator[str]:
    """What differs without what differs in every run, section by section; and other versions, once for all sections."""
    before, after = _sections(script, old) if old else {}, _sections(script, new)
    versions: dict[str, None] = {}
    for section in dict.fromkeys([*before, *after]):
        name = f"{script} {section!r}"
        was, now = before.get(section), after.get(section)
        texts = [side[0].splitlines() if side else [] for side in (was, now)]
        yield from difflib.unified_diff(texts[0], texts[1], name, name, lineterm="")
        if was and now and was[1] != now[1]:
            versions[f"{script}: {_listed(was[1])} -> {_listed(now[1])}"] = None
    yield from versions
    if [section for section in before if section in after] != [section for section in after if section in before]:
        yield f"{script}: the sections come in another order"


def _sections(script: str, document: Mapping) -> dict[str, tuple[str, dict[str, str]]]:
    """The text of each section without what differs in every run, and the versions that printed it."""
    more = printing.varies(script)
    found: dict[str, tuple[str, dict[str, str]]] = {}
    for each in document["sections"]:
        text = re.sub(" *# *", " # ", printing.masked(each["content"], more.get(each["section"], "")))
        found[each["section"]] = text, printing.versions(document["runs"][each["run"]]["software"])
    return found


def forget(scripts: Wanted) -> None:
    """Remove what no page shows any more."""
    for script in printing.scripts("cpu"):
        if script not in scripts:
            path = printing.path_of(script, "cpu")
            path.unlink()
            print(f"{script}: no page shows it, so {path.name} is gone")


def on_a_gpu(scripts: Wanted, known: Captures, store: Store) -> str:
    """The commands that a machine with a GPU has to run."""
    pins = printing.pinned()
    outdated = []
    for (script, device), printed in known.files.items():
        every = [known.capture(printed, section) for section in printed.contents] if device == "cuda" else []
        if any(known.is_stale(one) or printing.versions(one.run.software) != pins for one in every):
            outdated.append(script)
    names = [*outdated, *(f"{script}:{section}" for script, section in _missing(scripts, known))]
    rows = [row for row in store.select() if row.record.machine["kind"] == "gpu"]
    cases = sorted({row.case for row in rows if row.stale or printing.versions(row.record.software) != pins})
    commands = [
        f"python -m {module} {shlex.join(arguments)}"
        for module, arguments in (("tests.benchmarks.captures", names), ("tests.benchmarks", cases))
        if arguments
    ]
    if not commands:
        return "nothing is left for a GPU"
    return "\n".join([f"stale, or made with others than {_listed(pins)}; on a machine with a GPU:", *commands])


def _missing(scripts: Wanted, known: Captures) -> Iterator[tuple[str, str]]:
    """The sections that pages want of a GPU and that are not stored."""
    for script, sections in scripts.items():
        file = known.files.get((script, "cuda"))
        yield from ((script, section) for section in sections if not file or section not in file.contents)


def _listed(versions: Mapping[str, str]) -> str:
    return " and ".join(f"{name} {version}" for name, version in versions.items())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
