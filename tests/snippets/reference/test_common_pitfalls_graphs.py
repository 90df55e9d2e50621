"""What is compiled, and how often."""

import torch
from torch import nn

from snippets.reference.common_pitfalls_graphs import Counter, Generator
from snippets.reference.common_pitfalls_in_use import SYMPTOMS


def test_a_compiled_module_saves_the_same_weights_under_other_names():
    model = Generator()
    fast = torch.compile(model, backend="eager")
    assert [name.removeprefix("_orig_mod.") for name in fast.state_dict()] == list(model.state_dict())
    assert list(fast._orig_mod.state_dict()) == list(model.state_dict())


def test_the_limit_of_graphs_is_what_ends_the_loop():
    """Past it the functions run eagerly: the limit is counted, not the steps."""
    with torch._dynamo.config.patch(recompile_limit=5):
        assert SYMPTOMS["in a loop"]() == "5 graphs compiled"


def test_a_module_compiled_in_place_is_still_an_instance_of_its_class():
    backend, model = Counter(), Generator()
    model.compile(backend=backend)
    assert type(model) is Generator and isinstance(torch.compile(model), nn.Module)
    assert type(torch.compile(model)) is not Generator
