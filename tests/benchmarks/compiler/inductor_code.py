"""Bounds that docs/pages/compiler/inductor-code.md names; it has no case."""

from tests.benchmarks.bounds import bound

# The bytes of two tensors read, one written, and the bias.
passed = bound("MB", "(3 * rows + 1) * columns * width", rows=65536, columns=1024, width=2)
