"""What the CUDA C++ kernels promise beside what Triton's do, and what is known of their machine code without a GPU."""

import contextlib
import functools
import importlib.util
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
import torch

from snippets.validation.compiled_code import Facts
from tests.benchmarks.cuda import Launch, machine_code
from tests.kernels import promises

ON_A_CPU = ("wrong", "refused_on_a_cpu", "launches_fit")  # pieces of the names of tests that need no GPU
compiles = pytest.mark.skipif(
    importlib.util.find_spec("cuda") is None and shutil.which("nvcc") is None, reason="needs cuda-bindings or nvcc"
)


needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")


def compile_by_nvcc(source: Path, folder: Path) -> None:
    """With the command that the source names."""
    (command,) = re.findall(r"`(nvcc [^`]*)`", re.sub(r"\n// ?", " ", source.read_text()))
    assert command.endswith(f" {source.name}")
    copy = shutil.copy(source, folder)
    subprocess.run([*command.split(), "-o", str(folder / "kernels.cubin")], cwd=folder, check=True)
    assert Path(copy).with_name("kernels.cubin").read_bytes()[:4] == b"\x7fELF"


def facts(kernel: ModuleType, launch: Launch, target: str) -> Facts:
    """Of a launch's machine code; a kernel that several launches share is compiled once."""
    return _facts(kernel, replace(launch, blocks=0), target)


@functools.cache
def _facts(kernel: ModuleType, launch: Launch, target: str) -> Facts:
    return machine_code(kernel, launch, target).facts


def norm_plans(kernel: ModuleType, columns: int) -> Iterator[dict]:
    """The plans of layer_norm_gelu_cuda.py for a row length, in 16 bits and in 32, of vectors and of single numbers."""
    for dtype in (torch.bfloat16, torch.float32):
        for vector in {1} | ({16 // dtype.itemsize} if columns % 8 == 0 else set()):
            of = columns, vector, dtype, dtype, dtype, dtype, False
            yield kernel._forward_plan(*of, -1)
            yield kernel._backward_plan(*of, True, -1)


class Promises(promises.Promises):
    """The same promises. What is about Triton alone is said anew or left out."""

    @pytest.fixture(autouse=True)
    def _needs_a_gpu(self, request: pytest.FixtureRequest) -> None:
        if not promises.GPU and not any(part in request.node.name for part in ON_A_CPU):
            pytest.skip("needs a GPU: nothing interprets CUDA C++")

    test_no_launch_compares_a_constant = None
    test_an_amd_gpu_gets_no_option_that_its_backend_refuses = None
    test_programs_may_start_in_any_order = None
    test_row_lengths_share_compiled_kernels = None
    test_default_dtype_and_device_change_no_launch = None

    @classmethod
    def held(cls):
        return [(columns, dtype) for columns in cls.GRID for dtype in promises.DTYPES]

    def test_a_tensor_is_refused_on_a_cpu(self):
        arguments = self.make((2, 8), torch.float32, torch.device("cpu"))
        with pytest.raises(ValueError, match=": expected a tensor on an NVIDIA GPU, got one on cpu"):
            self.function(*arguments)

    def test_more_rows_or_columns_than_are_counted_are_refused(self, device):
        for arguments in self.beyond_count(device):
            with pytest.raises(ValueError, match=r"expected at most .*, got .*(1073741825|262145)"):
                self.function(*arguments)

    def test_every_launch_is_on_the_device_of_x(self, path, device, monkeypatch):
        """The driver launches on the current device. Here another one is said to be current."""
        arguments = self.make((2, path), torch.float32, device)
        self.run(self.function, arguments)
        guards, launches = [], []

        @contextlib.contextmanager
        def guard(index):
            guards.append(index)
            yield
            guards.pop()

        launched = self.kernel._Kernel._launched
        monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
        monkeypatch.setattr(torch.cuda, "device", guard)
        monkeypatch.setattr(
            self.kernel._Kernel, "_launched", lambda *of: (launches.append(guards[-1:]), launched(*of))[1]
        )
        self.run(self.function, arguments)
        assert len(launches) >= self.LAUNCHES and all(guard == [device.index or 0] for guard in launches)

    def test_frozen_parameters_cost_nothing(self, path, device, monkeypatch):
        if not self.SUMS:
            pytest.skip("no parameters")
        arguments = self.make((promises.SOME, path), torch.bfloat16, device)
        for name in self.SUMS:
            monkeypatch.setattr(self.kernel, name, lambda *_, name=name: pytest.fail(f"{name} is asked for"))
        self.run_frozen(arguments)

    def test_several_threads_at_once(self, device):
        """Each has a place of its own for the arguments; the first call of a thread has no context yet."""
        inputs = [self.make((5, 200), torch.float32, device, seed=seed) for seed in range(8)]
        expected = [self.function(*arguments) for arguments in inputs]
        found: dict[int, list] = {}

        def work(index: int) -> None:
            found[index] = [self.function(*inputs[index]) for _ in range(200)]

        threads = [threading.Thread(target=work, args=(index,)) for index in range(len(inputs))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        torch.cuda.synchronize()
        for index, results in found.items():
            assert len(results) == 200 and all(torch.equal(y, expected[index]) for y in results), index
