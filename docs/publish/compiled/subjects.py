"""What the viewer is about: kernel files and the compiler's page, at points, for targets, in forms."""

import triton

from docs.publish.compiled import inductor
from docs.publish.place import kernel_files
from docs.publish.records.captures import Captures

MADE = f"Triton {triton.__version__}"
TARGETS = {"sm_80": "A100", "sm_90": "H100, H200", "sm_100": "B200", "gfx942": "MI300X", "cpu": "this build's CPU"}
FORMS = {"python": "Python", "cuda": "CUDA C++", "graph": "FX graph", "triton": "Inductor's Triton", "ttir": "TTIR",
         "ttgir": "TTGIR", "ptx": "PTX", "sass": "SASS", "amdgcn": "AMDGCN", "cpp": "Inductor's C++"}  # fmt: skip
COMPILER_PAGE = "what-compile-does"  # beside the kernel files
COMPILER_FUNCTION = "unit_rows"  # of that page
Point = tuple[str, str, str]  # direction, size, dtype


def names() -> list[str]:
    """What there is an explorer for: each kernel file, and the compiler's page."""
    return [*kernel_files(), COMPILER_PAGE]


def title_of(name: str) -> str:
    return f"kernels/{name}.py" if name in kernel_files() else "torch.compile"


def configuration_of(point: Point) -> str:
    """The id of a point, which is the folder of its listings: "forward-32768x4096", "forward-geglu-32768x4096"."""
    return "-".join(point[:2]).replace(" ", "-")


def graphs_of(captures: Captures, name: str) -> list[inductor.Graph]:
    """What torch.compile made of the same function.

    Raises:
        PublishError: a capture does not fit, or C++ cannot be made.
    """
    captured = inductor.captured(captures)
    if name == COMPILER_PAGE:
        return [graph for graph in [*captured, *inductor.fresh()] if graph.function == COMPILER_FUNCTION]
    return [graph for graph in captured if graph.function == name]
