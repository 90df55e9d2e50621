"""The prediction divides what each strategy divides, and adds the time of its messages."""

import pytest

from snippets.examples.multi_gpu_bytes import Shape
from snippets.examples.multi_gpu_predict import predict

BASE = {
    "shape": vars(Shape(layers=[[60, 20], [60, 20]], root=40, tokens=8, width=4)),
    "forward": 1.0,
    "backward": 2.0,
    "update": 4.0,
    "parameters": 800,
    "state": 1600,
    "peak": 9000,
}
MOMENT = {operation: {0: 0.0, 10**9: 0.0} for operation in ("all-reduce", "all-gather", "reduce-scatter")}
SECOND = {operation: {0: 1.0, 10**9: 1.0} for operation in MOMENT}  # for any message


@pytest.mark.parametrize(("name", "share"), [("DDP", 1.0), ("FSDP2", 0.25)])
def test_fsdp2_divides_the_update_and_what_is_kept(name: str, share: float) -> None:
    guess = predict(name, BASE, MOMENT, 4)
    assert guess["step"] == pytest.approx(1 + 2 + 4 * share) and guess["exposed"] == pytest.approx(0)
    assert (guess["parameters"], guess["gradients"], guess["state"]) == (800 * share, 800 * share, 1600 * share)


def test_nothing_hides_the_messages_of_tensor_parallel() -> None:
    guess = predict("tensor + sequence", BASE, SECOND, 2)
    assert guess["exposed"] == guess["communication"] == len(guess["messages"])
    assert 0 < predict("FSDP2", BASE, SECOND, 2)["exposed"] < predict("FSDP2", BASE, SECOND, 2)["communication"]
