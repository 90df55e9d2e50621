"""Pages give the library's tokens, whoever had them before."""

import functools

import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("transformers", reason="a development dependency: constraints.txt names its version")

from snippets.examples.generation import TINY, by_library, make_model
from snippets.examples.generation_loop import Generator
from snippets.examples.generation_step import Decoder
from snippets.examples.paged_cache import PAGE, PagedDecoder, PagedGenerator, prepared
from tests.snippets.examples.test_generation import HERE

NEW = 4
ONE_LAYER = TINY | {"num_hidden_layers": 1}


@functools.cache
def model() -> nn.Module:
    torch.manual_seed(0)
    return make_model(ONE_LAYER, HERE, torch.float32)


@functools.cache
def prompts() -> list[Tensor]:
    """An answer within a page, one that crosses into the next page, and one that begins with a page."""
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(256, (n,), generator=generator).to(HERE) for n in (5, 62, 64)]


@functools.cache
def expected() -> list[list[int]]:
    return [by_library(model(), prompt, NEW) for prompt in prompts()]


def generator(slots: int, pages: int, kept: torch.dtype | None = None) -> PagedGenerator:
    return PagedGenerator(model(), PagedDecoder(model(), slots, 128, pages, kept))


@pytest.mark.parametrize(("slots", "pages"), ((1, 3), (3, 4)), ids=("one slot", "a full pool"))
def test_the_library_s_tokens_in_any_number_of_slots_and_pages(slots: int, pages: int) -> None:
    loop = generator(slots, pages)
    for _ in range(2):  # each page has been used before
        assert loop.generate(prompts(), NEW, every=3) == expected()
        assert sorted(loop.free) == list(range(1, pages))
        for pool in loop.decoder.pools:
            for each in (pool.keys, pool.values):
                each.add_(7)  # what a page held for another must not count


def test_slots_without_a_sequence_write_to_the_spare_page_only() -> None:
    """Also one whose sequence has ended, and goes on past its last page."""
    loop = generator(3, 9)
    loop.reserve(0, 70)
    loop.admit(0, prompts()[2])
    loop.reserve(1, 10)
    loop.admit(1, prompts()[0])
    loop.release(1)
    before = [pool.keys.clone() for pool in loop.decoder.pools]
    for _ in range(2):
        loop.advance()
    written = [(pool.keys != old).any(3).any(1) for pool, old in zip(loop.decoder.pools, before, strict=True)]
    own = torch.zeros(9, PAGE, dtype=torch.bool, device=HERE)
    own[loop.held[0][1], :2] = True
    assert all(torch.equal(each[1:], own[1:]) for each in written)


def test_a_prompt_that_can_never_have_its_pages_is_refused_and_an_error_gives_pages_back() -> None:
    loop = generator(2, 2)
    with pytest.raises(ValueError, match=r"prompt 1: expected at most 60 tokens \(pool less new\), got 62"):
        loop.generate(prompts()[:2], NEW)
    with pytest.MonkeyPatch.context() as patch, pytest.raises(RuntimeError, match="out of memory"):
        patch.setattr(loop, "replay", raises)
        loop.generate(prompts()[:1], NEW)
    assert loop.free == [1]
    assert loop.generate(prompts()[:1], NEW, every=3) == expected()[:1]


def raises() -> None:
    raise RuntimeError("out of memory")


def test_what_the_decoder_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match=r"kept: expected None or float8_e4m3fn, got torch\.int8"):
        PagedDecoder(model(), 1, 64, 2, torch.int8)
    for pages, window in ((1, None), (2, 0)):
        with pytest.raises(ValueError, match=f"2 pages or more and a window of at least 1, got {pages} and {window}"):
            PagedDecoder(model(), 1, 64, pages, window=window)


def test_compiled_layers_give_the_same_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """Captured as always; Inductor would take a minute."""
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="aot_eager"))
    assert prepared(model(), 1, 128, places=128).generate(prompts()[1:2], NEW, every=3) == expected()[1:2]
    torch._dynamo.reset()


def test_a_model_with_a_sliding_window() -> None:
    """Mistral's step is Llama's, but for the window."""
    from transformers import MistralConfig, MistralForCausalLM

    torch.manual_seed(0)
    config = MistralConfig(**ONE_LAYER, head_dim=32, sliding_window=6, attn_implementation="sdpa")
    mistral = MistralForCausalLM(config).to(HERE).eval()
    sequence = prompts()[1][:9]
    with torch.no_grad():
        exact = mistral(sequence[None]).logits[0]
    torch.testing.assert_close(logits_of(mistral, sequence, 6), exact, rtol=1e-4, atol=1e-4)
    for window in (5, 7):
        assert (logits_of(mistral, sequence, window) - exact).abs().max() > 0.01


@torch.no_grad()
def logits_of(mistral: nn.Module, sequence: Tensor, window: int) -> Tensor:
    """Its logits at each place, read token by token."""
    decoder = PagedDecoder(mistral, 1, 128, 3, window=window)
    decoder.table[0] = torch.tensor([2, 1])
    places = torch.arange(len(sequence), device=HERE).split(1)
    return torch.cat([decoder(token, place) for token, place in zip(sequence.split(1), places, strict=True)])


def test_prompts_of_different_lengths_need_no_padding() -> None:
    """A batch that is padded on the left gives the tokens that each prompt gives alone."""
    longest = max(map(len, prompts()))
    pads = [longest - len(prompt) for prompt in prompts()]
    padded = torch.stack([torch.nn.functional.pad(p, (n, 0)) for p, n in zip(prompts(), pads, strict=True)])
    mask = torch.arange(longest, device=HERE) >= torch.tensor(pads, device=HERE)[:, None]
    found = model().generate(
        padded, attention_mask=mask.long(), do_sample=False, pad_token_id=0, max_new_tokens=NEW, eos_token_id=None
    )
    assert (
        found[:, longest:].tolist()
        == expected()
        == Generator(model(), Decoder(model(), 3, 128)).generate(prompts(), NEW)
    )
