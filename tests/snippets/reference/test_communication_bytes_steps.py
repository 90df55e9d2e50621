"""Each plan names modules of a block, and the model has the parameters of its sizes."""

import pytest

from snippets.reference import communication_bytes_steps as steps


@pytest.mark.parametrize("plan", [steps.tensor_plan(False), steps.tensor_plan(True), steps.sequence_plan()])
def test_a_plan_names_modules_of_a_block(plan: dict) -> None:
    named = dict(steps.Block().named_modules())
    assert plan and plan.keys() <= named.keys()
    linear = {name for name, module in named.items() if type(module).__name__ == "Linear"}
    assert linear <= plan.keys()


def test_only_a_prepared_plan_shares_the_input() -> None:
    more = steps.tensor_plan(True).keys() - steps.tensor_plan(False).keys()
    assert more == {"attention", "mlp"}


def test_the_model_has_the_parameters_of_its_sizes() -> None:
    width, keys = steps.WIDTH, steps.KV_HEADS * steps.HEAD
    block = 2 * width * width + 2 * width * keys + 3 * width * steps.MLP + 2 * width
    ends = 2 * 256 * width  # the embedding, and the last layer, of 256 tokens
    assert steps.numbers(steps.make_model()) == steps.LAYERS * block + ends
