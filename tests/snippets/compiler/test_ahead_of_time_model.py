"""The model to serve has a scale of its own."""

import torch

from snippets.compiler.ahead_of_time_model import make_input, make_model


def test_twice_the_scale_is_twice_the_result():
    model, x = make_model(), make_input(1)
    with torch.no_grad():
        once = model(x)
        model.scale.mul_(2)
        torch.testing.assert_close(model(x), 2 * once)
