"""The loop gives the library's tokens in any slot, length and order; wrong input is refused."""

import pytest
import torch

from snippets.examples import generation
from tests.snippets.examples.test_generation import HERE, expected, generator, model, prompts


@pytest.mark.parametrize("slots", (1, 2, 4))
def test_sequences_of_any_length_get_the_library_s_tokens_in_any_number_of_slots(slots: int) -> None:
    assert generator(slots).generate(prompts(), 12, every=5) == expected()


def test_a_sequence_ends_at_its_stop_and_its_slot_takes_the_next_prompt() -> None:
    stop = expected()[0][3]
    answers = generator(1).generate(prompts(), 12, stop=stop, every=2)
    for answer, whole in zip(answers, expected(), strict=True):
        assert answer == (whole[: whole.index(stop) + 1] if stop in whole else whole)


def test_the_cache_equals_what_the_library_computes_of_the_whole_sequence() -> None:
    loop = generator(1)
    (answer,) = loop.generate(prompts()[:1], 12, every=11)  # 11 steps: the last token is chosen and not read
    sequence = torch.tensor([*prompts()[0].tolist(), *answer], device=HERE)[None]
    with torch.no_grad():
        layers = model()(sequence, use_cache=True).past_key_values.layers
    for cache, layer in zip(loop.decoder.cache, layers, strict=True):
        for kept, whole in zip(cache, (layer.keys, layer.values), strict=True):
            torch.testing.assert_close(kept[:, :, : 5 + 11], whole[:, :, : 5 + 11], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("bad", ([], [0] * 53), ids=("empty", "too long"))
def test_a_prompt_that_does_not_fit_is_refused_before_any_other_is_read(bad: list[int]) -> None:
    loop = generator(1)
    message = rf"prompt 1: expected 1 to 52 tokens \(cache less new\), got {len(bad)}"
    with pytest.raises(ValueError, match=message):
        loop.generate([prompts()[0], torch.tensor(bad, dtype=torch.long, device=HERE)], 12)
    assert loop.generate(prompts()[:1], 12) == expected()[:1]


def test_an_answer_may_end_at_the_last_place_of_the_cache() -> None:
    """The last steps before the host looks go on behind it."""
    prompt = torch.arange(52, device=HERE)
    assert generator(1).generate([prompt], 12, every=7) == [generation.by_library(model(), prompt, 12)]


@pytest.mark.parametrize(
    "sampling", ({"temperature": -1.0}, {"temperature": float("nan")}, {"top_p": 0.0}, {"top_k": -1}, {"top_k": 257})
)
def test_sampling_that_would_draw_the_wrong_tokens_is_refused(sampling: dict) -> None:
    message = "sampling: expected temperature from 0, top_k from 0 to 256, top_p above 0 and up to 1, got"
    with pytest.raises(ValueError, match=message):
        generator(1, **sampling)
    with pytest.raises(TypeError, match="expected temperature, top_k and top_p, got topk"):
        generator(1, topk=3)


def test_a_loop_that_would_not_end_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one slot"):
        generator(0)
    with pytest.raises(ValueError, match="every: expected at least 1, got 0"):
        generator(1).generate(prompts(), 4, every=0)
    for new in (0, 64):
        with pytest.raises(ValueError, match=rf"new: expected 1 to 63 tokens \(cache less a prompt\), got {new}"):
            generator(1).generate(prompts(), new)


@pytest.mark.parametrize(("bad", "got"), ((torch.zeros(1, 5).long(), r"\(1, 5\)"), ([1, 2, 3], "list")))
def test_what_is_no_row_of_tokens_is_refused(bad: object, got: str) -> None:
    with pytest.raises(ValueError, match=rf"prompt 0: expected a tensor of tokens \(length,\), got {got}"):
        generator(1).generate([bad], 4)


def test_what_an_earlier_sequence_left_in_a_slot_does_not_reach_the_next() -> None:
    loop = generator(1)
    for cache in (each for layer in loop.decoder.cache for each in layer):
        cache.fill_(float("nan"))
    assert loop.generate(prompts()[:1], 12) == expected()[:1]


def test_any_of_several_stops_ends_an_answer() -> None:
    whole = expected()[0]
    for stops in ([whole[3], 999], (999, whole[1]), {whole[0]}):
        first = next(n for n, token in enumerate(whole) if token in stops)
        assert generator(1).generate(prompts()[:1], 12, stop=stops) == [whole[: first + 1]]


def test_no_prompt_gives_no_answer() -> None:
    assert generator(2).generate([], 4) == []


def test_the_seed_decides_what_is_sampled() -> None:
    def drawn(seed: int) -> list[list[int]]:
        own, given = generator(2, temperature=1.0, top_k=50), prompts()  # the first draws weights
        torch.manual_seed(seed)
        return own.generate(given, 12)

    assert drawn(1) == drawn(1) != drawn(2)
