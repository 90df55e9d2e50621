"""Bounds that docs/pages/compiler/inductor-code.md names; it has no case."""

from tests.benchmarks.bounds import bound


@bound("MB", rows=65536, columns=1024, width=2)
def passed(rows: float, columns: float, width: float) -> float:
    """The bytes of two tensors read, one written, and the bias."""
    return (3 * rows + 1) * columns * width
