"""One GPU runs all that predicts, and two what is predicted."""

import pytest

from snippets.examples import multi_gpu_bytes, multi_gpu_measured


def test_one_gpu_runs_all_that_predicts_and_two_what_is_predicted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multi_gpu_measured, "GPU", True)
    one, two, four = (multi_gpu_measured.names_for(n) for n in (1, 2, 4))
    assert {name for name in two if multi_gpu_bytes.STRATEGIES[name].works} <= set(one)
    assert set(two) - set(one) == {"FSDP2, large"} and set(four) == set(two) & set(multi_gpu_bytes.EAGER)
