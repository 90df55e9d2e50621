"""What is left to the library is a launch, too."""

import torch

from snippets.compiler.inductor_code import made

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def test_what_is_left_to_the_library_is_a_launch_and_no_kernel():
    x, weight = torch.randn(8, 64, device=DEVICE), torch.randn(64, 32, device=DEVICE)
    (result,) = made(lambda x, w: (x @ w).relu(), x, weight)
    product, rest = result.launches
    assert product.name.startswith("aten.mm") and product.bytes == 4 * (8 * 64 + 64 * 32 + 8 * 32)
    assert list(result.kernels) == [rest.name]
    assert rest.bytes == 2 * 4 * 8 * 32, "in place: read and written"
