"""Loops over pairs of features."""

import pytest
import torch
from torch import nn

from snippets.validation.assistant.found import find
from snippets.validation.assistant.rewrites import Rewritten
from tests.snippets.validation.planted.seen import DEVICE, faults, recorded

pytestmark = pytest.mark.usefixtures("one_core")


class Of(nn.Module):
    """A function of features, and weights to use."""

    def __init__(self, function):
        super().__init__()
        self.function, self.f = function, nn.Linear(16, 16)

    def forward(self, x):
        return self.function(self.f(x))


def found_in(function):
    torch.manual_seed(0)
    module, x = Of(function), torch.randn(32, 7, 16, device=DEVICE)
    found = [one for one in faults(find(*recorded(lambda: (module, x)))) if one.kind == "small-kernels"]
    for one in found:
        torch.testing.assert_close(Rewritten(module, one.rewrites)(x), module(x))
    return found


def numbers(f):
    return torch.stack([(f[:, i] * f[:, j]).sum(-1) for i in range(7) for j in range(i)], dim=1)


def by_unbind(f):
    parts, out = f.unbind(1), []
    for i, one in enumerate(parts):
        for other in parts[i:]:
            out.append((one * other).sum(dim=1, keepdim=True))
    return torch.cat(out, -1)


def by_einsum(f):
    return torch.stack([torch.einsum("bd,bd->b", f[:, i], f[:, j]) for i in range(7) for j in range(7)])


def vectors(f):
    return torch.stack([f[:, i] * f[:, j] for i in range(7) for j in range(i)], dim=1)


def of_planes(f):
    f = f.unflatten(-1, (4, 4))
    return torch.stack([torch.einsum("bcd,bcd->bc", f[:, i], f[:, j]) for i in range(7) for j in range(i)], dim=1)


def of_vectors(f):
    f = f[0]
    return torch.stack([torch.dot(f[i], f[j]) for i in range(7) for j in range(i)])


FOUND = {
    numbers: ("torch.bmm(f, f.transpose(1, 2))", True),
    by_unbind: ("torch.bmm(f, f.transpose(1, 2))", False),
    by_einsum: ("torch.bmm(f, f.transpose(1, 2))", False),
    of_planes: ("one product: f @ f.mT of the features f, stacked at dim=-2", False),
    of_vectors: ("one product: f @ f.mT of the features f, stacked at dim=-2", False),
    vectors: ("f[:, i] * f[:, j]", False),
}


@pytest.mark.parametrize("function", FOUND, ids=lambda one: one.__name__)
def test_all_pairs_are_one_product(function):
    (one,) = found_in(function)
    change, tried = FOUND[function]
    assert change in one.change and bool(one.rewrites) == tried
    assert one.line.function in (function.__name__, "<listcomp>")


def neighbours(f):
    f = f.repeat(1, 3, 1)
    return torch.stack([(f[:, i] * f[:, i + 1]).sum(-1) for i in range(20)], dim=1)


def of_both_dimensions(f):
    return torch.stack([(f[:, i] * f[:, j]).sum(0) for i in range(7) for j in range(i)])


def outer(f):
    return torch.stack([torch.einsum("bd,be->bde", f[:, i], f[:, j]) for i in range(7) for j in range(i)], 1)


def of_sums(f):
    return torch.stack([torch.einsum("bd,be->b", f[:, i], f[:, j]) for i in range(7) for j in range(i)], 1)


def of_rows(f):
    f = f.unflatten(-1, (4, 4))
    return torch.stack([torch.einsum("bcd,bcd->bd", f[:, i], f[:, j]) for i in range(7) for j in range(i)], 1)


def matrices(f):
    f = f.unflatten(-1, (4, 4))
    return torch.stack([torch.matmul(f[:, i], f[:, j]) for i in range(7) for j in range(i)], 1)


def chained(f):
    for i in range(6):
        for j in range(2):
            f = f * (f[:, i] * f[:, j]).sum(-1)[:, None, None]
    return f


@pytest.mark.parametrize(
    "function",
    [neighbours, of_both_dimensions, outer, of_sums, of_rows, matrices, chained],
    ids=lambda one: one.__name__,
)
def test_other_products_are_no_pairs(function):
    assert not [one for one in found_in(function) if "pairs" in one.change]


def test_products_of_stacked_features_are_the_pairs():
    f = torch.randn(3, 5, 7, 4)
    torch.testing.assert_close((f @ f.mT)[..., 2, 6], torch.einsum("bcd,bcd->bc", f[..., 2, :], f[..., 6, :]))


def test_one_product_of_all_is_left_alone():
    i, j = torch.tril_indices(7, 7, -1)
    assert not found_in(lambda f: torch.bmm(f, f.mT)[:, i, j])
