"""The machine code of every kernel at its published points, for four GPUs and with none: what makes it fast is there.

Counts are of this environment's Triton. What a test here forbids is forbidden at every point that a page shows; what is
allowed nevertheless stands in the kernel's own tests, as MACHINE_CODE, with its reason.
"""

import ast
import dataclasses
import functools
import gzip
import importlib
import itertools
import json
import re
import resource
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from docs.publish.compiled import build, cuda, explorer, subjects
from docs.publish.compiled.build import Compiled
from docs.publish.compiled.facts import timed
from docs.publish.compiled.panel import panel, reference
from docs.publish.errors import PublishError
from docs.publish.evidence import Evidence
from docs.publish.place import CUDA, Place, cuda_files, kernel_files
from docs.publish.records.captures import Captures
from docs.publish.records.store import Store
from snippets.validation.compiled_code import TARGETS, Facts
from tests.benchmarks.launches import Unwritten
from tests.benchmarks.source import ROOT
from tests.benchmarks.sweeps import chosen
from tests.kernels.compiled import MachineCode

KERNELS = list(kernel_files())
SHARED_MEMORY = {"sm_80": 163, "sm_90": 227, "sm_100": 227, "gfx942": 64}  # KiB, of a program at most


@pytest.fixture(scope="module", autouse=True)
def all_at_once() -> None:
    """Compiled in one process: `build.results` would start one for each kernel."""
    build.ensure(KERNELS)


def expected(name: str) -> MachineCode:
    """What the tests of a kernel file say of its binaries."""
    tests = importlib.import_module(f"tests.kernels.test_{name}")
    where = f"{tests.__name__.replace('.', '/')}.py"
    assert hasattr(tests, "MACHINE_CODE"), f"{where}: expected MACHINE_CODE, a tests.kernels.compiled.MachineCode"
    return tests.MACHINE_CODE


def every(name: str) -> Iterator[tuple[str, Compiled]]:
    """(where, what) of each kernel at each published point, for each target."""
    for point, by_target in build.results(name).items():
        for target, launched in by_target.items():
            for one in launched:
                yield f"kernels/{name}.py {one.function}, {' '.join(point)}, {target}", one


def lines_of(name: str, counts: dict) -> str:
    """Lines of the source with what came from them, for a message."""
    source = (ROOT / "kernels" / f"{name}.py").read_text().splitlines()
    text = {str(number): line.strip() for number, line in enumerate(source, 1)}
    shown = [f"line {n}: {what}: {text[n]}" if n in text else f"no line: {what}" for n, what in counts.items()]
    return "\n  ".join(["", *shown])


# ---- what every kernel must have, and must not ----------------------------------------------------------------------


def spills(name: str, one: Compiled) -> str:
    """What is wrong with them, or nothing."""
    allowed, _ = expected(name).spills.get((one.function, one.target), (0, ""))
    if one.facts["spilled"] <= allowed:
        return ""
    where = lines_of(name, one.troubles.get("spilled registers", {}))
    return f"expected at most {allowed} bytes spilled, got {one.facts['spilled']}{where}"


def narrow(name: str, one: Compiled) -> str:
    """What is wrong with the widths of the accesses to global memory, or nothing."""
    if one.function in expected(name).small:
        return ""
    number, allowed = sum(map(len, one.narrow.values())), expected(name).narrow
    if number <= allowed and "128" in one.facts["loads"]:
        return ""
    widths = {line: Counter(bits) for line, bits in one.narrow.items()}
    by_line = {line: ", ".join(f"{n} of {bits} bits" for bits, n in counts.items()) for line, counts in widths.items()}
    where = lines_of(name, by_line)
    return f"expected loads of 128 bits and at most {allowed} narrower accesses, got {number}{where}"


def fp64(name: str, one: Compiled) -> str:
    """What is wrong with fp64 arithmetic, or nothing. To convert a scalar is none."""
    as_fp64 = one.fp64 or {"fp64": 0, "troubles": {}}
    number = one.facts["fp64"] or as_fp64["fp64"]
    where = one.troubles.get("fp64") or as_fp64["troubles"].get("fp64", {})
    return f"expected no fp64 arithmetic, got {number} instructions{lines_of(name, where)}" if number else ""


@pytest.mark.parametrize("rule", (spills, narrow, fp64), ids=lambda rule: rule.__name__)
def test_published_kernels_keep_to_the_rule(rule):
    wrong = {
        f"{where}: {problem}": None for name in KERNELS for where, one in every(name) if (problem := rule(name, one))
    }
    assert not wrong, "\n" + "\n".join(wrong)


def needed(name: str) -> MachineCode:
    """The allowances of a kernel file that its kernels use up."""
    allowed, spilled, large = expected(name), {}, []
    for _, one in every(name):
        if bytes_ := one.facts["spilled"]:
            key = one.function, one.target
            spilled[key] = max(spilled.get(key, 0), bytes_)
        if one.function not in allowed.small:
            large.append(sum(map(len, one.narrow.values())))
    used = {key: (bytes_, allowed.spills.get(key, (0, ""))[1]) for key, bytes_ in spilled.items()}
    functions = {one.function for _, one in every(name)}
    small = tuple(function for function in allowed.small if function in functions)
    return dataclasses.replace(allowed, spills=used, narrow=max(large), small=small)


def test_every_exception_is_needed_and_has_its_reason():
    """An allowance that nothing uses would hide a loss."""
    unused = [
        f"{name}: allowed {expected(name)}, needed {needed(name)}" for name in KERNELS if needed(name) != expected(name)
    ]
    assert not unused, "\n".join(unused)
    assert all(reason for name in KERNELS for _, reason in expected(name).spills.values())


def test_a_dot_has_tensor_cores_and_nothing_else_has():
    wrong = [
        where
        for name in KERNELS
        for where, one in every(name)
        if bool(one.facts["tensor_core"]) != (one.function in with_a_dot(name))
    ]
    assert not wrong


@functools.cache
def with_a_dot(name: str) -> set[str]:
    """The functions of a kernel file that call tl.dot, themselves or by another of its functions."""
    tree = ast.parse((ROOT / "kernels" / f"{name}.py").read_text(encoding="utf-8"))
    sources = {node.name: ast.unparse(node) for node in tree.body if isinstance(node, ast.FunctionDef)}
    callers, found = {"tl.dot"}, set[str]()
    while callers:
        called = re.compile(rf"(?<![\w.])(?:{'|'.join(map(re.escape, callers))})\(")
        callers = {function for function, source in sources.items() if called.search(source.partition("\n")[2])} - found
        found |= callers
    return found


def test_shared_memory_is_there():
    wrong = []
    for name in KERNELS:
        asks = "_shared_memory(" in (ROOT / "kernels" / f"{name}.py").read_text()  # how much there is; else, as little
        for where, one in every(name):  # as a consumer's GPU has
            most = SHARED_MEMORY[one.target] if asks else min(99, SHARED_MEMORY[one.target])
            if one.facts["shared"] > most * 1024:
                wrong.append(f"{where}: expected at most {most} KiB, got {one.facts['shared'] / 1024}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.skipif(not cuda.compiler(), reason="needs NVRTC or nvcc")
@pytest.mark.parametrize("name", [name for name in KERNELS if f"{name}{CUDA}" in cuda_files()])
def test_cuda_kernels_hold_what_their_tests_say(name):
    tests, held = importlib.import_module(f"tests.kernels.test_{name}_cuda"), set()
    for (direction, size, _), by_target in cuda.results(name).items():
        for target, launched in by_target.items():
            for one in launched:
                moved = {way: {int(bits): n for bits, n in one.facts[way].items()} for way in ("loads", "stores")}
                tests.hold(Facts(**one.facts | moved))
                held.add((direction, size, target))
    assert held == set(itertools.product(("forward", "backward"), build.listed(name), cuda.TARGETS))


def test_a_loss_is_named_with_its_kernel_target_and_line():
    where, one = next((w, one) for w, one in every("softmax") if "sm_90" in w and "_forward_row" in w)
    worse = dataclasses.replace(
        one,
        facts=one.facts | {"spilled": 24, "fp64": 2, "loads": {"16": 9}},
        troubles={"spilled registers": {"181": 3}, "fp64": {"30": 2}},
        narrow={"63": [16] * 9},
    )
    line = (ROOT / "kernels/softmax.py").read_text().splitlines()
    assert not spills("softmax", one) and not narrow("softmax", one) and not fp64("softmax", one)
    assert f"got 24\n  line 181: 3: {line[180].strip()}" in spills("softmax", worse)
    assert f"line 63: 9 of 16 bits: {line[62].strip()}" in narrow("softmax", worse)
    assert f"line 30: 2: {line[29].strip()}" in fp64("softmax", worse)
    assert "kernels/softmax.py _forward_row_kernel" in where and "sm_90" in where


# ---- from lines to instructions -------------------------------------------------------------------------------------


def listed(name: str) -> Iterator[Compiled]:
    return (one for _, one in every(name) if one.listings)


def code(one: Compiled) -> list[str]:
    """The instructions of the last form, machine code."""
    lines = list(one.listings.values())[-1].splitlines()
    return [line for line in lines if re.match(r"    [@A-Za-z]", line) and not re.search(r"\bNOP\b|s_nop", line)]


def test_instructions_come_from_lines():
    few = []
    for name in KERNELS:
        for one in listed(name):
            share = sum(bool(re.search(r"    // line \d+$", line)) for line in code(one)) / len(code(one))
            if share < expected(name).share:
                few.append(f"{name} {one.function}, {one.target}: {share:.2f} of the instructions name their line")
    assert not few, f"where that is right, say so in MACHINE_CODE.share of the kernel's tests: {few}"


def unknown(name: str) -> Iterator[str]:
    """What became of the lines that a kernel file's MACHINE_CODE knows, where it is not what is said there."""
    source = (ROOT / "kernels" / f"{name}.py").read_text().splitlines()
    for function, fragment, nvidia, amd in expected(name).known:
        numbers = [str(number) for number, line in enumerate(source, 1) if fragment in line]
        for target in build.targets_of(name):
            of_target = [one for one in listed(name) if (one.function, one.target) == (function, target)]
            made = [line for one in of_target for line in code(one) if line.rpartition(" // line ")[2] in numbers]
            pattern = nvidia if TARGETS[target].backend == "cuda" else amd
            if not any(re.search(pattern, line) for line in made):
                yield f"{name} {function}, {target}: expected {pattern} of {fragment!r}, got {made[:20]}"


def test_known_lines_became_known_instructions():
    few = [name for name in KERNELS if len(expected(name).known) < 3]
    assert not few, f"MACHINE_CODE knows too few lines in tests/kernels of {few}"
    wrong = [line for name in KERNELS for line in unknown(name)]
    assert not wrong, "\n".join(wrong)


def test_every_form_has_lines_of_the_source():
    wrong = []
    for name in KERNELS:
        last = len((ROOT / "kernels" / f"{name}.py").read_text().splitlines())
        for one in listed(name):
            forms = ["ttir", "ttgir", *(["ptx", "sass"] if TARGETS[one.target].backend == "cuda" else ["amdgcn"])]
            assert list(one.listings) == forms, (name, one.function, one.target)
            for form, text in one.listings.items():
                numbers = [int(number) for number in re.findall(r"    // line (\d+)$", text, re.MULTILINE)]
                if not numbers or min(numbers) < 1 or max(numbers) > last:
                    wrong.append(f"{name} {one.function}, {one.target}, {form}: {numbers[:5]}")
    assert not wrong, "\n".join(wrong)


# ---- what is compiled -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("columns", (1024, 4096, 9000, 32768, 131072))
def test_the_launch_is_that_of_the_launch_table(columns):
    """At the published number of rows, and for the H200: as the sweep's macro asks for it."""
    large = rf"forward \d{{4,}}x{columns} bfloat16"
    (point,) = (point for point in build.results("softmax") if re.fullmatch(large, " ".join(point)))
    (one,) = build.results("softmax")[point]["sm_90"]
    table = chosen("softmax", "forward", columns, 16)
    told = one.constants | one.options
    assert {name: told[name] for name in table} == table


def test_arguments_are_specialised_as_the_launcher_does():
    """9000 columns are 1125 units of 8: 16 divides neither them nor a row's stride in units; the addresses it does."""
    signature = build.results("softmax")["forward", "16384x9000", "bfloat16"]["sm_90"][0].signature
    assert signature["x_ptr"] == signature["y_ptr"] == "*bf16:16" and signature["M"] == "i32:16"
    assert signature["N"] == signature["x_stride"] == "i32" and signature["UNIT"] == "8"
    assert build.results("softmax")["forward", "32768x4096", "bfloat16"]["sm_90"][0].signature["N"] == "i32:16"


def test_floats_are_compiled_as_fp64_too():
    for name in ("rms_norm", "add_rms_norm", "layer_norm", "layer_norm_gelu"):
        with_fp64 = [one for one in listed(name) if one.fp64]
        assert {one.target for one in with_fp64} == {one.fp64["target"] for one in with_fp64} == {"sm_90"}
    assert not any(one.fp64 for one in listed("swiglu"))


def test_published_sizes_cost_no_memory():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with Unwritten():
        x = torch.randn(2**15, 2**15).to(torch.bfloat16)  # 4 GiB and 2
        y = (x * 2).view(-1)[: 2**29].sum()
    assert x.shape == (2**15, 2**15) and y.shape == () and x.dtype == torch.bfloat16
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2**18  # KiB


def test_an_unchanged_kernel_costs_nothing_and_a_changed_one_is_noticed(monkeypatch, tmp_path):
    build.ensure(KERNELS)
    monkeypatch.setattr(build.subprocess, "run", lambda *arguments, **_: pytest.fail("compiles again"))
    build.ensure(KERNELS)
    before = build.digest("softmax")
    docs = ROOT / "docs"
    for folder in (ROOT / "kernels", ROOT / "tests", ROOT / "snippets", docs / "publish", docs / "pages" / "kernels"):
        shutil.copytree(folder, tmp_path / folder.relative_to(ROOT), ignore=shutil.ignore_patterns("__pycache__"))
    assert build.digest("softmax", tmp_path) == before
    path = tmp_path / "kernels/softmax.py"
    path.write_text(path.read_text() + "\n# changed\n")
    assert build.digest("softmax", tmp_path) != before and build.digest("rope", tmp_path) == build.digest("rope")
    page = tmp_path / "docs/pages/kernels/rope.md"
    page.write_text(page.read_text().replace("listed: [", "listed: [8x4, "))
    assert build.digest("rope", tmp_path) != build.digest("rope")


def test_a_page_names_the_shapes_whose_listings_are_kept(tmp_path):
    (tmp_path / "docs/pages/kernels").mkdir(parents=True)
    assert build.listed("softmax", tmp_path) == build.LISTED
    (tmp_path / "docs/pages/kernels/softmax.md").write_text("---\nlisted: [8x4]\n---\n")
    assert build.listed("softmax", tmp_path) == ["8x4"]
    sizes = {size for _, size, _ in build.results("rope")}
    assert set(build.listed("rope")) <= sizes and build.listed("rope") != build.LISTED


# ---- what pages show ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def site(published: Store):
    """The explorer's files by path."""
    return dict(explorer.files(published, Captures.load(), lambda path, url: Place(path, url)))


def test_files_fit_together_and_stay_small(site):
    for name in subjects.names():
        fit_together(name, site)


def fit_together(name: str, site: dict[str, str]) -> None:
    index = json.loads(site[f"compiled/{name}/index.json"])
    files = {path: text for path, text in site.items() if path.startswith(f"compiled/{name}/")}
    assert sum(len(gzip.compress(text.encode())) for text in files.values()) < 300_000
    facts = {fact["key"] for fact in index["facts"]}
    assert all(fact["why"].endswith(".") for fact in index["facts"])
    used = set()
    assert len({one["id"] for one in index["configurations"]}) == len(index["configurations"]) > 0
    for configuration in index["configurations"]:
        names = [kernel["name"] for kernel in configuration["kernels"]]
        assert len(set(names)) == len(names) > 0
        for kernel in configuration["kernels"]:
            source = kernel["source"]["url"]
            if source.startswith("../../kernels/"):
                lines = (ROOT / source.removeprefix("../../")).read_text().splitlines()
                first = kernel["source"]["line"] - 1
                assert any(kernel["name"] in line for line in lines[first : first + 3])
            else:
                used.add(f"compiled/{name}/{source}")
            assert kernel["targets"].keys() <= index["targets"].keys()
            for made in kernel["targets"].values():
                assert made["values"].keys() <= facts and set(made["bad"]) <= made["values"].keys()
                assert made["forms"].keys() <= index["forms"].keys()
                used |= {f"compiled/{name}/{path}" for path in made["forms"].values()}
    assert used == files.keys() - {f"compiled/{name}/index.json"}
    page = site[f"compiled/{name}.md"]
    for path in used:
        if path.endswith(("sass.txt", "amdgcn.txt")):
            assert path.removeprefix(f"compiled/{name}/") in page, "the page without scripts links it"


def test_torch_compile_stands_beside_ours(site):
    index = json.loads(site["compiled/rms_norm/index.json"])
    for direction in ("forward", "backward"):
        (configuration,) = (entry for entry in index["configurations"] if entry["id"] == f"{direction}-32768x4096")
        theirs = [kernel for kernel in configuration["kernels"] if kernel["maker"] == "torch.compile"]
        assert theirs and {kernel["maker"] for kernel in configuration["kernels"]} == {"", "torch.compile"}
        for kernel in theirs:
            made = kernel["targets"]["sm_90"]
            assert "NVIDIA H100" in kernel["provenance"] and {"graph", "sass"} <= made["forms"].keys()
            assert {"launches", "bytes", "registers"} <= made["values"].keys()


def test_cpp_is_of_this_machine(site):
    index = json.loads(site["compiled/what-compile-does/index.json"])
    kernels = [kernel for one in index["configurations"] for kernel in one["kernels"] if "cpu" in kernel["targets"]]
    assert kernels and all("cpp" in kernel["targets"]["cpu"]["forms"] for kernel in kernels)


def test_a_binary_that_was_timed_is_compared(published):
    """By its hash first: the same binary is said to be the same."""
    point = ("forward", "4096x32768", "bfloat16")
    (one,) = build.results("softmax")[point]["sm_90"]
    measured = timed(published, "softmax", point, one.function)
    machine = measured.row.record.machine["name"]
    same = dataclasses.replace(one, hash=measured.binary.hash)
    assert measured.sentence(same) == f"This is the binary that was timed on {machine}."
    was = measured.binary.registers
    as_many = dataclasses.replace(one, facts=one.facts | {"registers": was, "shared": measured.binary.shared_bytes})
    assert not measured.differs(as_many) and "had as many registers" in measured.sentence(as_many)
    more = dataclasses.replace(one, facts=one.facts | {"registers": was + 8})
    assert measured.differs(more) and f"had {was} registers" in measured.sentence(more)
    assert timed(published, "softmax", ("forward", "1x1", "bfloat16"), one.function) is None


def test_a_kernel_that_is_launched_for_each_block_is_listed_once(published):
    """Of this kernel's matmul in blocks, 80 launches have the same few binaries."""
    place = Place("kernels/linear-cross-entropy.md", "kernels/linear-cross-entropy/")
    shown = panel(published, Captures.load(), Evidence(place), "linear_cross_entropy")
    rows = re.findall(r"<tr>.*?</tr>", shown, re.DOTALL)
    assert len(rows) > 2 and len(rows) == len(set(rows))


def test_the_page_says_where_binaries_differ(published, monkeypatch):
    shown = lambda: panel(  # noqa: E731
        published, Captures.load(), Evidence(Place("kernels/softmax.md", "kernels/softmax/")), "softmax"
    )
    results = build.results("softmax")
    equal = {
        point: {
            target: [dataclasses.replace(one, facts=one.facts | _as_timed(published, point, one)) for one in launched]
            for target, launched in by_target.items()
        }
        for point, by_target in results.items()
    }
    monkeypatch.setattr(build, "results", lambda name: equal)
    assert "differ in resources" not in shown() and "as many registers" in shown()
    point = ("forward", "32768x4096", "bfloat16")
    one = equal[point]["sm_90"][0]
    was = one.facts["registers"]
    equal[point]["sm_90"][0] = dataclasses.replace(one, facts=one.facts | {"registers": was + 8})
    assert f"({was} registers, {was + 8} here; timed with Triton" in shown()


def _as_timed(published, point, one) -> dict:
    measured = timed(published, "softmax", point, one.function) if one.target == "sm_90" else None
    return {"registers": measured.binary.registers, "shared": measured.binary.shared_bytes} if measured else {}


def test_a_reference_leads_to_its_line_or_says_what_is_missing():
    known = "softmax", "forward-32768x4096", "_forward_row_kernel"
    shown = reference(Captures.load(), *known, fact="registers")
    registers = build.results("softmax")["forward", "32768x4096", "bfloat16"]["sm_90"][0].facts["registers"]
    assert shown == f'<a href="#compiled/forward-32768x4096/_forward_row_kernel/sm_90">{registers}</a>'
    lines = Path(ROOT / "kernels/softmax.py").read_text().splitlines()
    number = lines.index("    return tl.exp2(x * LOG2E)") + 1
    shown = reference(Captures.load(), *known, line="return tl.exp2(x * LOG2E)", text="<exp>")
    assert f'/sm_90/python/sass/L{number}"' in shown and "&lt;exp&gt;" in shown
    for wrong, said in (
        (("softmax", "forward-1x1", "_forward_row_kernel"), "configuration: expected one of"),
        (("softmax", "forward-32768x4096", "_nothing"), "kernel of forward-32768x4096 for sm_90"),
    ):
        with pytest.raises(PublishError, match=said):
            reference(Captures.load(), *wrong, fact="registers")
    with pytest.raises(PublishError, match="fact"):
        reference(Captures.load(), *known, fact="speed")
    with pytest.raises(PublishError, match=r"expected one line of kernels/softmax\.py with 'tl\.load', got"):
        reference(Captures.load(), *known, line="tl.load", text="loads")
    with pytest.raises(PublishError, match="explorer"):
        panel(None, Captures.load(), Evidence(Place("x.md", "x/")), "soft_max")
