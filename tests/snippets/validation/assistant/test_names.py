"""Names: a function of torch has one, however it is spelt."""

import pytest
import torch

from snippets.validation.assistant.names import name_of

pytestmark = pytest.mark.usefixtures("one_core")


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (torch.Tensor.__matmul__, "matmul"),
        (torch.mm, "matmul"),
        (torch.Tensor.add_, "add"),
        (torch.Tensor.__rsub__, "rsub"),
        (torch.nn.functional.softmax, "softmax"),
        (torch.Tensor.bool, "bool"),
        (torch.Tensor.__bool__, "__bool__"),
        (torch.Tensor.T.__get__, "T"),
    ],
)
def test_a_function_has_one_name_however_it_is_spelt(function, name):
    assert name_of(function) == name
