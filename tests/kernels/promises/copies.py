"""The file works as one copy of several in a process, and wherever it is imported: no default changes it."""

import contextlib
import importlib.util
import itertools
from collections.abc import Iterator

import torch

from tests.kernels import compiled
from tests.kernels.promises.inputs import SOME
from tests.kernels.promises.stated import Stated

COPIES = itertools.count()


class Copies(Stated):
    @contextlib.contextmanager
    def copied(self) -> Iterator[None]:
        """With another copy of the file, just imported."""
        name = f"another_package_{next(COPIES)}.{self.name}"  # operators have names, and stay
        spec = importlib.util.spec_from_file_location(name, self.kernel.__file__)
        copy = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(copy)
        original, self.kernel = self.kernel, copy
        try:
            yield
        finally:
            self.kernel = original

    def test_another_copy_of_the_file_in_the_same_process(self, device):
        """As where two packages both carry it."""
        arguments = self.make((3, 100), torch.float32, device)
        expected = self.run(self.function, arguments)
        with self.copied():
            self.assert_equal(self.run(self.function, arguments), expected)

    def test_default_dtype_and_device_change_nothing(self, path, device):
        """Not a bit."""
        arguments = self.make((SOME, path), torch.float32, device)
        expected = self.run(self.function, arguments)
        grads = self.incoming([expected[name] for name in self.outputs])
        with self.other_defaults(), self.copied():
            self.assert_equal(self.run(self.function, arguments, grads), expected)

    def test_default_dtype_and_device_change_no_launch(self, path):
        """What a kernel gets, where the bits may hide it."""
        arguments = self.make((SOME, path), torch.float32, torch.device("cpu"))
        dtypes, grads = [], None
        for defaults in (contextlib.nullcontext, self.other_defaults):
            with defaults(), self.copied(), compiled.recording(self.kernel, "sm_90") as launches:
                results = self.run(self.function, arguments, grads)
            grads = self.incoming([results[name] for name in self.outputs])
            dtypes.append([[getattr(t, "dtype", None) for t in launch.arguments] for launch in launches])
        assert dtypes[0] and dtypes[0] == dtypes[1]

    @contextlib.contextmanager
    def other_defaults(self) -> Iterator[None]:
        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.bfloat16)
        try:
            with torch.device("meta"):
                yield
        finally:
            torch.set_default_dtype(before)
