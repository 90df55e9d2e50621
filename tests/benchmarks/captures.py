"""What scripts print, for pages to show: `python -m tests.benchmarks.captures SCRIPT ...`. See `--help`.

A script has the name of its file below snippets: "compiler/modes" is snippets/compiler/modes.py. It prints sections,
each below a line "==== SECTION"; a script without such lines prints one section, whose name is empty. All that is
stored of a script on a device is one file, docs/measurements/captures/compiler/modes.cuda.json: the sections in the
order of printing, each with the run that printed it. Pages decide which sections are stored: `nox -s record` stores
those of a CPU, and prints the commands for a machine with a GPU.
"""

import argparse
import ast
import json
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path

import torch

from tests.benchmarks import machine
from tests.benchmarks.functions import Code
from tests.benchmarks.reached import reached
from tests.benchmarks.source import ROOT
from tests.benchmarks.whole import write_whole

SCHEMA = 2
PUBLISHED = ROOT / "docs" / "measurements" / "captures"
SECONDS = 1800  # for one script, on a slow machine that is busy
WIDTH = 112  # columns that a page shows without scrolling sideways
ENVIRONMENT = {  # code is generated anew, not found in a cache
    "cpu": {  # the same text on every machine, however many cores and whatever vector instructions it has
        "ATEN_CPU_CAPABILITY": "default",  # none: what is asked for and not there ends the process
        "CUDA_VISIBLE_DEVICES": "",
        "ONEDNN_MAX_CPU_ISA": "AVX2",  # with AMX, attention in bf16 wants the vectors that are turned off
        "OMP_NUM_THREADS": "2",  # by which Inductor judges which loops to share out
        "OMP_WAIT_POLICY": "passive",  # beside other work, threads that spin double a script's time
        "TORCHINDUCTOR_AUTOGRAD_CACHE": "0",
        "TORCHINDUCTOR_CPP_DYNAMIC_THREADS": "1",  # else it writes the number, unless that is the number of cores
        "TORCHINDUCTOR_FX_GRAPH_CACHE": "0",
        "TORCHINDUCTOR_VEC_ISA_OK": "0",  # vectors are turned off: which of them work need not be tried
        "TRITON_INTERPRET": "1",
    },
    "cuda": {"TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1"},
}
DECIDES = re.compile(r"(?!.*_CACHE_DIR$)(ATEN|MKL|OMP|ONEDNN|PYTORCH|TORCH|TRITON)")  # variables: never inherited
VARYING = "|".join(  # what may differ from run to run in every section
    (
        r"\d[\d.,]*(e[+-]?\d+)? ?(ns|us|µs|ms|s|x|%|KB|[GT]B/s|[GT]FLOP/s)(?![\w/])",  # measured; KB are of files
        r"(?<=\.py):\d+(:\d+)?|(?<=\.cpp):\d+|\bline \d+",  # places in sources move with every comment
        r"\b0x[0-9a-f]+\b",  # addresses
        r"(?<=\d)\+(cpu|cu\d+)\b",  # the build of torch
    )
)
HEADING = re.compile(r"^==== (.+)\n", re.MULTILINE)

Run = Callable[[str, str], subprocess.CompletedProcess[str]]  # runs `python -m module` for a device


# ---- names ----------------------------------------------------------------------------------------------------------


def source_of(script: str) -> str:
    """The file of a script, as a path from the root; one of tests/ has its whole path as its name."""
    folders = script.split("/")
    return "/".join([*([] if folders[0] == "tests" else ["snippets"]), *folders]) + ".py"


def module_of(script: str) -> str:
    """The script as `python -m` takes it."""
    return source_of(script).removesuffix(".py").replace("/", ".")


def path_of(script: str, device: str, folder: Path = PUBLISHED) -> Path:
    """Where what a script printed on a device ("cpu" or "cuda") is stored."""
    return folder / f"{script}.{device}.json"


def scripts(device: str, folder: Path = PUBLISHED) -> list[str]:
    """The scripts of which something is stored for a device."""
    ending = f".{device}.json"
    return sorted(path.relative_to(folder).as_posix().removesuffix(ending) for path in folder.rglob(f"*{ending}"))


def stored(script: str, device: str, folder: Path = PUBLISHED) -> dict | None:
    """What is stored of a script; None where nothing is."""
    path = path_of(script, device, folder)
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def contents(script: str, device: str) -> dict[str, str]:
    """The stored sections of a script, by name."""
    return {
        section["section"]: section["content"] for section in (stored(script, device) or {"sections": ()})["sections"]
    }


# ---- running --------------------------------------------------------------------------------------------------------


def environment(device: str) -> dict[str, str]:
    """The variables under which a script runs on a device, whatever this process was started under."""
    inherited = {name: value for name, value in os.environ.items() if not DECIDES.match(name)}
    return inherited | ENVIRONMENT[device] | {"PYTHONUTF8": "1"}


def finished(module: str, device: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """`python -m module`, run under the fixed settings of the device."""
    return subprocess.run(
        [sys.executable, "-m", module, *arguments],
        cwd=ROOT,
        env=environment(device),
        capture_output=True,
        encoding="utf-8",
        timeout=SECONDS,
    )


def printed(script: str, device: str, run: Run = finished) -> dict[str, str]:
    """The sections that a script prints now, tidied, in the order of printing.

    Raises:
        RuntimeError: the script failed, with the last line of its error; or it printed a section twice.
    """
    module = module_of(script)
    done = run(module, device)
    if done.returncode:
        raise RuntimeError(f"python -m {module}: {(done.stderr.strip().splitlines() or ['no message'])[-1]}")
    return {section: tidy(text) for section, text in sections(done.stdout, f"python -m {module}").items()}


def sections(text: str, what: str = "a script") -> dict[str, str]:
    """The text below each line "==== SECTION", by section; without such lines, all of it under an empty name.

    Raises:
        RuntimeError: a section comes twice.
    """
    before, *parts = HEADING.split(text)
    names = parts[::2]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise RuntimeError(f"{what}: expected each section once, got {', '.join(map(repr, twice))} again")
    return dict(zip(names, parts[1::2], strict=True)) if names else {"": before}


def chosen(script: str, every: Mapping[str, str], wanted: Collection[str]) -> dict[str, str]:
    """The wanted sections of those that a script printed.

    Raises:
        RuntimeError: one of them was not printed.
    """
    if missing := [section for section in wanted if section not in every]:
        raise RuntimeError(f"{script}: expected a section {missing[0]!r}, got {sorted(every)}")
    return {section: content for section, content in every.items() if section in wanted}


def without_paths(text: str) -> str:
    """Without where this machine keeps Python, its packages and this checkout."""
    text = re.sub(r"/\S*/(site|dist)-packages/", "", text)  # first: an environment may lie below the root
    return text.replace(sys.executable, "python").replace(f"{ROOT}/", "")


def tidy(text: str) -> str:
    """Without what belongs to one machine: paths, addresses, hashes; C++ without casts, which are half of each line."""
    text = re.sub(r"/tmp/\S*/", "/tmp/", without_paths(text))
    text = re.sub(r"\b0x[0-9a-f]{6,}\b", "0x…", text)
    text = re.sub(r"\b[0-9a-f]{32,}\b", "…", text)
    if "static_cast<int64_t>(" in text:
        text = re.sub(r"static_cast<int64_t>\(([^()]*)\)", r"\1", text)
        text = re.sub(r"^( +)", lambda spaces: spaces[0][::2], text, flags=re.MULTILINE)
    return "\n".join(line.rstrip() for line in text.strip("\n").splitlines()) + "\n"


def fitted(text: str) -> list[str]:
    """The lines of a text, broken at spaces where they are wider than `WIDTH`."""
    return [part for line in text.splitlines() for part in (fit(line) if len(line) > WIDTH else [line])]


def fit(line: str) -> list[str]:
    """A line broken at spaces."""
    if " " not in line.strip():
        return [line]
    further = f"{line[: len(line) - len(line.lstrip())]}    "
    return textwrap.wrap(line, WIDTH, subsequent_indent=further, break_long_words=False, break_on_hyphens=False)


# ---- comparing ------------------------------------------------------------------------------------------------------


def varies(script: str) -> dict[str, str]:
    """What else differs from run to run, by section: VARIES of the script's test file, as regular expressions.

    It is read without running the file, which may import what this machine lacks.
    """
    folder, _, name = source_of(script).rpartition("/")
    path = ROOT.joinpath("tests", folder, f"test_{name}")
    tree = ast.parse(path.read_text(encoding="utf-8")) if path.exists() else ast.Module([], [])
    found = [
        node.value for node in tree.body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "VARIES"
    ]
    return ast.literal_eval(found[0]) if found else {}


def masked(text: str, more: str = "") -> str:
    """A section, as wide as a page shows it, with "#" for what may differ from run to run."""
    return re.sub(f"{more}|{VARYING}" if more else VARYING, "#", "\n".join(fitted(text)))


def comparable(text: str, more: str = "") -> str:
    """What must be equal in every run. Line breaks beside what differs move with its length, so they do not count."""
    return re.sub(r"\s*#\s*", " # ", masked(text, more))


def versions(software: Mapping[str, str]) -> dict[str, str]:
    """What generated code depends on: the versions of torch and Triton, without the build."""
    return {name: software[name].partition("+")[0] for name in ("torch", "triton") if name in software}


def pinned(root: Path = ROOT) -> dict[str, str]:
    """The versions that constraints.txt pins; of a project without that file none."""
    file = root / "constraints.txt"
    text = file.read_text(encoding="utf-8") if file.is_file() else ""
    return versions(dict(re.findall(r"^([\w-]+)==([^\s;]+)", text, re.MULTILINE)))


# ---- storing --------------------------------------------------------------------------------------------------------


def source_hash(script: str) -> str:
    """Hash of the functions that a script reaches."""
    return Code.of(ROOT).printed(source_of(script)).hash


def files_of(script: str) -> list[str]:
    """The files that a script reaches, as paths from the root."""
    return sorted(path.relative_to(ROOT).as_posix() for path in reached(ROOT, [ROOT / source_of(script)]))


def this_run(script: str, device: str, commit: str) -> dict:
    """What is known of a run on this machine."""
    return {
        "commit": commit,
        "date": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
        "command": f"python -m {module_of(script)}",
        "environment": ENVIRONMENT[device],
        "machine": machine.describe(torch.device(device)),
        "software": machine.software(),
    } | ({"sources": source_hash(script)} if device == "cuda" else {})


def document(script: str, device: str, fresh: Mapping[str, str], run: dict, old: dict | None) -> dict:
    """What to store of a script: all sections as they are now.

    On a CPU, a section that says what it said, of the same versions, stays as it is with its run.
    """
    kept: dict[str, tuple[str, dict]] = {}
    more = varies(script)
    known = old if old and device == "cpu" else {"sections": ()}
    for each in known["sections"]:
        section, before, its = each["section"], each["content"], known["runs"][each["run"]]
        same = section in fresh and versions(its["software"]) == versions(run["software"])
        rest = more.get(section, "")
        if same and comparable(before, rest) == comparable(fresh[section], rest):
            kept[section] = before, its
    now = [(section, *kept.get(section, (content, run))) for section, content in fresh.items()]
    runs: list[dict] = []
    for _, _, its in now:
        if its not in runs:
            runs.append(its)
    parts = [{"section": section, "run": runs.index(its), "content": content} for section, content, its in now]
    return {"schema": SCHEMA, "script": script, "device": device, "runs": runs, "sections": parts}


def capture(
    script: str, device: str, wanted: Collection[str], commit: str = "", folder: Path = PUBLISHED
) -> tuple[dict | None, dict]:
    """Run a script and store its sections, all if none are named; returns what was stored before, and what is now.

    Raises:
        RuntimeError: the script failed, did not print a section, or has changes that are not committed.
    """
    commit = commit or commit_of(files_of(script))
    old, every = stored(script, device, folder), printed(script, device)
    new = document(script, device, chosen(script, every, wanted or every), this_run(script, device, commit), old)
    if new != old:
        write_whole(path_of(script, device, folder), new)
    return old, new


# ---- the command ----------------------------------------------------------------------------------------------------


def main(arguments: list[str]) -> int:
    """Run the scripts that were asked for and store what they print; returns the exit status."""
    options = parse(arguments)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    wanted: dict[str, set[str]] = {}
    for name in options.scripts or scripts(device):
        script, _, section = name.partition(":")
        if not (ROOT / source_of(script)).is_file():
            print(f"{script}: expected the name of a script, and {source_of(script)} does not exist", file=sys.stderr)
            return 2
        wanted.setdefault(script, set(contents(script, device))).update([section] if section else [])
    try:
        for script, names in wanted.items():
            capture(script, device, names, options.commit, options.out)
            print(path_of(script, device, options.out), flush=True)
    except RuntimeError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m tests.benchmarks.captures", description="Store what scripts print.")
    parser.add_argument(
        "scripts",
        nargs="*",
        metavar="SCRIPT[:SECTION]",
        help="compiler/modes: its stored sections again, or all if none is; compiler/modes:table: this one, too; "
        "default: all scripts that are stored for this device",
    )
    parser.add_argument("--out", type=Path, default=PUBLISHED, help="folder (default: %(default)s)")
    parser.add_argument("--commit", default="", help="the commit that runs, where the folder is no git checkout")
    return parser.parse_args(arguments)


def commit_of(files: Iterable[str]) -> str:
    """The commit of the checkout, whose version of the files is the one that runs.

    Raises:
        RuntimeError: the files have changes that are not committed, or this is no checkout.
    """
    git = ["git", "-C", str(ROOT)]
    try:
        changed = subprocess.run(
            [*git, "status", "--porcelain", "--", *sorted(set(files))], capture_output=True, text=True, check=True
        )
        commit = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise RuntimeError("this is no git checkout: give the commit with --commit") from error
    if changed.stdout:
        raise RuntimeError(f"commit these first, a capture names the code that printed it:\n{changed.stdout.rstrip()}")
    return commit.stdout.strip()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
