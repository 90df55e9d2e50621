"""Programs finish in any order, however few multiprocessors they get, and beside other streams."""

import random

import pytest
import torch

from tests.kernels import starving
from tests.kernels.promises.inputs import GPU, needs_gpu
from tests.kernels.promises.stated import Stated


class Concurrency(Stated):
    @pytest.mark.skipif(GPU, reason="a GPU starts programs in an order of its own")
    @pytest.mark.parametrize("order", ("reversed", "random"))
    def test_programs_may_start_in_any_order(self, order, path, device):
        from tests.kernels import interpreter

        if not self.WAITING and path != self.PATHS[0]:
            pytest.skip("no program waits for another: one path is enough")
        arguments = self.make((3, path), torch.bfloat16, device)
        expected = self.run(self.function, arguments)

        def numbers(count):
            return (
                list(reversed(range(count)))
                if order == "reversed"
                else random.Random(count).sample(range(count), count)
            )

        with interpreter.programs_in(numbers):
            self.assert_equal(self.run(self.function, arguments), expected)

    @needs_gpu
    @pytest.mark.parametrize("free", (16, 2, 1))
    def test_finishes_where_few_multiprocessors_are_free(self, free, device):
        """To the bit: whoever has to wait for long does the others' work, in the same order."""
        lengths = {*self.PATHS, *self.GRID[-5:], *self.WAITING}
        inputs = [self.make((rows, columns), torch.bfloat16, device) for columns in lengths for rows in (1, 40)]

        def runs():
            return [
                starving.finished(lambda arguments=arguments: self.run(self.function, arguments))
                for arguments in inputs
            ]

        expected = runs()  # and all is compiled, loaded and allocated
        with starving.all_but(free):
            ours = runs()
        for arguments, once, again in zip(inputs, expected, ours, strict=True):
            assert again is not None, f"{list(arguments[0].shape)} did not finish"
            self.assert_equal(again, once)

    @needs_gpu
    def test_streams_of_mixed_priorities(self, device):
        if not self.WAITING:
            pytest.skip("no program waits for another")
        inputs = [
            self.make((64, columns), torch.bfloat16, device, seed=seed) for seed in range(6) for columns in self.WAITING
        ]
        starving.on_streams([lambda arguments=arguments: self.function(*arguments) for arguments in inputs], 600)
