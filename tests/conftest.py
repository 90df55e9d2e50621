"""Settings that must stand before a test imports Triton or compiles anything."""

import os
from pathlib import Path

import torch

ROOT = Path(__file__).parents[1]

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")
os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(ROOT / ".cache" / "inductor"))  # a first torch.compile is slow
