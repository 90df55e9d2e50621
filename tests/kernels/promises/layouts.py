"""Tensors may lie in memory as they like: any strides, nested, more elements than 32 bits count."""

import pytest
import torch

from tests.benchmarks.sides import tupled
from tests.kernels.promises.inputs import needs_gpu, strided
from tests.kernels.promises.stated import Stated

STRIDES = ("rows of a wider tensor", "every other row", "every other column", "transposed", "one row expanded",
           "one number expanded")  # fmt: skip


class Layouts(Stated):
    @classmethod
    def strided(cls) -> list[tuple[int, str]]:
        """Row lengths, and how rows lie."""
        short, long, longest = cls.STRIDED
        return [(columns, strides) for strides in STRIDES for columns in (short, long)] + [(longest, STRIDES[0])]

    def test_any_strides_of_inputs_and_of_incoming_gradients(self, strides, columns_, device):
        shape, dtype = (4, columns_), torch.bfloat16
        arguments = self.make(shape, dtype, device)
        odd = strided(strides, shape, dtype, device)
        assert not odd.is_contiguous()
        for index in self.rows_of(arguments):
            self.check((*arguments[:index], odd, *arguments[index + 1 :]))
        outputs = [self.run(self.plain, arguments)[name] for name in self.outputs]
        if all(y.shape == shape for y in outputs):
            self.check(arguments, tuple(odd for _ in outputs))

    def test_rows_apart_on_every_path(self, path, device):
        """Each tensor at a distance of its own, and what comes back at another."""
        arguments = self.make((3, path), torch.bfloat16, device)
        outputs = [self.run(self.plain, arguments)[name] for name in self.outputs]

        def apart(t, further):
            if t.shape != arguments[0].shape:
                return t
            return torch.empty((3, path + further), dtype=t.dtype, device=device)[:, :path].copy_(t)

        leaves = [apart(t, 8 * index) for index, t in enumerate(arguments, 1)]
        self.check(leaves, [apart(t, 80 + 8 * index) for index, t in enumerate(self.incoming(outputs))])

    @pytest.mark.parametrize("layout", (torch.jagged, torch.strided), ids=str)
    def test_nested_tensors_are_taken_or_refused(self, layout, device):
        """As the tensors that they hold."""
        arguments = self.make((5, 100), torch.float32, device)
        offsets = torch.tensor([0, 2, 5], device=device)

        def nested(t):
            if t.shape[:1] != (5,):
                return t
            if layout == torch.jagged:
                return torch.nested.nested_tensor_from_jagged(t, offsets)
            return torch.nested.as_nested_tensor([t[:2], t[2:]])

        def function(*given):
            outputs = tupled(self.function(*map(nested, given)))
            assert all(y.layout == layout for y in outputs)
            return tuple(y.values() if layout == torch.jagged else torch.cat(y.unbind()) for y in outputs)

        if not self.NESTED:
            public = getattr(self.kernel, self.name)
            with pytest.raises(TypeError, match=r"^\w+: expected a plain tensor, got a nested one[^\n]*$"):
                public(*map(nested, arguments))
            return
        ours, expected = self.run(function, arguments), self.run(self.function, arguments)
        for name, t in expected.items():
            torch.testing.assert_close(ours[name], t, msg=lambda text, name=name: f"{name}: {text}")
        for index, name in enumerate(self.inputs[1:], 1):
            with pytest.raises((TypeError, ValueError), match=rf"^{name}: expected [^\n]*$"):
                self.function(*arguments[:index], nested(arguments[0]), *arguments[index + 1 :])

    def test_leading_dimensions_that_no_view_joins(self, device):
        first, *others = self.make((3, 4, 40), torch.float32, device)
        turned = [t.transpose(0, 1) if t.shape == first.shape else t for t in (first, *others)]
        self.check(turned)

    @pytest.mark.parametrize("rows, further", ((2, 2**31), (3, 2**30)))  # the second: strides of int32 only
    def test_rows_more_than_2_to_the_31_elements_apart(self, path, rows, further, device):
        """To the bit: what divides their distance, and with it the width of an access, is as it was."""
        apart = path + further
        arguments = self.make((rows, path), torch.bfloat16, device)
        near = self.run(self.function, arguments)
        grads = self.incoming([near[name] for name in self.outputs])

        def far(t):
            if t.shape != arguments[0].shape:
                return t
            memory = torch.empty(
                (rows - 1) * apart + path, dtype=t.dtype, device=device
            )  # untouched pages cost nothing
            return memory.as_strided(t.shape, (apart, 1)).copy_(t)

        self.assert_equal(self.run(self.function, [far(t) for t in arguments], [far(t) for t in grads]), near)

    @needs_gpu
    @pytest.mark.parametrize("wide", (1000, 131072))
    def test_more_than_2_to_the_31_elements(self, wide, device):
        rows = 2**31 // wide + 3
        few = self.make((7, wide), torch.bfloat16, device)
        many = [t.repeat(rows // 7 + 1, 1)[:rows] if t.shape == few[0].shape else t for t in few]
        assert many[0].numel() > 2**31
        expected = self.run(self.function, few)
        grads = [expected[name] for name in self.outputs]
        expected = self.run(self.function, few, grads)
        ours = self.run(self.function, many, [t.repeat(rows // 7 + 1, 1)[:rows] for t in grads])
        for name, t in expected.items():
            if t.shape == few[0].shape:
                last = (rows - 7) % 7
                assert torch.equal(ours[name][:7], t), name
                assert torch.equal(ours[name][rows - 7 :], t.roll(-last, 0)), name
