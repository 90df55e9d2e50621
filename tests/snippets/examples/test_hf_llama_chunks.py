"""The loss in chunks is the library's, for the Trainer, too; and what the tests of these changes share."""

import copy
import functools
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

pytest.importorskip("transformers", reason="a development dependency: constraints.txt names its version")

from snippets.examples import hf_llama, hf_llama_chunks, hf_llama_kernels, llama_model
from snippets.validation.equivalence import check
from tests.benchmarks.examples import llama as other_case

HERE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
DTYPES = (
    (torch.float32, torch.bfloat16) if HERE.type == "cuda" else (torch.float32,)
)  # the interpreter rounds otherwise
CHANGES = hf_llama_chunks.loss_in_chunks, hf_llama_kernels.with_kernels
TIED = llama_model.TINY | {"tie_word_embeddings": True}


@pytest.fixture(autouse=True)
def traced_only(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What matters here is what is captured; Inductor would take a minute."""
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="aot_eager"))
    forget = hf_llama_kernels.gated_again.cache_clear
    forget(), torch._dynamo.reset()
    yield
    forget(), torch._dynamo.reset()


@functools.cache
def model(dtype: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(0)
    return llama_model.make_model(TIED, HERE, dtype)


@functools.cache
def tokens() -> Tensor:
    return torch.randint(256, (2, 32), generator=torch.Generator().manual_seed(0)).to(HERE)


def with_gradients(loss: Tensor, base: nn.Module) -> dict[str, Tensor]:
    base.zero_grad()
    loss.backward()
    return {"loss": loss.detach()} | {f"{name}.grad": p.grad for name, p in base.named_parameters()}


def results(rung: Callable[[nn.Module], llama_model.Loss], dtype: torch.dtype) -> dict[str, Tensor]:
    return with_gradients(rung(llama_model.sharing(model(dtype)))(tokens()), model(dtype))


@functools.cache
def expected(dtype: torch.dtype) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    names = [name for name, _ in model(dtype).named_parameters()]
    return results(llama_model.eager, dtype), other_case.in_float64(model(dtype), tokens(), names)


def holds(rung: Callable[[nn.Module], llama_model.Loss], dtype: torch.dtype = torch.float32) -> None:
    scale = {"loss": other_case.LOSS_IS_OFF_BY / (2 * torch.finfo(torch.float32).eps)}
    check(results(rung, dtype), *expected(dtype), scale)


def test_embeddings_are_also_the_last_layer() -> None:
    assert model().lm_head.weight is model().model.embed_tokens.weight


@pytest.mark.parametrize("change", CHANGES)
def test_labels_and_items_count_as_in_the_library(change: Callable) -> None:
    """Prompts and padding have no label, and the Trainer divides by the items of all its batches."""
    labels = tokens().clone()
    labels[:, :5] = -100
    labels[1, 20:] = -100
    padded = torch.ones_like(labels)
    padded[1, 20:] = 0
    asked = {"input_ids": tokens(), "labels": labels, "attention_mask": padded}
    for items in (None, torch.tensor(100, device=HERE)):
        theirs = with_gradients(llama_model.sharing(model())(**asked, num_items_in_batch=items).loss, model())
        ours = with_gradients(change(llama_model.sharing(model()))(**asked, num_items_in_batch=items).loss, model())
        for name, found in theirs.items():
            torch.testing.assert_close(ours[name], found, msg=lambda said, name=name: f"{name}: {said}")


@pytest.mark.parametrize("change", CHANGES)
def test_evaluation_and_generation_stay_the_librarys(change: Callable) -> None:
    changed = change(llama_model.sharing(model()))
    with torch.no_grad():
        found, plain = changed(input_ids=tokens(), labels=tokens()), model()(input_ids=tokens(), labels=tokens())
    assert torch.equal(found.logits, plain.logits)
    assert torch.equal(found.loss, plain.loss)
    generated = {"max_new_tokens": 3, "do_sample": False, "pad_token_id": 0}
    assert torch.equal(changed.generate(tokens(), **generated), model().generate(tokens(), **generated))


def as_the_trainer_passes(changed: nn.Module, columns: dict[str, Tensor]) -> dict[str, Tensor]:
    """What is left of a dataset's columns. The whole Trainer would need accelerate."""
    from transformers import Trainer

    trainer = SimpleNamespace(model=changed, label_names=["labels"], _signature_columns=None)
    Trainer._set_signature_columns_if_needed(trainer)
    return {name: column for name, column in columns.items() if name in trainer._signature_columns}


def test_the_trainer_keeps_packed_texts_apart() -> None:
    """Two texts a row: without their positions each token would also see the earlier text."""
    positions = (torch.arange(32, device=HERE) % 16).expand(2, -1)
    columns = {"input_ids": tokens(), "labels": tokens(), "position_ids": positions}
    apart, mixed = model()(**columns).loss, model()(input_ids=tokens(), labels=tokens()).loss
    assert not torch.isclose(apart, mixed, rtol=1e-3)
    patched = llama_model.sharing(model())
    hf_llama.patch(patched, llama_model.make_optimizer(patched))
    for changed in (
        patched,
        hf_llama_chunks.keeping_columns(hf_llama_chunks.loss_in_chunks, llama_model.sharing(model())),
    ):
        changed.config.use_cache = True  # as it comes: with a cache the library would mix the texts
        passed = as_the_trainer_passes(changed, {**columns, "source": tokens()})
        assert passed.keys() == columns.keys()
        torch.testing.assert_close(changed(**passed).loss, apart)
    changed = hf_llama_chunks.keeping_columns(hf_llama_kernels.with_kernels, llama_model.sharing(model()))
    with pytest.raises(ValueError, match=r"got \['position_ids'\]"):
        changed(**as_the_trainer_passes(changed, columns))


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("items", [None, torch.tensor(100, device=HERE)], ids=str)
def test_a_batch_without_labels_adds_nothing(change: Callable, items: Tensor | None) -> None:
    """A prompt alone; and a text of one token, which has no next one."""
    changed = change(llama_model.sharing(model()))
    labels = torch.full_like(tokens(), -100)
    labels[:, 0] = 1  # the first token is nobody's next one
    for ids, asked in ((tokens(), labels), (tokens()[:, :1], tokens()[:, :1])):
        found = with_gradients(changed(input_ids=ids, labels=asked, num_items_in_batch=items).loss, model())
        assert found.pop("loss") == 0
        assert all(grad is None or not grad.any() for grad in found.values())


@pytest.mark.parametrize("change", CHANGES)
def test_a_copy_has_its_own_weights(change: Callable) -> None:
    asked = {"input_ids": tokens(), "labels": tokens()}
    live = hf_llama_chunks.keeping_columns(change, copy.deepcopy(model()))
    before = live(**asked).loss
    for own in (copy.deepcopy(live), AveragedModel(live)):
        with torch.no_grad():
            for p in live.parameters():
                p.mul_(1.5)
            evaluated = own(**asked).loss
        torch.testing.assert_close(own(**asked).loss, before)
        torch.testing.assert_close(evaluated, before)
        assert not torch.isclose(live(**asked).loss, before, rtol=1e-3)
        live.load_state_dict(model().state_dict())


@pytest.mark.parametrize("change", CHANGES)
def test_what_would_be_dropped_is_refused(change: Callable) -> None:
    changed = change(llama_model.sharing(model()))
    asked = {"input_ids": tokens(), "labels": tokens()}
    with pytest.raises(TypeError, match="positional arguments"):
        changed(tokens(), torch.ones_like(tokens()), tokens())
    lost = {"shift_labels": tokens(), "ignore_index": 0, "output_hidden_states": True, "return_dict": False}
    for name, value in lost.items():
        with pytest.raises(ValueError, match=rf"expected the library's defaults, got \['{name}'\]"):
            changed(**asked, **{name: value})
        with torch.no_grad():  # evaluation has it
            changed(**asked, **{name: value})
    torch.testing.assert_close(changed(**asked, return_dict=True, output_attentions=False).loss, changed(**asked).loss)
    with pytest.raises(ValueError, match=r"model\.forward: expected the class's own"):
        change(changed)
    changed.lm_head = nn.Sequential(changed.lm_head)
    with pytest.raises(ValueError, match=r"lm_head: expected a plain nn\.Linear"):
        changed(**asked)


def test_chunks_of_many_rows_are_a_quarter_each(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def seen(x: Tensor, weight: Tensor, target: Tensor, rows: int) -> Tensor:
        asked.append(rows)
        return x.sum()

    monkeypatch.setattr(hf_llama_chunks, "LinearCrossEntropy", SimpleNamespace(apply=seen))
    for length in (64, 4096, 4098):
        hf_llama_chunks.chunked_loss(
            torch.zeros(4, length, 1), torch.zeros(1, 1), torch.zeros(4, length, dtype=torch.int64)
        )
    assert asked == [1024, 4096, 4098]


def test_an_adapter_a_bias_and_another_activation_are_refused() -> None:
    for change in (hf_llama_chunks.loss_in_chunks, hf_llama_kernels.with_kernels):
        adapted = llama_model.sharing(model())
        adapted.lm_head = nn.Sequential(adapted.lm_head)
        with pytest.raises(ValueError, match=r"lm_head: expected a plain nn\.Linear"):
            change(adapted)
    adapted = llama_model.sharing(model())
    adapted.model.layers[0].mlp.up_proj = nn.Linear(64, 128, device=HERE)
    with pytest.raises(ValueError, match=r"layers\.0\.mlp\.up_proj: expected a plain nn\.Linear"):
        hf_llama_kernels.with_kernels(adapted)
    for setting, value in (("hidden_act", "gelu"), ("attention_dropout", 0.1)):
        other = llama_model.sharing(model())
        setattr(other.config, setting, value)
        with pytest.raises(ValueError, match="config: expected hidden_act='silu' and attention_dropout=0"):
            hf_llama_kernels.with_kernels(other)
