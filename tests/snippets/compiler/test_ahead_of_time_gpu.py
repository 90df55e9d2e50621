"""How a server starts on a GPU: each way gives the model's results there, and without a GPU the script says so."""

import pytest
import torch

from tests.snippets.compiler.cpp_library import skip_where_it_is_twice
from tests.snippets.compiler.test_ahead_of_time import WAYS, lines

MODULE = "snippets.compiler.ahead_of_time_gpu"


@pytest.mark.skipif(torch.cuda.is_available(), reason="has a GPU")
def test_without_a_gpu_it_says_so(script):
    assert script(MODULE).stdout == "a start on a GPU needs a GPU\n"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="a start on a GPU")
def test_each_way_gives_the_models_results(script):
    done = script(MODULE)
    if done.returncode:
        skip_where_it_is_twice(script)
    assert done.returncode == 0, done.stderr[-2000:]
    rows = lines(done.stdout, "starts")[1:]
    assert [row[:22].strip() for row in rows] == list(WAYS) and all(row.endswith(" yes") for row in rows), rows
    assert "returns" not in lines(done.stdout, "linked")[0]
