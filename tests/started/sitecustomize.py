"""For each process that a test starts, before all else: objects that torch makes and keeps are not gone through for
garbage while it is imported, nor when the process ends. That takes a third of what a process takes that does no more.
Where vectors are turned off, Inductor does not compile programs to try them: three, in each empty cache folder.

tests/conftest.py puts this folder on PYTHONPATH. With -I or -S a process does without it.
"""

import atexit
import gc
import os
import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec

gc.set_threshold(50_000, 20, 50)  # as tests/forked.py has it
atexit.register(gc.freeze)  # registered first, it runs last
if os.environ.get("ATEN_CPU_CAPABILITY") == "default":
    os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "0")

here = os.path.dirname(os.path.abspath(__file__))
sys.path[:] = [path for path in sys.path if os.path.abspath(path or ".") != here]  # nothing of ours is found
hidden = PathFinder.find_spec("sitecustomize")  # the one that this stands in front of
if hidden and hidden.loader:
    sys.modules["sitecustomize"] = module_from_spec(hidden)
    hidden.loader.exec_module(sys.modules["sitecustomize"])
