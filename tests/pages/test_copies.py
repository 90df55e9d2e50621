"""A kernel file stands alone, so it has its own copy of what others have too: copies stay equal, word for word.

What several files define under one name is one definition, but for WORK. A kernel with another one says so in OWN of
its tests, tests/kernels/test_<kernel>.py: names, with the kernel that it has them from, or why they are its own.
"""

import ast
import re
from itertools import combinations

import pytest

from tests.benchmarks.source import ROOT

KERNELS = sorted(file.stem for file in (ROOT / "kernels").glob("[!_]*.py"))
WORK = re.compile(r"_(forward|FORWARD|backward|BACKWARD)(?!_op)\w*|_differentiable|_AUTOCAST|_load")
Named = dict[str, dict[str, str]]  # by kernel and name


def definitions(kernel: str) -> dict[str, str]:
    """What a kernel file defines, as code without comments, with its own names replaced."""
    text = (ROOT / "kernels" / f"{kernel}.py").read_text(encoding="utf-8")
    function = re.search(r"^class (_\w+)\(torch\.autograd\.Function\)", text, re.MULTILINE)
    assert function, kernel
    found = {}
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found[node.name] = ast.unparse(node)
        elif isinstance(node, ast.Assign):
            found[ast.unparse(node.targets[0]).replace(" ", "")] = ast.unparse(node)
    own = rf"\b{function[1]}\b|(?<![a-z]){kernel.removesuffix('_cuda')}"
    return {name: re.sub(own, "KERNEL", code) for name, code in found.items()}


def said(kernel: str) -> dict[str, str]:
    """What the kernel's tests say of each name: another kernel, or a reason."""
    tests = ast.parse((ROOT / "tests" / "kernels" / f"test_{kernel}.py").read_text(encoding="utf-8"))
    own = (node.value for node in tests.body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "OWN")
    return {name: why for names, why in ast.literal_eval(next(own, ast.Dict([], []))).items() for name in names.split()}


DEFINED: Named = {kernel: definitions(kernel) for kernel in KERNELS}
SAID: Named = {kernel: said(kernel) for kernel in KERNELS}


def wrong(defined: Named, says: Named) -> list[str]:
    """Pairs of files that should have one definition and have two, or the other way round."""

    def origin(kernel: str, name: str) -> str:
        """The kernel whose definition it is; "" where it is that of all."""
        other = says[kernel].get(name, kernel if WORK.fullmatch(name) else "")
        return other if other in ("", *defined) else kernel

    return [
        f"{name}: {one} and {other}"
        for one, other in combinations(defined, 2)
        for name in defined[one].keys() & defined[other].keys()
        if (defined[one][name] == defined[other][name]) != (origin(one, name) == origin(other, name))
    ]


def test_a_name_means_the_same_in_every_kernel_file():
    found = sorted(wrong(DEFINED, SAID))
    assert not found, f"expected equal definitions, or others as OWN of the kernels' tests says: {found}"


def test_what_a_kernel_says_of_its_own_definitions_is_needed():
    """A name that no other file has any more needs no reason."""
    known = [name for defined in DEFINED.values() for name in defined]
    lost = [f"{it}: {name}" for it in KERNELS for name in SAID[it] if name not in DEFINED[it] or known.count(name) < 2]
    assert not lost


@pytest.mark.parametrize(
    ("kernel", "name"),
    [("softmax", "_device"), ("swiglu_cuda", "_Once"), ("layer_norm_gelu", "_load"), ("rms_norm", "_EPS")],
)
def test_a_copy_that_is_changed_is_found(kernel: str, name: str):
    """One of all, one of some, and one of two, also of what else is every kernel's own: beside each of its copies."""
    code = DEFINED[kernel][name]
    others = {other for other in KERNELS if other != kernel and DEFINED[other].get(name) == code}
    found = wrong(DEFINED | {kernel: DEFINED[kernel] | {name: f"{code}  # changed"}}, SAID)
    pairs = [{*line.removeprefix(f"{name}: ").split(" and ")} for line in found if line.startswith(f"{name}: ")]
    assert others and [pair - {kernel} for pair in pairs] == [{other} for other in KERNELS if other in others]
