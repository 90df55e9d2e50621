"""A Triton kernel stands alone."""

import importlib.util
from pathlib import Path

import triton
from triton.runtime.interpreter import InterpretedFunction

from snippets.compiler.inductor_code_standalone import standalone

TRITON = """
import triton
import triton.language as tl

from torch._inductor.runtime import triton_helpers, triton_heuristics
from torch._inductor.runtime.triton_helpers import libdevice, math as tl_math
from torch._inductor.runtime.hints import AutotuneHint, ReductionHint, TileHint, DeviceProperties
triton_helpers.set_driver_to_gpu()

@triton_heuristics.pointwise(
    size_hints={'x': 4096},
    triton_meta={'device': DeviceProperties(type='cuda')},
)
@triton.jit
def triton_poi_fused_rsqrt_0(in_ptr0, out_ptr0, xnumel, XBLOCK : tl.constexpr):
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:]
    tl.store(out_ptr0 + (xindex), libdevice.rsqrt(tl.load(in_ptr0 + (xindex), None)), None)  # a comment
"""


def test_a_triton_kernel_stands_alone(tmp_path: Path):
    text = standalone({"one": TRITON, "two": TRITON})
    assert text.startswith("import triton\nimport triton.language as tl\n")
    assert "triton_heuristics" not in text and "set_driver" not in text and "DeviceProperties" not in text
    assert "libdevice" in text and "tl_math" not in text, "only what is used is imported"
    assert text.count("@triton.jit") == 1 and "# a comment" in text, "once, and as it was written"
    path = tmp_path / "kernels.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location("standalone_kernels", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    kernel = module.triton_poi_fused_rsqrt_0
    assert isinstance(kernel, (triton.JITFunction, InterpretedFunction))
