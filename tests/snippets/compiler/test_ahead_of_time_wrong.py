"""The head of the package is what the process by itself takes for eager."""

import torch

from snippets.compiler.ahead_of_time_wrong import Head


def test_a_head_is_what_the_process_by_itself_takes_for_eager():
    head, x = Head(), torch.randn(5, 16)
    state = head.state_dict()
    expected = torch.nn.functional.linear(x.relu(), state["linear.weight"], state["linear.bias"]) / state["temperature"]
    torch.testing.assert_close(head(x), expected)
