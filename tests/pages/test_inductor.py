"""Inductor's kernels in the viewer: from captures and compiled here, or made here; what does not fit is refused."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from docs.publish.compiled import inductor
from docs.publish.compiled.inductor import Graph
from docs.publish.errors import PublishError
from docs.publish.evidence import Evidence
from docs.publish.place import Place
from docs.publish.records.captures import Captures
from snippets.validation.compiled_code import TARGETS
from tests.benchmarks import captures as printing
from tests.benchmarks.source import ROOT
from tests.pages import tiny

READ = "docs/pages", "snippets/**/*.py", "tests/benchmarks"  # through docs.publish

NAME = "triton_per_fused_add_div_linalg_vector_norm_pow_relu_0"  # as the page on torch.compile shows it
SCRIPT = "print(1)\n"
IMPORTS = """import triton
import triton.language as tl
from torch._inductor.runtime import triton_helpers


"""
BINARY = {
    "signature": ["*bf16:16", "*bf16:16", "*bf16:16", "*bf16:16", "i32:16", "i32:16", "1"],
    "constants": {"XBLOCK": 1},
    "options": {"num_warps": 4, "num_stages": 1, "debug": True, "sanitize_overflow": False, "launch_pdl": False},
    "tried": 2, "registers": 40, "spilled": 0, "shared": 16,
}  # fmt: skip
WHOLE = 65536 * 1024 * 2
COUNTS = {
    "shape": "65536x1024", "dtype": "bfloat16", "kernels": 1, "launches": 2, "bytes": 3 * WHOLE, "passed": 4 * WHOLE,
}  # fmt: skip
LAUNCHES = [
    {"name": NAME, "bytes": 3 * WHOLE, "binary": BINARY},
    {"name": "aten.sum.dim_IntList", "bytes": WHOLE, "binary": {}},
]


def parts(**different: object) -> dict[str, str]:
    """The contents of a graph's captures."""
    kernel = printing.contents("compiler/what_compile_does", "cuda")["Inductor"]
    contents: dict[str, Any] = {
        "graph": "def forward(self, x):\n    return (x,)\n",
        "kernels": IMPORTS + kernel,
        "launches": "".join(json.dumps(launch) + "\n" for launch in LAUNCHES),
        "counts": json.dumps(COUNTS) + "\n",
    }
    return contents | different


def store(root: Path, contents: dict[str, str]) -> Captures:
    """Store the parts of a graph."""
    file = root / printing.source_of(inductor.SCRIPT)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(SCRIPT)
    sections = {f"unit_rows forward, {part}": content for part, content in contents.items()}
    software = {"torch": "2.11.0", "triton": "3.6.0"}
    tiny.printed(root, sections, inductor.SCRIPT, software=software)
    return Captures.load(root / "docs/measurements/captures", root)


# ---- captures -------------------------------------------------------------------------------------------------------


def test_a_graph_is_read_with_where_it_was_seen(root: Path):
    (graph,) = inductor.captured(store(root, parts()))
    assert (graph.function, *graph.point) == ("unit_rows", "forward", "65536x1024", "bfloat16")
    assert list(graph.kernels) == [NAME], "what the library does is no kernel of Inductor's"
    assert set(graph.targets) == set(TARGETS) and not graph.stale
    assert "NVIDIA H100 with torch 2.11.0 and Triton 3.6.0, 2026-01-01" in graph.provenance
    assert "python -m snippets.compiler.inductor_code" in graph.provenance


def test_no_captures_are_no_graphs(root: Path):
    assert inductor.captured(Captures({}, root)) == []


def test_captures_that_are_published_are_read():
    graphs = inductor.captured(Captures.load())
    assert len(graphs) * len(inductor.PARTS) == len(printing.contents(inductor.SCRIPT, "cuda"))


def test_published_counts_are_those_of_the_shapes():
    graphs = {(graph.function, graph.direction): graph.counts for graph in inductor.captured(Captures.load())}
    rows, columns, tensor = 32768, 4096, 32768 * 4096 * 2
    forward, backward = graphs["rms_norm", "forward"], graphs["rms_norm", "backward"]
    assert forward["bytes"] == forward["passed"] == 2 * tensor + 2 * columns
    assert graphs["unit_rows", "forward"]["bytes"] == 3 * 65536 * 1024 * 2 + 2 * 1024
    partial, total, weight = 4 * rows // 16 * columns, 4 * columns, 2 * columns  # sums of 16 rows each, then of all
    reads, writes = 2 * tensor + 4 * rows + weight, tensor + partial
    assert backward["passed"] == reads + writes + (partial + total) + (total + weight)
    assert backward["bytes"] < backward["passed"], "Inductor does not count the workspace that it takes in the end"


def test_a_stale_capture_says_so_and_is_refused_by_a_release(root: Path):
    captures = store(root, parts())
    (root / printing.source_of(inductor.SCRIPT)).write_text(SCRIPT.replace("1", "2"))
    (graph,) = inductor.captured(captures)
    assert len(graph.stale) == 4
    assert "stale" in inductor.entries(graph, "f", {NAME: {"sm_90": {}}})[0]["provenance"]
    page = Evidence(Place("a.md", "a/"))
    inductor.mark([graph], page)
    assert "output of compiler/inductor_code 'unit_rows forward, kernels'" in page.stale


@pytest.mark.parametrize(
    ("different", "message"),
    [
        ({"launches": "{]"}, "unit_rows forward: expected a graph, its kernels and launches"),
        ({"counts": "{}"}, "KeyError 'shape'"),
        ({"kernels": "def broken("}, "SyntaxError"),
        ({"launches": json.dumps(LAUNCHES[1])}, "1 kernels, of which 0 are launched"),
        ({"launches": json.dumps({"name": NAME, "bytes": 1, "binary": {}})}, "expected a launch of each kernel"),
        ({"launches": "", "counts": json.dumps(COUNTS | {"kernels": 0})}, "expected a launch of each kernel"),
    ],
    ids=["no JSON", "no shape", "no Python", "not launched", "launched somehow", "no kernel"],
)
def test_parts_that_do_not_fit_together_are_refused(different: dict, message: str, root: Path):
    with pytest.raises(PublishError, match=message) as raised:
        inductor.captured(store(root, parts(**different)))
    assert "\n" not in str(raised.value)


def test_a_missing_part_is_refused(root: Path):
    contents = parts()
    del contents["counts"]
    with pytest.raises(PublishError, match="got 'unit_rows forward, counts'"):
        inductor.captured(store(root, contents))


def test_parts_of_several_runs_are_refused(root: Path):
    store(root, parts())
    path = printing.path_of(inductor.SCRIPT, "cuda", root / "docs/measurements/captures")
    stored = json.loads(path.read_text())
    stored["runs"].append(stored["runs"][0] | {"commit": "d" * 40})
    stored["sections"][-1]["run"] = 1
    path.write_text(json.dumps(stored))
    with pytest.raises(PublishError, match="expected unit_rows forward of one run, got several"):
        inductor.captured(Captures.load(root / "docs/measurements/captures", root))


def test_graphs_at_one_point_are_refused(root: Path):
    (graph,) = inductor.captured(store(root, parts()))
    other = replace(graph, function="other", launches=())
    with pytest.raises(PublishError, match=r"expected one graph at .*, got those of unit_rows and other"):
        list(inductor.wanted([replace(graph, launches=()), other], root))


def test_a_launch_too_wide_for_a_target_is_left_out_there(root: Path):
    wide = LAUNCHES[0] | {"binary": BINARY | {"options": {"num_warps": 32}}}
    (graph,) = inductor.captured(store(root, parts(launches=json.dumps(wide))))
    assert "sm_90" in graph.targets and "gfx942" not in graph.targets


# ---- compiled again -------------------------------------------------------------------------------------------------

COMPILE = """
import json, sys
from pathlib import Path
from docs.publish.errors import PublishError
from docs.publish.records.captures import Captures
from docs.publish.compiled import compilation, inductor

def compiled(root):
    found = {}
    for point, target, pairs in inductor.wanted(inductor.captured(Captures.load(root / captures, root)), root):
        (made,) = compilation.compiled([usual for usual, _ in pairs])
        found[target] = {"point": [point.direction, dict(point.shape), point.dtype], "key": pairs[0][0].key, **made}
    return found

captures, good, bad = map(Path, sys.argv[1:])
try:
    refused = compiled(bad)
except PublishError as error:
    refused = str(error)
print(json.dumps([compiled(good), refused]))
"""


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Any]:
    """What stored captures become, and others whose signature does not fit, in a process in which Triton compiles."""
    good, bad = (tiny.project(tmp_path_factory.mktemp(name)) for name in ("good", "bad"))
    store(good, parts())
    launch = LAUNCHES[0] | {"binary": BINARY | {"signature": ["*bf16:16"]}}
    store(bad, parts(launches=json.dumps(launch)))
    settings = {"TRITON_INTERPRET": "0", "PYTHONPATH": str(ROOT), "TRITON_CACHE_DIR": str(good / "triton")}
    command = [sys.executable, "-c", COMPILE, "docs/measurements/captures", str(good), str(bad)]
    done = subprocess.run(command, cwd=good, env=os.environ | settings, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found, refused = json.loads(done.stdout)
    return found, refused


def test_a_captured_kernel_is_compiled_for_every_target_as_it_was_launched(compiled: tuple[dict[str, Any], Any]):
    found, _ = compiled
    assert set(found) == set(TARGETS)
    assert len({one["key"] for one in found.values()}) == len(TARGETS)
    assert found["sm_90"]["point"] == ["forward", {"rows": 65536, "columns": 1024}, "bfloat16"]
    facts = found["sm_90"]["facts"]
    assert facts["kernel"] == NAME and facts["warps"] == 4 and facts["spilled"] == 0
    assert facts["loads"] == {"128": 3} and facts["stores"] == {"128": 1}, "the signature says what 16 divides"
    source = parts()["kernels"].splitlines()
    load = next(number for number, line in enumerate(source, 1) if "tl.load(in_ptr1" in line)
    assert f"// line {load}\n" in found["sm_90"]["listings"]["sass"]
    assert set(found["gfx942"]["listings"]) == {"ttir", "ttgir", "amdgcn"}


def test_a_signature_that_does_not_fit_its_kernel_is_refused(compiled: tuple[dict[str, Any], Any]):
    _, refused = compiled
    assert str(refused).startswith("unit_rows forward, captured: signature: expected 7 entries")


# ---- for the viewer -------------------------------------------------------------------------------------------------


def entry(graph: Graph, target: str) -> dict[str, Any]:
    shown = {"options": "4 warps", "values": {"registers": "40"}, "forms": {"ptx": "f/k.sm_90.ptx.txt"}}
    (kernel,) = inductor.entries(graph, "f", {NAME: {target: shown}})
    return kernel


def test_a_triton_kernel_is_an_entry_of_the_viewer(root: Path):
    (graph,) = inductor.captured(store(root, parts()))
    kernel, files = entry(graph, "sm_90"), inductor.files(graph, "f")
    assert (kernel["name"], kernel["maker"]) == (NAME, "torch.compile")
    last = kernel["source"]["last"]
    assert kernel["source"] == {"form": "triton", "url": "f/inductor.py.txt", "line": 6, "last": last}
    lines = files["f/inductor.py.txt"].splitlines()
    assert lines[5] == "@triton.jit" and lines[last - 1].startswith("    tl.store(out_ptr1")
    assert not any(line.startswith(" ") for line in lines[last : last + 1]), "the function goes on"
    made = kernel["targets"]["sm_90"]
    assert made["forms"] == {"graph": "f/inductor.graph.txt", "ptx": "f/k.sm_90.ptx.txt"}
    assert files["f/inductor.graph.txt"] == parts()["graph"]
    assert made["options"] == "4 warps"
    assert made["values"] == {"registers": "40", "launches": "2", "bytes": "403 MB"}
    assert made["notes"] == [
        "The forward runs 1 generated kernel and PyTorch's own aten.sum.dim_IntList.",
        "Inductor counts 403 MB for the graph; the tensors that its launches get add up to 537 MB.",
        "On NVIDIA H100 Inductor chose XBLOCK 1, 4 warps: the fastest of 2 that Inductor tried. The binary that ran "
        "there has 40 registers and no spills.",
    ]
    assert json.loads(json.dumps(kernel)) == kernel


def test_another_gpu_is_not_told_what_ran_on_the_captured_one(root: Path):
    (graph,) = inductor.captured(store(root, parts()))
    *_, last = entry(graph, "gfx942")["targets"]["gfx942"]["notes"]
    assert "On this GPU it might choose otherwise" in last and "registers" not in last


@pytest.mark.parametrize(
    ("machine", "target"), [("NVIDIA H100", "sm_90"), ("NVIDIA A100-SXM4-80GB", "sm_80"), ("T4", None)]
)
def test_a_gpu_is_a_target_by_its_name(machine: str, target: str | None):
    assert inductor.target_of(machine) == target


# ---- C++ ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Path]:
    """A folder in which C++ is kept, with copies of what it is made by."""
    for name in (path.relative_to(ROOT) for path in inductor.built_from(ROOT)):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text((ROOT / name).read_text())
    yield tmp_path


def test_cpp_is_made_here():
    graphs = inductor.fresh()
    assert [graph.point[0] for graph in graphs] == ["forward", "backward", "forward"]
    for graph in graphs:
        (kernel,) = inductor.entries(graph, "cpu")
        files = inductor.files(graph, "cpu")
        made = kernel["targets"]["cpu"]
        assert kernel["source"]["form"] == "graph" and files[kernel["source"]["url"]].startswith("def forward(")
        assert kernel["source"]["last"] == len(files[kernel["source"]["url"]].splitlines())
        assert files[made["forms"]["cpp"]].startswith("#include <torch/csrc/inductor/cpp_prefix.h>")
        assert made["values"]["launches"] == "1" and kernel["maker"] == "torch.compile"
        assert "when this site was built" in kernel["provenance"]


def test_cpp_is_kept_until_the_snippet_changes(here: Path, monkeypatch: pytest.MonkeyPatch):
    runs = []
    sections = "".join(
        f"==== unit_rows forward, {part}\n{content}"
        for part, content in parts(
            kernels="// cpp_fused_0\n#include <a>\n\n// cpp_fused_1\n#include <b>\n",
            launches="".join(json.dumps({"name": f"cpp_fused_{n}", "bytes": 1, "binary": {}}) + "\n" for n in (0, 1)),
            counts=json.dumps(COUNTS | {"kernels": 2}),
        ).items()
    )
    made = printing.sections(sections)
    monkeypatch.setattr(printing, "printed", lambda script, device: runs.append((script, device)) or made)
    first, again = inductor.fresh(here), inductor.fresh(here)
    assert first == again and runs == [("compiler/inductor_code", "cpu")]
    assert [kernel["name"] for kernel in inductor.entries(first[0], "f")] == ["cpp_fused_0", "cpp_fused_1"]
    snippet = here / printing.source_of(inductor.SCRIPT)
    snippet.write_text("# a comment\n" + snippet.read_text())
    inductor.fresh(here)
    assert len(runs) == 1
    snippet.write_text(snippet.read_text() + "\nprint(1)\n")
    inductor.fresh(here)
    assert len(runs) == 2 and len(list((here / inductor.FOLDER).iterdir())) == 1, "what is old is removed"


def test_a_machine_without_a_compiler_is_told(here: Path, monkeypatch: pytest.MonkeyPatch):
    def fail(script: str, device: str) -> dict[str, str]:
        raise RuntimeError("python -m snippets.compiler.inductor_code: no C++ compiler")

    monkeypatch.setattr(printing, "printed", fail)
    with pytest.raises(PublishError, match=r"C\+\+ cannot be made here: .*no C\+\+ compiler"):
        inductor.fresh(here)
