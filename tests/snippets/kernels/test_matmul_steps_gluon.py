"""The step in Gluon: right on an H100, refused elsewhere, and compiled anywhere: its code is what the page says."""

import functools
import json
import os
import re
import subprocess
import sys
from unittest import mock

import pytest
import torch
import triton
from triton.experimental.gluon._runtime import GluonASTSource
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from snippets.kernels import matmul_steps_gluon
from snippets.kernels.matmul_steps_gluon import gluon
from snippets.validation.compiled_code import compile_for, facts, machine_code
from tests.benchmarks.source import ROOT
from tests.snippets.kernels.test_matmul_steps import product

READ = ("tests/forked.py",)  # the script runs in it
DTYPES = ("bfloat16", "float16")
HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability()[0] == 9
on_hopper = pytest.mark.skipif(not HOPPER, reason="needs an H100 or H200")


# ---- on a GPU -------------------------------------------------------------------------------------------------------

SHAPES = (  # M, K, N
    (128, 64, 256),  # one tile, one round
    (384, 64 * 4, 512),  # a round for each stage
    (384, 64 * 5, 512),  # and one more: the ring turns within a tile
    (17 * 128, 64 * 7, 768),  # a last group of one row of tiles
    (20 * 128, 64 * 3, 2560),  # more tiles than SMs, and the ring turns from one tile to the next
)


@on_hopper
@pytest.mark.parametrize("dtype", (torch.float16, torch.bfloat16), ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_it_is_right(shape, dtype):
    product(gluon, *shape, dtype)


@on_hopper
@pytest.mark.parametrize("programs", (1, 2, 5, 100))
def test_any_number_of_programs_shares_the_tiles(programs, monkeypatch):
    monkeypatch.setattr(matmul_steps_gluon, "multiprocessors", lambda _: programs)
    product(gluon, 384, 320, 768, torch.bfloat16)


@on_hopper
def test_each_run_gives_the_same_bits():
    """A stage that is overwritten too early, or read too early, would give others now and then."""
    a, b = (torch.randn(2560, 2560, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    first = gluon(a, b)
    for _ in range(50):
        assert torch.equal(gluon(a, b), first)


@on_hopper
def test_a_cuda_graph_holds_it():
    a, b = (torch.randn(1024, 1024, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    expected = gluon(a, b)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        c = gluon(a, b)
    c.fill_(float("nan"))
    graph.replay()
    assert torch.equal(c, expected)


# ---- without one ----------------------------------------------------------------------------------------------------


def test_what_it_does_not_take():
    a, b = (torch.zeros(*shape, dtype=torch.bfloat16) for shape in ((128, 64), (64, 256)))
    with pytest.raises(ValueError, match=r"^a: expected a tensor on an H100 or H200, got one on cpu$"):
        gluon(a, b)
    with pytest.raises(ValueError, match="expected M, N, K that are multiples of 128, 256, 64"):
        gluon(a[:100], b)
    with pytest.raises(ValueError, match="a: expected a contiguous matrix in"):
        gluon(a.float(), b.float())


def test_the_script_says_what_it_needs(script):
    done = script("snippets.kernels.matmul_steps_gluon")
    said = "gluon: as torch.mm" if HOPPER else "matmul_steps_gluon.py: expected an H100 or H200, found none"
    assert (done.returncode, done.stdout) == (0, f"{said}\n"), done.stderr


def source_of(dtype: torch.dtype) -> tuple[GluonASTSource, dict[str, int]]:
    """What a launch compiles, and its options; nothing runs. 16 divides every size."""
    launches = []
    a, b = (torch.empty(512, 512, dtype=dtype) for _ in range(2))

    def run(_, *arguments, grid, warmup, **options):
        launches.append((arguments, options))

    with (
        mock.patch.object(matmul_steps_gluon, "capability", lambda _: 9),
        mock.patch.object(triton.JITFunction, "run", run),
    ):
        gluon(a, b)
    ((arguments, options),) = launches
    kernel, name = matmul_steps_gluon.gluon_kernel, {torch.bfloat16: "bf16", torch.float16: "fp16"}[dtype]
    types, constants, attributes = {}, {}, {}
    for index, (parameter, value) in enumerate(zip(kernel.params, arguments, strict=True)):
        if parameter.is_constexpr:
            types[parameter.name], constants[(index,)] = "constexpr", value
        elif isinstance(value, TensorDescriptor):
            types[parameter.name] = f"tensordesc<{name}{value.block_shape},{value.layout!r}>"
        else:
            types[parameter.name], attributes[(index,)] = "i32", [["tt.divisibility", 16]]
    return GluonASTSource(kernel, types, constants, attributes), options


def compiled(dtype: torch.dtype) -> dict[str, object]:
    source, options = source_of(dtype)
    kernel, _ = compile_for(source, "sm_90", **options)
    known = facts(kernel, "sm_90")
    return {
        "ptx": kernel.asm["ptx"], "sass": [line.text for line in machine_code(kernel) if line.opcode],
        "spilled": known.spilled, "shared": known.shared,
    }  # fmt: skip


@functools.cache
def compiled_elsewhere() -> dict[str, dict]:
    """By dtype, of a process of its own: Triton compiles nothing while it interprets."""
    done = subprocess.run(
        [sys.executable, "-m", __name__],
        cwd=ROOT, env={**os.environ, "TRITON_INTERPRET": "0"}, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module", params=DTYPES)
def code(request) -> dict:
    return compiled_elsewhere()[request.param]


def blocks(ptx: str) -> dict[str, str]:
    """The kernel's basic blocks by their labels, in their order."""
    parts = re.split(r"^(\$L__BB\w+):", ptx, flags=re.MULTILINE)
    return dict(zip(["", *parts[1::2]], parts[0::2], strict=True))


def reached(ptx: str, start: str) -> str:
    """The text of all blocks that one leads to, by jumps or by going on, and of it."""
    every = blocks(ptx)
    names = list(every)
    found, waiting = [], [start]
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        found.append(name)
        waiting += [label for label in re.findall(r"bra(?:\.uni)?\s+(\$L__BB\w+)", every[name]) if label in every]
        code = [line.strip() for line in every[name].splitlines() if re.match(r"\s*[^\s/.]", line)]
        if not code[-1].startswith(("bra", "brx", "ret")):
            waiting += names[names.index(name) + 1 :][:1]
    return "".join(every[name] for name in found)


LOAD = ".global.mbarrier::complete_tx::bytes"  # Triton 3.6 says shared::cluster before it, 3.7 shared::cta
STORE = "cp.async.bulk.tensor.2d.global.shared::cta"
MULTIPLY = "wgmma.mma_async"


def test_only_the_producer_loads_and_only_the_consumer_multiplies(code):
    (loads,) = [label for label, text in blocks(code["ptx"]).items() if LOAD in text]
    (multiplies,) = [label for label, text in blocks(code["ptx"]).items() if MULTIPLY in text]
    producer, consumer = reached(code["ptx"], loads), reached(code["ptx"], multiplies)
    assert producer.count(LOAD) == 1 + 4 and not producer.count(MULTIPLY) + producer.count(STORE)  # b in boxes of 64
    assert consumer.count(MULTIPLY) == 4 == consumer.count(STORE) and not consumer.count(LOAD)
    assert not re.search(r"\b(ld|st)\.global", code["ptx"])


def test_a_wgmma_computes_while_the_loop_goes_on(code):
    (loop,) = [text for text in blocks(code["ptx"]).values() if MULTIPLY in text]
    waits = re.findall(r"wgmma\.wait_group\.sync\.aligned\s+(\d)", code["ptx"])
    assert re.findall(r"wgmma\.wait_group\.sync\.aligned\s+(\d)", loop) == ["1"] and sorted(waits) == ["0", "1"]
    sass = "\n".join(code["sass"])
    assert sass.count("HGMMA") == 4 and re.findall(r"WARPGROUP\.DEPBAR\.LE gsb0, 0x(\d)", sass) == ["1", "0"]


def test_a_stage_is_freed_after_all_eight_warps(code):
    """One thread frees it for two groups of four warps, each of which waits for its own wgmma."""
    between = re.findall(r"wgmma\.wait_group(.*?)mbarrier\.arrive\.shared", code["ptx"], re.DOTALL)
    assert len(between) == 2 and all(re.search(r"bar\.sync\s+0, 256;", text) for text in between)


def test_the_consumer_takes_registers_of_the_producer_and_spills_none(code):
    """At first 168 for each thread of three groups of four warps; the last group is the producer's."""
    changes = [(how, int(to)) for how, to in re.findall(r"setmaxnreg\.(\w+)\S*\s+(\d+)", code["ptx"])]
    assert changes[:2] == [("inc", 240), ("dec", 232)]  # what the consumer has before its work and during it
    assert {to for how, to in changes[2:] if how == "inc"} == {40, 240}  # the producer's, and after the work
    assert 2 * 232 + 40 == 3 * 168
    assert code["spilled"] == 0 and not re.search(r"\b(LDL|STL)\b", "\n".join(code["sass"]))
    assert code["shared"] <= 227 * 1024 < code["shared"] + 48 * 1024  # no room for a fifth stage


if __name__ == "__main__":
    print(json.dumps({dtype: compiled(getattr(torch, dtype)) for dtype in DTYPES}))
