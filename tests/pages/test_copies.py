"""A kernel file stands alone, so it has its own copy of what others have too: copies stay equal, word for word.

A group of COPIES is changed together. A file that needs something else leaves the group, on purpose.
"""

import ast
import re
from functools import cache
from pathlib import Path

KERNELS = Path(__file__).parents[2] / "kernels"
ALL = frozenset(file.stem for file in KERNELS.glob("[!_]*.py"))
CUDA = frozenset(name for name in ALL if name.endswith("_cuda"))


def of(files: str) -> frozenset[str]:
    return frozenset(files.split())


RMS, WITH_BIAS, SPLIT = of("rms_norm add_rms_norm"), of("layer_norm layer_norm_gelu"), of("layer_norm softmax")
GELU, GATED = of("layer_norm_gelu layer_norm_gelu_cuda"), of("swiglu swiglu_cuda")
NORMS = RMS | WITH_BIAS
# by name, the files whose definitions are equal, but for the name of the kernel itself
COPIES: dict[str, tuple[frozenset[str], ...]] = {
    "(_MOST_ROWS, _MOST_COLUMNS)": (NORMS,),
    "(_compiling, _tracing)": (ALL,),
    "(_modes, _included)": (ALL,),
    "(_transforms, _Transform)": (ALL,),
    "_AUTOCAST": (of("layer_norm rms_norm"), GELU),
    "_BACKWARD": (GELU, GATED),
    "_DTYPES": (ALL,),
    "_EPS": (RMS,),
    "_FORWARD": (GELU, GATED),
    "_Gated": (GATED,),
    "_INTERPRETED": (ALL - of("layer_norm_gelu_cuda rope swiglu_cuda"),),
    "_LayerNormGELU": (GELU,),
    "_MOST": (of("rope swiglu swiglu_cuda"),),
    "_MOST_ROWS": (of("cross_entropy softmax softmax_dropout"),),
    "_NUMBER": (of("add_rms_norm layer_norm layer_norm_gelu layer_norm_gelu_cuda rms_norm softmax_dropout"),),
    "_ONCE": (ALL - GATED, GATED),
    "_Once": (
        of("add_rms_norm layer_norm layer_norm_gelu layer_norm_gelu_cuda rms_norm rope"),
        of("cross_entropy softmax softmax_dropout"),
        GATED,
    ),
    "_PRE_DISPATCH": (ALL,),
    "_PTX": (SPLIT,),
    "_SOURCE": (CUDA,),
    "_Slots": (CUDA,),
    "_alone": (RMS,),
    "_apply": (ALL,),
    "_autocast": (ALL - GATED - of("rope"),),
    "_backward_fake": (GELU, GATED),
    "_backward_launch": (RMS,),
    "_backward_op": (ALL,),
    "_by_nvcc": (CUDA,),
    "_checked": (
        of("add_rms_norm layer_norm layer_norm_gelu layer_norm_gelu_cuda rms_norm softmax softmax_dropout"),
        GATED,
    ),
    "_contiguous": (WITH_BIAS,),
    "_cubin": (CUDA,),
    "_device": (ALL - CUDA,),
    "_differentiable": (GELU, GATED),
    "_done": (CUDA,),
    "_eager_forward": (ALL,),
    "_ensure_context": (CUDA,),
    "_forward_fake": (GELU,),
    "_forward_op": (ALL,),
    "_gradient": (of("layer_norm layer_norm_gelu layer_norm_gelu_cuda"),),
    "_grad_enabled": (ALL,),
    "_is_missing": (SPLIT,),
    "_lanes": (SPLIT,),
    "_library": (ALL,),
    "_load": (WITH_BIAS,),
    "_marked": (WITH_BIAS,),
    "_name": (GATED,),
    "_namespace": (ALL,),
    "_nested": (of("layer_norm layer_norm_gelu layer_norm_gelu_cuda rms_norm"), of("softmax softmax_dropout"), GATED),
    "_options": (of("add_rms_norm rms_norm rope softmax_dropout swiglu"), SPLIT),
    "_parts": (SPLIT,),
    "_prefetch": (SPLIT,),
    "_recorded_backward": (ALL,),
    "_refuse_transforms": (ALL - GATED, GATED),
    "_refuse_parameter": (NORMS | GELU,),
    "_row_launch": (RMS,),
    "_rows": (ALL - of("cross_entropy rope softmax"),),
    "_slots": (CUDA,),
    "_sum_launch": (RMS,),
    "_sum_shares_kernel": (RMS, WITH_BIAS),
    "_unmarked": (WITH_BIAS,),
    "_unpacked": (of("add_rms_norm layer_norm rms_norm"),),
    "_wrong_type": (ALL,),
    "geglu": (GATED,),
}


@cache
def definitions(file: str) -> dict[str, str]:
    """What a kernel file defines, as code without comments, with its own names replaced."""
    text = (KERNELS / f"{file}.py").read_text(encoding="utf-8")
    function = re.search(r"^class (_\w+)\(torch\.autograd\.Function\)", text, re.MULTILINE)
    assert function, file
    found = {}
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found[node.name] = ast.unparse(node)
        elif isinstance(node, ast.Assign):
            found[ast.unparse(node.targets[0])] = ast.unparse(node)
    own = rf"\b{function[1]}\b|(?<![a-z]){file.removesuffix('_cuda')}"
    return {name: re.sub(own, "KERNEL", code) for name, code in found.items()}


def test_copies_are_equal():
    wrong = []
    for name, groups in COPIES.items():
        for first, *others in map(sorted, groups):
            expected = definitions(first).get(name, "none")
            wrong += [f"{name}: {other} and {first}" for other in others if definitions(other).get(name) != expected]
    assert not wrong, f"expected equal definitions, got others in {wrong}"


def test_a_definition_that_two_files_share_stands_in_the_list():
    """So that whoever copies one more is told to keep it equal."""
    missing = []
    for name in sorted(set().union(*(definitions(file) for file in ALL))):
        having = [file for file in sorted(ALL) if name in definitions(file)]
        listed = COPIES.get(name, ())
        for file in having:
            same = {other for other in having if definitions(other)[name] == definitions(file)[name]}
            if len(same) > 1 and not any(same <= group for group in listed):
                missing.append(f"{name}: {', '.join(sorted(same))}")
    assert not missing, sorted(set(missing))
