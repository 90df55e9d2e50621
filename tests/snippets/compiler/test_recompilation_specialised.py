"""What PyTorch makes a constant of, counted on every version of torch."""

import pytest

from snippets.compiler.recompilation_counter import count
from snippets.compiler.recompilation_specialised import SPECIALISED

GRAPHS = {
    "size 5, 6, 7, 8": 2,
    "size 5, 6, 1, 0": 4,
    "number of dimensions": 3,
    "dtype": 3,
    "device": 2,
    "requires_grad": 2,
    "strides, transposed": 2,
    "int argument 5, 6, 7, 8": 2,
    "float argument .5, .6, .7, .8": 2,
    "string argument": 2,
    "list of 2, 3, 4, 5 tensors": 4,
    "int attribute 5, 6, 7, 8": 4,
    "float attribute .5, .6, .7, .8": 2,
    "grad mode": 2,
    "autocast": 2,
}


@pytest.mark.parametrize("what", SPECIALISED)
def test_what_is_specialised(what):
    graphs, reasons = count(SPECIALISED[what])
    assert graphs == GRAPHS[what]
    assert len(reasons) == graphs - 1 and all(reasons)
