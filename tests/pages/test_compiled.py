"""The machine code of every kernel at its published points, for four GPUs and with none: what makes it fast is there.

Counts are of this environment's Triton. What a test here forbids is forbidden at every point that a page shows; what is
allowed nevertheless stands in a list, with its reason.
"""

import dataclasses
import gzip
import json
import re
import resource
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from docs.publish.compiled import build, explorer
from docs.publish.compiled.build import Compiled
from docs.publish.errors import PublishError
from docs.publish.evidence import Evidence
from docs.publish.place import Place, kernel_files
from docs.publish.records.captures import Captures
from docs.publish.records.store import Store
from snippets.validation.compiled_code import TARGETS
from tests.benchmarks.launches import Unwritten
from tests.benchmarks.source import ROOT
from tests.benchmarks.sweeps import chosen

KERNELS = list(kernel_files())
SWEPT = "the launch table is the fastest of the sweep on the H200, where this spills nothing; not measured on this GPU"
# bytes a thread that a kernel may spill for a target, and why
SPILLS = {
    ("add_rms_norm", "_backward_wide_kernel", "sm_80"): (88, "a row of 32768 fills the registers; not measured"),
    ("add_rms_norm", "_backward_wide_kernel", "sm_90"): (64, "a row of 32768: still the fastest of the sweep's plans"),
    ("add_rms_norm", "_backward_wide_kernel", "sm_100"): (
        200,
        "a row of 32768 fills the registers; not measured",
    ),
    ("cross_entropy", "_forward_wide_kernel", "sm_80"): (8, SWEPT),
    ("cross_entropy", "_forward_wide_kernel", "sm_100"): (16, SWEPT),
    ("layer_norm", "_backward_wide_kernel", "sm_80"): (8, "two registers of 128, at 9000 columns; not measured there"),
    ("layer_norm", "_backward_wide_kernel", "sm_90"): (8, "two registers of 128: the fastest of the sweep's plans"),
    ("layer_norm_gelu", "_backward_kernel", "sm_100"): (8, SWEPT),
    ("rms_norm", "_backward_wide_kernel", "sm_80"): (80, SWEPT),
    ("rms_norm", "_backward_wide_kernel", "sm_100"): (184, SWEPT),
}
SMALL = ("_sum_shares_kernel", "_prepare_kernel")  # they move next to nothing
# accesses of less than 128 bits in a kernel's source lines, unrolled: a row's own numbers, such as its mean and rstd
NARROW = {
    "add_rms_norm": 2, "cross_entropy": 14, "layer_norm": 8, "layer_norm_gelu": 10, "rms_norm": 4, "softmax_dropout": 3,
}  # fmt: skip
SHARED_MEMORY = {"sm_80": 163, "sm_90": 227, "sm_100": 227, "gfx942": 64}  # KiB, of a program at most
SHARE = 0.9  # of a kernel's instructions, at least, come from a line of its source
SHARES = {"cross_entropy": 0.75}  # the compiler moves work of its loop over the rows, and forgets whose it was
LOAD = r"LDG\.E\S*\.128", "(buffer|global)_load_dwordx4"
STORE = r"STG\.E\S*\.128", "(buffer|global)_store_dwordx4"
AHEAD = r"LDGSTS\.E\S*\.128", "(buffer|global)_load_dwordx4"  # on NVIDIA's GPUs past the registers
POWER, ROOT_OF, INVERSE = (r"MUFU\.EX2", "v_exp_f32"), (r"MUFU\.RSQ", "v_rsq_f32"), (r"MUFU\.RCP", "v_rcp_f32")
PRODUCT = r"IMAD\.(WIDE|HI)", "v_mad_u64_u32|v_mul_hi"
# for each kernel file: a kernel, what stands in a line of the source, and instructions that are made of such a line
KNOWN = {
    "add_rms_norm": (
        ("_forward_kernel", "residual = tl.load(residual_ptr + rows", *LOAD),
        ("_forward_kernel", "rstd = tl.rsqrt(tl.sum(h * h, axis=1)", *ROOT_OF),
        ("_backward_kernel", "dx += tl.load(dh_ptr + rows", *AHEAD),
    ),
    "cross_entropy": (
        ("_forward_wide_kernel", "return tl.exp2(x * 1.4426950408889634)", *POWER),
        ("_forward_wide_kernel", "target = tl.load(target_ptr + row * target_stride)", r"LDG\.E\.64", "load_dwordx2"),
        ("_backward_wide_kernel", 'x = tl.load(x_ptr + place, mask=inside, other=float("-inf")', *AHEAD),
    ),
    "layer_norm": (
        ("_forward_kernel", "bias = tl.load(bias_ptr + cols", *LOAD),
        ("_forward_kernel", "rstd = tl.rsqrt(tl.sum(centered * centered, axis=1)", *ROOT_OF),
        ("_backward_kernel", "tl.store(dx_ptr + rows[:, None] * N", *STORE),
    ),
    "layer_norm_gelu": (
        ("_forward_kernel", "tail = tl.exp2((tail * a", *POWER),
        ("_forward_kernel", "_gelu(z, TANH, FINE), mask=inside)", *STORE),
        ("_backward_kernel", "dy = tl.load(dy_ptr + rows", *AHEAD),
    ),
    "rms_norm": (
        ("_forward_wide_kernel", "return tl.load(ptr + cols, mask=cols < N, other=0.0, eviction_policy=POLICY)", *LOAD),
        ("_forward_wide_kernel", "tl.store(y_ptr + cols, y, mask=cols < N, cache_modifier=STORE)", *STORE),
        ("_backward_kernel", "mean = tl.sum(g * x_hat, axis=1) / N", *INVERSE),
    ),
    "rope": (
        ("_rope_kernel", "t_1s = t_1s + (tl.load(", *LOAD),
        ("_rope_kernel", "tl.store(out + step * HEADS * out_h + HALF", *STORE),
        ("_rope_kernel", "b, s = (token // S).to(tl.int64)", *PRODUCT),
    ),
    "softmax": (
        ("_forward_row_kernel", "return tl.exp2(x * _LOG2E)", *POWER),
        ("_forward_row_kernel", "scale = 1 / total", *INVERSE),
        ("_backward_row_kernel", "tl.store(dx_ptr + cols + tile * BLOCK", *STORE),
    ),
    "softmax_dropout": (
        ("_forward_wide_kernel", "a, b = c0.to(tl.uint64) * 0xD2511F53", *PRODUCT),
        ("_forward_wide_kernel", "return tl.exp2(x * 1.4426950408889634)", *POWER),
        ("_backward_kernel", "tl.store(dx_ptr + rows[:, None] * N", *STORE),
    ),
    "swiglu": (
        ("_forward_kernel", "share = 1 / (1 + tl.exp2(u", *POWER),
        ("_forward_kernel", "tl.store(y_ptr + places", *STORE),
        ("_backward_kernel", "tl.store(dup_ptr + places", *STORE),
    ),
}


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
    allowed, _ = SPILLS.get((name, one.function, one.target), (0, ""))
    if one.facts["spilled"] <= allowed:
        return ""
    where = lines_of(name, one.troubles.get("spilled registers", {}))
    return f"expected at most {allowed} bytes spilled, got {one.facts['spilled']}{where}"


def narrow(name: str, one: Compiled) -> str:
    """What is wrong with the widths of the accesses to global memory, or nothing."""
    if one.function in SMALL:
        return ""
    number, allowed = sum(map(len, one.narrow.values())), NARROW.get(name, 0)
    if number <= allowed and "128" in one.facts["loads"]:
        return ""
    widths = {line: Counter(bits) for line, bits in one.narrow.items()}
    said = {line: ", ".join(f"{n} of {bits} bits" for bits, n in counts.items()) for line, counts in widths.items()}
    where = lines_of(name, said)
    return f"expected loads of 128 bits and at most {allowed} narrower accesses, got {number}{where}"


def fp64(name: str, one: Compiled) -> str:
    """What is wrong with fp64 arithmetic, or nothing. To convert a scalar is none."""
    as_fp64 = one.fp64 or {"fp64": 0, "troubles": {}}
    number = one.facts["fp64"] or as_fp64["fp64"]
    where = one.troubles.get("fp64") or as_fp64["troubles"].get("fp64", {})
    return f"expected no fp64 arithmetic, got {number} instructions{lines_of(name, where)}" if number else ""


@pytest.mark.parametrize("rule", (spills, narrow, fp64), ids=lambda rule: rule.__name__)
@pytest.mark.parametrize("name", KERNELS)
def test_published_kernels_keep_to_the_rule(name, rule):
    wrong = {f"{where}: {problem}": None for where, one in every(name) if (problem := rule(name, one))}
    assert not wrong, "\n" + "\n".join(wrong)


def test_every_exception_is_needed():
    """An allowance that nothing uses would hide a loss."""
    found = {(name, one.function, one.target): 0 for name in KERNELS for _, one in every(name)}
    for name in KERNELS:
        for _, one in every(name):
            key = name, one.function, one.target
            found[key] = max(found[key], one.facts["spilled"])
    assert {key: bytes for key, bytes in found.items() if bytes} == {key: bytes for key, (bytes, _) in SPILLS.items()}
    widest = {
        name: max(sum(map(len, one.narrow.values())) for _, one in every(name) if one.function not in SMALL)
        for name in KERNELS
    }
    assert {name: number for name, number in widest.items() if number} == NARROW


@pytest.mark.parametrize("name", KERNELS)
def test_a_dot_has_tensor_cores_and_nothing_else_has(name):
    source = (ROOT / "kernels" / f"{name}.py").read_text()
    for where, one in every(name):
        assert bool(one.facts["tensor_core"]) == ("tl.dot(" in source), where


@pytest.mark.parametrize("name", KERNELS)
def test_shared_memory_is_there(name):
    for where, one in every(name):
        assert one.facts["shared"] <= SHARED_MEMORY[one.target] * 1024, where
        if name != "layer_norm_gelu":  # which asks the GPU how much it has
            assert one.facts["shared"] <= 99 * 1024, f"{where}: more than a consumer's GPU has"


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
    return [line for line in lines if re.match(r"    (/\*|[a-z])", line) and not re.search(r"\bNOP\b|s_nop", line)]


@pytest.mark.parametrize("name", KERNELS)
def test_instructions_come_from_lines(name):
    for one in listed(name):
        share = sum(bool(re.search(r"    // line \d+$", line)) for line in code(one)) / len(code(one))
        assert share >= SHARES.get(name, SHARE), (one.function, one.target, share)


@pytest.mark.parametrize("name", KERNELS)
def test_known_lines_became_known_instructions(name):
    source = (ROOT / "kernels" / f"{name}.py").read_text().splitlines()
    assert len(KNOWN[name]) >= 3
    for function, fragment, nvidia, amd in KNOWN[name]:
        numbers = [str(number) for number, line in enumerate(source, 1) if fragment in line]
        assert numbers, fragment
        for target in TARGETS:
            of_target = [one for one in listed(name) if (one.function, one.target) == (function, target)]
            assert of_target, (function, target)
            made = [line for one in of_target for line in code(one) if line.rpartition(" // line ")[2] in numbers]
            pattern = nvidia if TARGETS[target].backend == "cuda" else amd
            assert any(re.search(pattern, line) for line in made), (function, target, fragment, made[:20])


@pytest.mark.parametrize("name", KERNELS)
def test_every_form_has_lines_of_the_source(name):
    last = len((ROOT / "kernels" / f"{name}.py").read_text().splitlines())
    for one in listed(name):
        forms = ["ttir", "ttgir", *(["ptx", "sass"] if TARGETS[one.target].backend == "cuda" else ["amdgcn"])]
        assert list(one.listings) == forms
        for form, text in one.listings.items():
            numbers = [int(number) for number in re.findall(r"    // line (\d+)$", text, re.MULTILINE)]
            assert numbers and min(numbers) >= 1 and max(numbers) <= last, (one.function, one.target, form)


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
        assert {one.target for one in with_fp64} == set(TARGETS)
        assert all(one.fp64["target"] == one.target for one in with_fp64)
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
    for folder in ("kernels", "tests", "snippets", "docs/publish"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    assert build.digest("softmax", tmp_path) == before
    path = tmp_path / "kernels/softmax.py"
    path.write_text(path.read_text() + "\n# changed\n")
    assert build.digest("softmax", tmp_path) != before and build.digest("rope", tmp_path) == build.digest("rope")


# ---- what pages show ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def store():
    return Store.load(ROOT / "docs/measurements", ROOT, local=False)


@pytest.fixture(scope="module")
def site(store):
    """The explorer's files by path."""
    return dict(explorer.files(store, Captures.load(), lambda path, url: Place(path, url)))


@pytest.mark.parametrize("name", explorer.names())
def test_files_fit_together_and_stay_small(name, site):
    index = json.loads(site[f"compiled/{name}/index.json"])
    here = {path: text for path, text in site.items() if path.startswith(f"compiled/{name}/")}
    assert sum(len(gzip.compress(text.encode())) for text in here.values()) < 300_000
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
    assert used == here.keys() - {f"compiled/{name}/index.json"}
    page = site[f"compiled/{name}.md"]
    for path in used:
        if path.endswith(("sass.txt", "amdgcn.txt")):
            assert path.removeprefix(f"compiled/{name}/") in page, "the page without scripts links it"


def test_torch_compile_stands_beside_ours(site):
    index = json.loads(site["compiled/rms_norm/index.json"])
    for direction in ("forward", "backward"):
        (its,) = (one for one in index["configurations"] if one["id"] == f"{direction}-32768x4096")
        theirs = [kernel for kernel in its["kernels"] if kernel["maker"] == "torch.compile"]
        assert theirs and {kernel["maker"] for kernel in its["kernels"]} == {"", "torch.compile"}
        for kernel in theirs:
            made = kernel["targets"]["sm_90"]
            assert "NVIDIA H200" in kernel["provenance"] and {"graph", "sass"} <= made["forms"].keys()
            assert {"launches", "bytes", "registers"} <= made["values"].keys()


def test_cpp_is_of_this_machine(site):
    index = json.loads(site["compiled/what-compile-does/index.json"])
    kernels = [kernel for one in index["configurations"] for kernel in one["kernels"] if "cpu" in kernel["targets"]]
    assert kernels and all("cpp" in kernel["targets"]["cpu"]["forms"] for kernel in kernels)


def test_a_binary_that_was_timed_is_compared(store):
    """By its hash first: the same binary is said to be the same."""
    point = ("forward", "4096x32768", "bfloat16")
    (one,) = build.results("softmax")[point]["sm_90"]
    timed = explorer.timed(store, "softmax", point, one.function)
    machine = timed.row.record.machine["name"]
    same = dataclasses.replace(one, hash=timed.binary.hash)
    assert timed.said(same) == f"This is the binary that was timed on {machine}."
    was = timed.binary.registers
    as_many = dataclasses.replace(one, facts=one.facts | {"registers": was, "shared": timed.binary.shared_bytes})
    assert not timed.differs(as_many) and "had as many registers" in timed.said(as_many)
    more = dataclasses.replace(one, facts=one.facts | {"registers": was + 8})
    assert timed.differs(more) and f"had {was} registers" in timed.said(more)
    assert explorer.timed(store, "softmax", ("forward", "1x1", "bfloat16"), one.function) is None


def test_the_page_says_where_binaries_differ(store, monkeypatch):
    panel = lambda: explorer.panel(  # noqa: E731
        store, Captures.load(), Evidence(), Place("kernels/softmax.md", "kernels/softmax/"), "softmax"
    )
    results = build.results("softmax")
    equal = {
        point: {
            target: [dataclasses.replace(one, facts=one.facts | _as_timed(store, point, one)) for one in launched]
            for target, launched in by_target.items()
        }
        for point, by_target in results.items()
    }
    monkeypatch.setattr(build, "results", lambda name: equal)
    assert "differ in resources" not in panel() and "as many registers" in panel()
    point = ("forward", "32768x4096", "bfloat16")
    one = equal[point]["sm_90"][0]
    was = one.facts["registers"]
    equal[point]["sm_90"][0] = dataclasses.replace(one, facts=one.facts | {"registers": was + 8})
    assert f"({was} registers, {was + 8} here; timed with Triton" in panel()


def _as_timed(store, point, one) -> dict:
    timed = explorer.timed(store, "softmax", point, one.function) if one.target == "sm_90" else None
    return {"registers": timed.binary.registers, "shared": timed.binary.shared_bytes} if timed else {}


def test_a_reference_leads_to_its_line_or_says_what_is_missing():
    known = "softmax", "forward-32768x4096", "_forward_row_kernel"
    shown = explorer.reference(Captures.load(), *known, fact="registers")
    registers = build.results("softmax")["forward", "32768x4096", "bfloat16"]["sm_90"][0].facts["registers"]
    assert shown == f'<a href="#compiled/forward-32768x4096/_forward_row_kernel/sm_90">{registers}</a>'
    lines = Path(ROOT / "kernels/softmax.py").read_text().splitlines()
    number = lines.index("    return tl.exp2(x * _LOG2E)") + 1
    shown = explorer.reference(Captures.load(), *known, line="return tl.exp2(x * _LOG2E)", text="<exp>")
    assert f'/sm_90/python/sass/L{number}"' in shown and "&lt;exp&gt;" in shown
    for wrong, said in (
        (("softmax", "forward-1x1", "_forward_row_kernel"), "configuration: expected one of"),
        (("softmax", "forward-32768x4096", "_nothing"), "kernel of forward-32768x4096 for sm_90"),
    ):
        with pytest.raises(PublishError, match=said):
            explorer.reference(Captures.load(), *wrong, fact="registers")
    with pytest.raises(PublishError, match="fact"):
        explorer.reference(Captures.load(), *known, fact="speed")
    with pytest.raises(PublishError, match=r"expected one line of kernels/softmax\.py with 'tl\.load', got"):
        explorer.reference(Captures.load(), *known, line="tl.load", text="loads")
    with pytest.raises(PublishError, match="explorer"):
        explorer.panel(None, Captures.load(), Evidence(), Place("x.md", "x/"), "soft_max")
