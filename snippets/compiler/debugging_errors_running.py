"""Errors of compiled code while it runs, each provoked."""

import torch
from torch._inductor import config

from snippets.compiler import debugging_bugs_operators
from snippets.compiler.debugging_errors_compiler import X


# --8<-- [start:running]
def wrong_stride() -> None:
    torch.compile(debugging_bugs_operators.stored_by_column)(X.view(2, 4))


def wrong_fake_kernel() -> None:
    torch.compile(debugging_bugs_operators.precise_sin, backend="aot_eager_decomp_partition_crossref")(X)


def wrong_schema() -> None:
    torch.compile(debugging_bugs_operators.scaled, backend="eager_debug")(X)


def index_out_of_bounds() -> None:
    torch.compile(lambda x, i: x[i].sin())(X, torch.tensor([9]))


def nan() -> None:
    with config.patch(nan_asserts=True):
        torch.compile(lambda x: (x - 2).log().sum())(X)


def not_deterministic() -> None:
    torch.use_deterministic_algorithms(True)
    try:
        torch.compile(lambda x: x.clone().put_(torch.tensor([0]), X[:1]), backend="aot_eager")(X)
    finally:
        torch.use_deterministic_algorithms(False)


# --8<-- [end:running]
