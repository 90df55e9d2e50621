"""kernels/layer_norm_gelu_cuda.py, layer_norm_gelu.cu: what kernels/layer_norm_gelu.py promises, in CUDA C++."""

import pytest

from tests.kernels import cuda
from tests.kernels import test_layer_norm_gelu as in_triton
from tests.kernels.conftest import load
from tests.kernels.promises import DTYPES, NO_LAYER_NORM, needs_gpu, placed

EPS = in_triton.EPS
kernel = load("layer_norm_gelu_cuda")


class TestLayerNormGELU(cuda.Promises, in_triton.TestLayerNormGELU):
    kernel = kernel
    MOST_COLUMNS = 2**18
    WAITING = (40000,)
    SUMS = ("_sum_kernel",)

    @pytest.mark.parametrize("x, weight, bias, error, message", NO_LAYER_NORM)
    def test_wrong_input_is_named(self, x, weight, bias, error, message, device):
        with pytest.raises(error, match=message):
            self.function(placed(x, device), placed(weight, device), placed(bias, device))

    def test_launches_fit_any_gpu(self):
        """Every column of a row is some thread's, and what is fetched ahead fits."""
        for columns in (1, 3, 8, 100, 1024, 1032, 2049, 4096, 5120, 8192, 9000, 16384, 20000, 32769, 131072, 262144):
            for plan in cuda.norm_plans(kernel, columns):
                assert 32 <= plan["THREADS"] <= 1024 and plan["THREADS"] % 32 == 0, plan
                block = plan["THREADS"] * plan["VECTORS"] * plan["VECTOR"]
                slices = -(-columns // plan["width"])
                assert slices <= 32 and plan["width"] <= block and plan["SLICED"] == (slices > 1), plan
                assert plan["FULL"] == (slices * block == columns), plan
                assert plan["shared"] <= 227 * 1024, plan


class Tanh(in_triton.Tanh):
    """The same promises of the other GELU; what does not depend on the GELU is not tested again."""

    __test__ = False
    kernel = kernel
    GRID = (1, 127, 1128, 4097, 9000, 66000)


@needs_gpu
class TestTanh:
    @pytest.mark.parametrize("columns, dtype", Tanh.held(), ids=str)
    def test_error_within_the_bound(self, columns, dtype, device):
        Tanh().test_error_within_the_bound(columns, dtype, device)

    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    @pytest.mark.parametrize("path", TestLayerNormGELU.PATHS[:-1])
    def test_extreme_values(self, path, dtype, device):
        Tanh().test_extreme_values(path, dtype, device)

    def test_compiles_as_one_graph(self, device):
        Tanh().test_compiles_as_one_graph(True, device)
