"""Each change of examples/hf_llama computes the library's loss and gradients, and refuses what it would get wrong."""

from collections.abc import Callable

import pytest
import torch
from torch._dynamo.utils import counters

pytest.importorskip("transformers", reason="a development dependency: constraints.txt names its version")

from snippets.examples import hf_llama, llama_model
from snippets.validation.equivalence import check
from tests import gpu
from tests.benchmarks.case import Point
from tests.benchmarks.examples import hf_llama as case
from tests.benchmarks.examples import llama as other_case
from tests.snippets.examples.test_hf_llama_chunks import DTYPES, HERE, TIED, holds, tokens, traced_only  # noqa: F401  a fixture


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", ["loss", "all", "triton"])  # the others are those of test_llama.py
def test_a_change_computes_the_loss_and_all_gradients(name: str, dtype: torch.dtype) -> None:
    holds(hf_llama.RUNGS[name], dtype)


def test_the_patch_trains_as_the_library_does() -> None:
    losses = []
    for patched in (False, True):
        torch.manual_seed(0)
        own = llama_model.make_model(TIED, HERE, torch.float32)
        optimizer = llama_model.make_optimizer(own, lr=1e-2)
        step = hf_llama.patch(own, optimizer) if patched else optimizer.step
        for _ in range(2):
            loss = own(input_ids=tokens(), labels=tokens()).loss
            loss.backward()
            step()
            optimizer.zero_grad()
            losses.append(loss.detach())
    torch.testing.assert_close(losses[:2], losses[2:])
    assert losses[0] > losses[1]


@pytest.mark.usefixtures("captured")
def test_all_layers_share_a_graph_though_the_library_keeps_a_cache_by_default() -> None:
    own = llama_model.make_model(TIED | {"num_hidden_layers": 3}, HERE, torch.float32)
    own.config.use_cache = True
    hf_llama.patch(own, llama_model.make_optimizer(own))
    counters.clear()
    own(input_ids=tokens(), labels=tokens()).loss.backward()
    assert counters["stats"]["unique_graphs"] == 1


@pytest.mark.usefixtures("captured")
@pytest.mark.parametrize("given", [{"lr": 1e-2}, {"lr": 1e-2, "fused": True}, {"lr": torch.tensor(1e-2)}], ids=str)
def test_groups_of_parameters_keep_their_own_learning_rates(given: dict[str, object]) -> None:
    ends, rates = [], []
    for patched in (False, True):
        torch.manual_seed(0)
        own = llama_model.make_model(TIED | {"num_hidden_layers": 1}, HERE, torch.float32)
        decayed, others = ([p for p in own.parameters() if (p.dim() > 1) == many] for many in (True, False))
        groups = [{"params": decayed}, {"params": others, "weight_decay": 0.0}]
        optimizer = torch.optim.AdamW(groups, **(given if patched else {"lr": 1e-2}))
        step = hf_llama.patch(own, optimizer) if patched else optimizer.step
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, [lambda n: 1 / (1 + n), lambda n: 0.1 ** (1 + n)])
        for _ in range(3):
            for p in own.parameters():
                p.grad = p.detach() + 1
            step()
            schedule.step()
        ends.append([p.detach() for p in own.parameters()])
        rates.append([float(group["lr"]) for group in optimizer.param_groups])
    assert rates[1] == pytest.approx(rates[0])
    for one, other in zip(*ends, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("part", ["", case.LAYERS, case.MIXED])
def test_the_case_times_what_it_says(part: str) -> None:
    point = Point(case.TINY, "float32", "both", part=part)
    workload = case.prepare(point, HERE)
    step = case.Patched(point, HERE)
    assert {p.dtype for p in step.model.parameters()} == {torch.float32}
    found = workload.variants["loss"].build()()
    assert {t.dtype for name, t in found.items() if name != "loss"} == {
        torch.bfloat16 if part == case.MIXED else torch.float32
    }
    assert ("update" in workload.variants) == (part != case.LAYERS)
    check(found, workload.variants["eager"].build()(), workload.reference(), workload.largest_summands)


def test_an_eighth_of_the_larger_model_is_one() -> None:
    whole = other_case.flops(hf_llama.LLAMA_8B, 2, 4096)
    eighth = hf_llama.LLAMA_8B | {"num_hidden_layers": case.EIGHTH["layers"], "vocab_size": case.EIGHTH["vocabulary"]}
    assert {part: 8 * count for part, count in other_case.flops(eighth, 2, 4096).items()} == whole


def test_the_script_runs(script: Callable) -> None:
    with gpu.room(24 * gpu.GIB):  # on a GPU it takes steps of a model with the whole vocabulary
        done = script("snippets.examples.hf_llama")
    assert done.returncode == 0, done.stderr
