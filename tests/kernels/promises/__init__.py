"""What every kernel in kernels/ promises. A test file states its function in a subclass and inherits the tests.

A file for each purpose: `results`, `layouts`, `gradients`, `refusals`, `compilation`, `recording`, `copies`,
`concurrency`, `launches`. What a subclass states is in `stated`, the arguments of tests are made in `inputs`.

The conftest beside this folder gives `columns` the values of the class's GRID, and `path` those of its PATHS.
"""

from tests.kernels.promises.compilation import Compilation
from tests.kernels.promises.concurrency import Concurrency
from tests.kernels.promises.copies import Copies
from tests.kernels.promises.gradients import Gradients
from tests.kernels.promises.inputs import (
    DTYPES,
    GPU,
    NO_LAYER_NORM,
    SOME,
    largest_partial_sum,
    needs_gpu,
    placed,
    randn,
    strided,
)
from tests.kernels.promises.launches import Launches
from tests.kernels.promises.layouts import Layouts
from tests.kernels.promises.recording import Recording
from tests.kernels.promises.refusals import Refusals
from tests.kernels.promises.results import Results

__all__ = (
    "DTYPES", "GPU", "NO_LAYER_NORM", "SOME", "Promises", "largest_partial_sum", "needs_gpu", "placed", "randn",
    "strided",
)  # fmt: skip


class Promises(Launches, Concurrency, Copies, Recording, Compilation, Refusals, Gradients, Layouts, Results):
    """Subclass as TestNAME and state what the kernel is: the attributes and methods of `stated.Stated`.

    The bases stand in reverse, since pytest begins with the tests of the last one.
    """
