"""examples/speculative_decoding gives the library's greedy tokens, whatever the drafts; right drafts save steps."""

import functools

import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("transformers", reason="a development dependency: constraints.txt names its version")

from snippets.examples import generation, speculative_decoding
from snippets.examples.generation_step import Decoder
from snippets.examples.speculative_decoding import Speculator, Verifier
from snippets.examples.speculative_decoding_drafts import Draft, DraftModel, acceptance, agreeing, ngram
from tests.snippets.examples.test_generation import HERE, model, other_model

NEW = 20


@functools.cache
def small() -> nn.Module:
    """Its drafts are sometimes right: it is the model without noise in its weights' last digits."""
    torch.manual_seed(0)
    changed = other_model()
    changed.load_state_dict(model().state_dict())
    for weight in changed.parameters():
        weight.data += 0.03 * torch.randn_like(weight) * weight.std()
    return changed


@functools.cache
def prompts() -> list[Tensor]:
    """Of one token, of random ones, and of some that repeat themselves."""
    generator = torch.Generator().manual_seed(1)
    random = [torch.randint(256, (n,), generator=generator) for n in (1, 2, 5, 17)]
    return [prompt.to(HERE) for prompt in [*random, random[2].repeat(4), torch.full((9,), 7)]]


@functools.cache
def expected(which: int) -> list[int]:
    return generation.by_library(model(), prompts()[which], NEW)


def whole() -> list[list[int]]:
    return [expected(which) for which in range(len(prompts()))]


def oracle(text: list[int], k: int) -> list[int]:
    """Always right: of each prompt it knows the answer."""
    for prompt, answer in zip(prompts(), whole(), strict=True):
        both = [*prompt.tolist(), *answer]
        if len(text) > len(prompt) and both[: len(text)] == text:
            return both[len(text) :][:k]
    return []


def wrong(text: list[int], k: int) -> list[int]:
    return [(token + 1) % 256 for token in oracle(text, k)]


def then_wrong(text: list[int], k: int) -> list[int]:
    return [*oracle(text, 1), *wrong(text, k)[1:]]


def speculator(draft: Draft, width: int = 4, length: int = 64) -> Speculator:
    return Speculator(model(), Verifier(model(), width, length), draft)


def drafts_of(drafter: nn.Module, length: int = 64) -> DraftModel:
    return DraftModel(drafter, Decoder(drafter, 1, length))


DRAFTS = {"n-gram": lambda: ngram, "model": lambda: drafts_of(small()), "itself": lambda: drafts_of(model())}
DRAFTS |= {name: lambda draft=draft: draft for name, draft in (("wrong", wrong), ("then wrong", then_wrong))}


@pytest.mark.parametrize("width", (2, 3, 4, 5))
@pytest.mark.parametrize("name", DRAFTS)
def test_the_tokens_are_those_of_the_library(name: str, width: int) -> None:
    assert speculator(DRAFTS[name](), width).generate(prompts(), NEW) == whole()


@pytest.mark.parametrize("width", (2, 4))
def test_right_drafts_save_steps_and_wrong_ones_do_not(width: int) -> None:
    """The prompt gives the first token; each further step gives the draft and one more, or only that one."""
    itself, never, once = (speculator(draft, width) for draft in (drafts_of(model()), wrong, then_wrong))
    for loop, a_step in ((itself, width), (speculator(oracle, width), width), (never, 1), (once, 2)):
        assert loop.generate(prompts()[:4], NEW) == whole()[:4]
        assert loop.steps == 4 * -(-(NEW - 1) // a_step)


def test_a_draft_model_that_errs_is_right_more_often_than_never() -> None:
    loop = speculator(drafts_of(small()))
    loop.generate(prompts(), NEW)
    assert len(prompts()) * (NEW - 1) / 4 < loop.steps < len(prompts()) * (NEW - 1)


def test_a_step_of_several_tokens_is_as_many_steps_of_one() -> None:
    torch.manual_seed(0)
    one, several = Decoder(model(), 1, 32), Verifier(model(), 4, 32)
    for own, other in zip(one.cache, several.cache, strict=True):
        for kept, copied in zip(own, other, strict=True):
            copied.copy_(kept.normal_())
    tokens, positions = torch.tensor([3, 1, 4, 1], device=HERE), torch.arange(9, 13, device=HERE)
    singly = [one(token[None], at[None]) for token, at in zip(tokens, positions, strict=True)]
    torch.testing.assert_close(several(tokens, positions), torch.cat(singly), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(several.cache, one.cache, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("follows", (oracle, wrong, then_wrong))
def test_the_draft_model_s_cache_is_right_after_each_draft(follows: Draft) -> None:
    """Whether all of the last draft was right, a part, or nothing; and after another text."""
    draft, k = drafts_of(model()), 3
    for prompt, answer in zip(prompts()[3:5], whole()[3:5], strict=True):
        text, end = [*prompt.tolist(), answer[0]], len(prompt) + NEW - k
        both = [*prompt.tolist(), *answer]
        while len(text) < end:
            assert draft(text, k) == both[len(text) :][:k]
            text = both[: len(text) + agreeing(follows(text, k), both[len(text) :]) + 1]


def test_the_draft_model_reads_a_prompt_once(monkeypatch: pytest.MonkeyPatch) -> None:
    draft, read = drafts_of(model()), []
    admit = draft.loop.admit
    monkeypatch.setattr(draft.loop, "admit", lambda slot, text: (read.append(len(text)), admit(slot, text)))
    speculator(draft).generate(prompts()[3:5], NEW)
    assert read == [len(prompt) + 1 for prompt in prompts()[3:5]]


@pytest.mark.parametrize("at", (0, 5, 7))
def test_a_stop_inside_an_accepted_run_ends_the_answer(at: int) -> None:
    answer = expected(3)
    stop = answer[at]
    found = speculator(oracle, 5).generate(prompts()[3:4], NEW, stop=stop)
    assert found == [answer[: answer.index(stop) + 1]]


@pytest.mark.parametrize("draft", ("n-gram", "model", "itself"))
def test_an_answer_may_end_at_the_last_place_of_the_cache(draft: str) -> None:
    """Rows behind it are clamped to it, and so are the draft model's steps."""
    prompt = torch.arange(64 - NEW, device=HERE)
    (found,) = speculator(DRAFTS[draft](), 5).generate([prompt], NEW)
    assert found == generation.by_library(model(), prompt, NEW)


@pytest.mark.parametrize("bad", ([], [0] * 45), ids=("empty", "too long"))
def test_a_prompt_that_does_not_fit_is_refused(bad: list[int]) -> None:
    loop = speculator(ngram)
    with pytest.raises(ValueError, match=rf"prompt 1: expected 1 to 44 tokens \(cache less new\), got {len(bad)}"):
        loop.generate([prompts()[0], torch.tensor(bad, dtype=torch.long, device=HERE)], NEW)
    assert not loop.steps


def test_other_bad_input_is_refused() -> None:
    with pytest.raises(ValueError, match=r"new: expected 1 to 63 tokens .* got 0"):
        speculator(ngram).generate(prompts(), 0)
    with pytest.raises(ValueError, match="decoder: expected a width of at least 2, got 1"):
        speculator(ngram, 1)
    with pytest.raises(ValueError, match="draft: expected the model's vocabulary of 256 tokens, got 300"):
        speculative_decoding.prepared(model(), other_model(vocab_size=300))
    with pytest.raises(ValueError, match="expected no bias"):
        speculative_decoding.prepared(model(), other_model(attention_bias=True))
    with pytest.raises(ValueError, match=r"got torch\.float16"):
        speculative_decoding.prepared(model(), dtype=torch.float16)


@pytest.mark.parametrize("drafter", (None, small))
def test_compiled_layers_give_the_same_tokens(drafter: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """Inductor would take a minute."""
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="aot_eager"))
    loop = speculative_decoding.prepared(model(), drafter and drafter(), width=3, length=64)
    assert loop.generate(prompts(), NEW) == whole()
    torch._dynamo.reset()


def test_acceptance_from_logs_foretells_the_steps() -> None:
    loop = speculator(ngram, 3)
    answers = loop.generate(prompts(), NEW)
    logs = [(prompt.tolist(), answer) for prompt, answer in zip(prompts(), answers, strict=True)]
    taken = len(prompts()) * (NEW - 1) / (1 + acceptance(logs, ngram, 2))
    assert abs(taken - loop.steps) <= len(prompts())  # an answer's last step may be cut


def test_a_loop_whose_parts_do_not_fit_is_refused() -> None:
    """A plain Decoder's rows would read caches of their own; a draft's short cache would end half way."""
    with pytest.raises(TypeError, match="decoder: expected a Verifier, got a Decoder"):
        Speculator(model(), Decoder(model(), 4, 64), ngram)
    short = DraftModel(model(), Decoder(model(), 1, 32))
    with pytest.raises(ValueError, match="draft: expected a cache of 64 places or more, got 32"):
        Speculator(model(), Verifier(model(), 4, 64), short)
    with pytest.raises(ValueError, match=r"text: expected at most 31 tokens \(the draft's cache\), got 32"):
        short(list(range(32)), 2)


def test_a_draft_that_is_longer_than_asked_is_cut() -> None:
    loop = Speculator(model(), Verifier(model(), 3, 64), lambda text, k: [*text, *text])
    prompt = torch.arange(1, 9, device=next(model().parameters()).device)
    assert loop.generate([prompt], 8) == [generation.by_library(model(), prompt, 8)]
