"""A model to serve, built into a package with a dynamic batch, and what is in that package."""

import re
import zipfile
from pathlib import Path

import torch
from torch import Tensor, nn

from snippets.compiler.compile_time_model import SIZES, Block, Size, Stack

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SIZE = SIZES[DEVICE]
LAYERS = 16 if DEVICE == "cuda" else 2
MOST = 64  # sequences in a batch


# --8<-- [start:model]
class Served(nn.Module):
    """Layers of a decoder, and a learned scale."""

    def __init__(self, layers: int, size: Size) -> None:
        super().__init__()
        self.stack = Stack([Block(size.width, size.heads) for _ in range(layers)])
        self.scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, x: Tensor) -> Tensor:
        return self.stack(x) * self.scale


def make_model() -> Served:
    with torch.device(SIZE.device):
        return Served(LAYERS, SIZE).to(SIZE.dtype).eval()


def make_input(batch: int = 2) -> Tensor:
    return torch.randn(batch, SIZE.tokens, SIZE.width, device=SIZE.device, dtype=SIZE.dtype)


# --8<-- [end:model]
# --8<-- [start:build]
def build(model: nn.Module, path: Path) -> torch.export.ExportedProgram:
    """Export with a batch that stays dynamic, compile, and write one file."""
    with torch.no_grad():
        program = torch.export.export(
            model, (make_input(),), dynamic_shapes={"x": {0: torch.export.Dim("batch", min=1, max=MOST)}}
        )
    torch._inductor.aoti_compile_and_package(program, package_path=str(path))
    return program


# --8<-- [end:build]
def contents(path: Path) -> None:
    """The files of a package, with their hashes left out, and for which machine it is."""
    wrapper = ""
    with zipfile.ZipFile(path) as package:
        for entry in package.infolist():
            _, _, name = entry.filename.partition("/")
            folder, _, file = name.rpartition("/")
            kind = re.sub(r"^c[a-z2-7]{50,}", "*", file)
            print(f"{entry.file_size / 1e3:>9.1f} KB  {folder + '/' if folder else ''}{kind}")
            if kind == "*.wrapper.cpp":
                wrapper = package.read(entry).decode()
    print(f"compiled for this machine's processor: {'yes' if '-march=native' in wrapper else 'no'}")
    metadata = torch._inductor.aoti_load_package(str(path)).get_metadata()
    for key in ("AOTI_PLATFORM", "AOTI_MACHINE", "AOTI_DEVICE_KEY", "AOTI_CPU_ISA", "AOTI_COMPUTE_CAPABILITY"):
        print(f"{key}: {metadata[key] or '-'}")
