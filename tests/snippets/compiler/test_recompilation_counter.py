"""Which calls share the graphs that a counter counts."""

import torch

from snippets.compiler.recompilation_counter import Counter
from snippets.compiler.recompilation_specialised import double


def test_two_compilations_of_one_function_share_its_entries():
    counter = Counter()
    torch.compiler.reset()
    for _ in range(3):
        torch.compile(double, backend=counter)(torch.ones(5))
    assert (counter.compiled, counter.ran) == (1, 3)
