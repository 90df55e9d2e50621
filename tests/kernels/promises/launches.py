"""Launches fit the device of the input, any GPU, and kernels that are compiled already."""

import contextlib
import itertools

import pytest
import torch
import triton.language as tl
from torch import Tensor
from triton.backends.amd.compiler import HIPOptions
from triton.backends.compiler import GPUTarget

from snippets.validation.compiled_code import TARGETS
from tests.benchmarks import stand_ins
from tests.benchmarks.sides import tupled
from tests.kernels import compiled
from tests.kernels.promises.stated import Stated


class Launcher:
    """Calls `seen` at each launch of a Triton kernel."""

    def __init__(self, kernel, seen):
        self.kernel, self.seen = kernel, seen

    def __getitem__(self, grid):
        self.seen()
        return self.kernel[grid]


class Launches(Stated):
    def launches(self, columns: int, target: str) -> list[compiled.Launch]:
        """What forward and backward launch at a row length, in bf16; nothing runs."""
        arguments = self.make((160, columns), torch.bfloat16, torch.device("cpu"))
        return compiled.recorded(self.kernel, lambda: self.run(self.function, arguments), target)

    @pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
    def test_on_a_device_that_is_not_the_current_one(self, path):
        assert torch.cuda.current_device() == 0
        self.check(self.make((300, path), torch.bfloat16, torch.device("cuda:1")))
        assert torch.cuda.current_device() == 0

    def test_every_launch_is_on_the_device_of_x(self, path, device, monkeypatch):
        """Triton launches on the current device, so a guard for x's must be there: seen with one device, too."""
        guards, launches = [], []

        @contextlib.contextmanager
        def device_of(tensor):
            guards.append(tensor.device)
            with real(tensor):
                yield
            guards.pop()

        real = torch.cuda.device_of
        monkeypatch.setattr(torch.cuda, "device_of", device_of)
        launchers = {
            name: Launcher(kernel, lambda: launches.append(guards[-1:]))
            for name, kernel in stand_ins.kernels_of(self.kernel).items()
        }
        arguments = self.make((2, path), torch.float32, device)
        with stand_ins.replaced(self.kernel, **launchers):
            self.run(self.function, arguments)
        assert len(launches) >= self.LAUNCHES and all(guard == [arguments[0].device] for guard in launches)

    def test_no_launch_compares_a_constant(self):
        """Triton compares the global constants of a kernel with what they were, at each launch."""
        assert not [name for name, value in vars(self.kernel).items() if isinstance(value, tl.constexpr)]

    def test_launches_fit_any_gpu(self):
        every = (1, 3, 100, 2048, 2049, 5120, 8192, 8193, 20000, 32768, 32769, 262144)
        for warp_size in (32, 64):
            with stand_ins.replaced(self.kernel, _device=lambda device, warp_size=warp_size: (132, warp_size)):
                for columns, bits in itertools.product(every, (16, 32)):
                    for launch in (self.kernel._forward_launch, self.kernel._backward_launch):
                        options = launch(columns, bits, torch.device("cuda"))
                        warps = options["num_warps"]
                        assert 1 <= warps * warp_size <= 1024 and warps & (warps - 1) == 0, (columns, options)

    @pytest.mark.parametrize("warp", (32, 64))
    def test_an_amd_gpu_gets_no_option_that_its_backend_refuses(self, warp, monkeypatch):
        target = f"gfx-{warp}"
        for table, value in (
            (TARGETS, GPUTarget("hip", target, warp)),
            (stand_ins.MULTIPROCESSORS, 96),
            (stand_ins.SHARED_MEMORY, 64 * 1024),
        ):
            monkeypatch.setitem(table, target, value)
        monkeypatch.setattr(torch.version, "hip", "7.0")
        odd = () if all(columns % 2 == 0 for columns in self.GRID) else (9001, 25001)
        for columns in {*self.PATHS, *self.GRID[-5:], *odd}:
            arguments = self.make((3, columns), torch.bfloat16, torch.device("cpu"))
            for run in (lambda: self.run(self.function, arguments), lambda: self.run_frozen(arguments)):  # noqa: B023
                for launch in compiled.recorded(self.kernel, run, target):
                    known = {*launch.kernel.arg_names, *HIPOptions.__dataclass_fields__}
                    assert launch.keywords.keys() <= known, (columns, launch.keywords)

    def of_length(self, columns: int, largest: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Arguments with rows of this length, in the memory of longer ones."""

        def cut(t):
            return t.flatten()[: t[..., 0].numel() * columns].view(*t.shape[:-1], columns)

        return tuple(cut(t) if t.shape[-1:] == largest[0].shape[-1:] else t for t in largest)

    @pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float32), ids=str)
    def test_row_lengths_share_compiled_kernels(self, dtype):
        """1,000 lengths, from 65 to 2^18. A launch table has a row for each doubling of the length at least, as tiles
        have powers of two: in a doubling there are at most 12 variants for each direction."""
        largest = self.make((3, 2**18 if self.MOST_COLUMNS >= 2**18 else 2**13), dtype, torch.device("cpu"))
        with compiled.recording(self.kernel, "sm_90") as launches:
            for octave, count in ((octave, 84 if octave < 10 else 83) for octave in range(6, 18)):
                found: dict[str, set] = {"forward": set(), "backward": set()}
                for i in range(count):
                    columns = 2**octave + 1 + (2**octave - 1) * i // (count - 1)
                    arguments = self.of_length(columns - columns % (1, 8, 2, 64)[i % 4], largest)
                    leaves = [t.detach().requires_grad_() for t in arguments[: len(self.inputs)]]
                    launches.clear()
                    outputs = tupled(self.function(*leaves, *arguments[len(self.inputs) :]))
                    forward = len(launches)
                    torch.autograd.grad(outputs, leaves, [torch.empty_like(y) for y in outputs])
                    for direction, of in (("forward", launches[:forward]), ("backward", launches[forward:])):
                        found[direction].update(compiled.variant(launch, "sm_90") for launch in of)
                assert all(len(variants) <= 12 for variants in found.values()), (octave, found)
