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
from docs.publish.records.schema import Record, Run
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
        told, others = list(changes(script, old, new)), other_versions(script, old, new)
        how = f"{'changed' if told else 'as it was'}{', with other versions' if others else ''}"
        print(f"{time.monotonic() - began:.0f} s: {how}", flush=True)
        for line in [*told, *others]:
            print(line, flush=True)
    if failed:
        print(f"{len(failed)} of {len(scripts)} scripts failed: {', '.join(failed)}")
    return failed


def changes(script: str, old: Mapping | None, new: Mapping) -> Iterator[str]:
    """What differs without what differs in every run, section by section."""
    before, after = _sections(script, old), _sections(script, new)
    for section in dict.fromkeys([*before, *after]):
        name = f"{script} {section!r}"
        was, now = (side[section][0].splitlines() if section in side else [] for side in (before, after))
        yield from difflib.unified_diff(was, now, name, name, lineterm="")
    if [section for section in before if section in after] != [section for section in after if section in before]:
        yield f"{script}: the sections come in another order"


def other_versions(script: str, old: Mapping | None, new: Mapping) -> list[str]:
    """The versions that printed a section and those that print it now, where they differ, once for all sections."""
    before, after = _sections(script, old), _sections(script, new)
    both = [(before[section][1], after[section][1]) for section in before if section in after]
    return list(dict.fromkeys(f"{script}: {_listed(was)} -> {_listed(now)}" for was, now in both if was != now))


def _sections(script: str, document: Mapping | None) -> dict[str, tuple[str, dict[str, str]]]:
    """The text of each section without what differs in every run, and the versions that printed it."""
    if document is None:
        return {}
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
    """The commands that a machine with a GPU has to run, and why: other code, or the same code with other versions."""
    pins = printing.pinned()
    printed = [
        (script, known.is_stale(one), one.run)
        for (script, device), file in known.files.items()
        for one in (known.capture(file, section) for section in file.contents)
        if device == "cuda"
    ]
    rows = [(row.case, row.stale, row.record) for row in store.select() if row.record.machine["kind"] == "gpu"]
    captures, cases = _outdated(printed, pins), _outdated(rows, pins)
    missing = [f"{script}:{section}" for script, section in _missing(scripts, known)]
    lines = [
        *_commands(
            "the code or the timing method has changed since, or nothing is stored", [*captures[0], *missing], cases[0]
        ),
        *_commands(f"the code is the same, the versions are others than {_listed(pins)}", captures[1], cases[1]),
    ]
    return "\n".join(lines) or "nothing is left for a GPU"


def _outdated(
    made: Iterable[tuple[str, bool | str, Run | Record]], pins: Mapping[str, str]
) -> tuple[list[str], list[str]]:
    """The names of what other code made; and of what the code made as it is, with other versions than the pins."""
    known = list(made)
    stale = {name for name, is_stale, _ in known if is_stale}
    others = {name for name, _, run in known if printing.versions(run.software) != pins}
    return sorted(stale), sorted(others - stale)


def _commands(why: str, scripts: list[str], cases: list[str]) -> list[str]:
    """The lines that say why and how to print and measure these again; none of nothing."""
    asked = (("tests.benchmarks.captures", scripts), ("tests.benchmarks", cases))
    commands = [f"python -m {module} {shlex.join(names)}" for module, names in asked if names]
    return [f"{why}; on a machine with a GPU:", *commands] if commands else []


def _missing(scripts: Wanted, known: Captures) -> Iterator[tuple[str, str]]:
    """The sections that pages want of a GPU and that are not stored."""
    for script, sections in scripts.items():
        file = known.files.get((script, "cuda"))
        yield from ((script, section) for section in sections if not file or section not in file.contents)


def _listed(versions: Mapping[str, str]) -> str:
    return " and ".join(f"{name} {version}" for name, version in versions.items())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
