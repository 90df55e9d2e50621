"""The loop of examples/generation gives the library's tokens in any slot, length and order; wrong input is refused."""

import functools
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("transformers", reason="a development dependency: constraints.txt names its version")

from snippets.examples import generation
from snippets.examples.generation import Decoder, Generator, sample

HERE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@functools.cache
def model() -> nn.Module:
    torch.manual_seed(0)
    return generation.make_model(generation.TINY, HERE, torch.float32)


@functools.cache
def prompts() -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(256, (n,), generator=generator).to(HERE) for n in (5, 17, 9)]


@functools.cache
def expected(new: int = 12) -> list[list[int]]:
    return [generation.by_library(model(), prompt, new) for prompt in prompts()]


def generator(slots: int, **sampling: float) -> Generator:
    return Generator(model(), Decoder(model(), slots, 64), **sampling)


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
    ("sizes", "message"),
    (
        ({"attention_bias": True}, r"expected no bias, got model\.layers\.0\.self_attn\.q_proj\.bias"),
        ({"head_dim": 64}, "expected heads that together are as wide as the model, got 256 in 128"),
        ({"hidden_act": "gelu"}, "expected SiLU, got gelu"),
        ({"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}}, "on the length, got dynamic"),
    ),
)
def test_a_model_whose_step_is_another_is_refused(sizes: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        generation.prepared(other_model(**sizes))


def test_what_is_no_plain_llama_is_refused() -> None:
    with pytest.raises(TypeError, match="model: expected a LlamaForCausalLM, got a Linear"):
        generation.prepared(nn.Linear(1, 1))
    changed = other_model()
    changed.model.layers[1].mlp.up_proj = nn.Sequential(changed.model.layers[1].mlp.up_proj)
    with pytest.raises(ValueError, match=r"plain linear layers .* got model\.layers\.1\.mlp\.up_proj"):
        generation.prepared(changed)
    with pytest.raises(ValueError, match=r"expected int8, float8_e4m3fn or uint8 \(for int4\), got torch\.float16"):
        generation.refuse(model(), torch.float16)
    narrow = other_model(hidden_size=64, intermediate_size=192)
    with pytest.raises(ValueError, match=r"columns in steps of 128 for int4, got model\.layers\.0"):
        generation.refuse(narrow, torch.uint8)
    generation.refuse(narrow, torch.int8)


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


def test_a_model_is_not_prepared_in_inference_mode() -> None:
    """Its merged weights could never be trained again."""
    with torch.inference_mode(), pytest.raises(RuntimeError, match=r"outside torch\.inference_mode"):
        generation.prepared(other_model())


def other_model(**sizes: object) -> nn.Module:
    return generation.make_model(generation.TINY | sizes, HERE, torch.float32)


def test_compiled_layers_give_the_same_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """Captured as always; Inductor would take a minute."""
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="aot_eager"))
    assert generation.prepared(model(), slots=2, length=64).generate(prompts(), 12) == expected()
    torch._dynamo.reset()


class Bytes:
    """A tokenizer: a token is a byte."""

    eos_token_id = 0

    def __call__(self, text: str, return_tensors: str) -> SimpleNamespace:
        assert return_tensors == "pt"
        return SimpleNamespace(input_ids=torch.tensor([list(text.encode())]))

    def decode(self, tokens: list[int]) -> str:
        return " ".join(map(str, tokens))


def test_texts_are_answered() -> None:
    found = generation.answered(generator(2), Bytes(), ["Why?", "Is it so?"], new=6)
    for text, answer in zip(("Why?", "Is it so?"), found, strict=True):
        expected = generation.by_library(model(), torch.tensor(list(text.encode()), device=HERE), 6)
        assert answer == " ".join(map(str, expected[: expected.index(0) + 1] if 0 in expected else expected))


def test_no_prompt_gives_no_answer() -> None:
    assert generator(2).generate([], 4) == []


def test_the_seed_decides_what_is_sampled() -> None:
    def drawn(seed: int) -> list[list[int]]:
        torch.manual_seed(seed)
        return generator(2, temperature=1.0, top_k=50).generate(prompts(), 12)

    assert drawn(1) == drawn(1) != drawn(2)


LOGITS = torch.tensor([0.5, 0.25, 0.15, 0.1]).log()


@pytest.mark.parametrize(
    ("options", "possible"),
    (
        ({}, 4),
        ({"top_k": 2}, 2),
        ({"top_p": 0.5}, 1),
        ({"top_p": 0.6}, 2),
        ({"top_p": 0.0}, 1),
        ({"top_k": 3, "top_p": 0.99}, 3),
    ),
)
def test_tokens_are_drawn_as_often_as_they_are_likely(options: dict, possible: int) -> None:
    torch.manual_seed(0)
    drawn = sample(LOGITS.expand(20000, 4), temperature=1.0, **options).bincount(minlength=4) / 20000
    p = LOGITS.exp()[:possible]
    torch.testing.assert_close(drawn, torch.cat((p / p.sum(), torch.zeros(4 - possible))), rtol=0, atol=0.015)


@pytest.mark.parametrize("dtype", (torch.int8, torch.float8_e4m3fn, torch.uint8))
def test_quantised_weights_are_as_near_as_their_dtype_allows(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    weight = torch.randn(16, 256)
    error = (generation.restored(generation.quantized(weight, dtype), torch.float32) - weight).abs()
    most = weight.abs().unflatten(1, (-1, 128)).amax(-1, keepdim=True).expand(-1, -1, 128).flatten(1)
    if dtype == torch.uint8:
        assert (error <= most / 7 / 2 * 1.001).all()
    else:
        row = weight.abs().amax(1, keepdim=True)
        allowed = row / 127 / 2 if dtype == torch.int8 else weight.abs() / 16 + row / 448 / 1024
        assert (error <= allowed * 1.001).all()


def test_merging_again_makes_no_second_copy() -> None:
    first, second = (Decoder(model(), 1, 8).layers[0].qkv[0] for _ in range(2))
    assert first.data_ptr() == second.data_ptr()
    assert model().model.layers[0].self_attn.q_proj.weight.data_ptr() == first.data_ptr()


def test_a_weight_that_was_replaced_is_merged_anew() -> None:
    """Also one that lies in the storage of its neighbours, but not between them, as in a file's memory map."""
    changed = other_model()
    own = changed.model.layers[1].self_attn
    before = Decoder(changed, 1, 8).layers[1].qkv[0]
    own.k_proj.weight.data = own.k_proj.weight.data.flip(0)
    after = Decoder(changed, 1, 8).layers[1].qkv[0]
    assert torch.equal(after, torch.cat((own.q_proj.weight, own.k_proj.weight, own.v_proj.weight)))
    assert not torch.equal(after, before)
    whole = torch.randn(600, 128, device=HERE)
    own.q_proj.weight.data, own.k_proj.weight.data, own.v_proj.weight.data = whole[100:228], whole[300:364], whole[:64]
    expected = torch.cat((whole[100:228], whole[300:364], whole[:64]))
    assert torch.equal(Decoder(changed, 1, 8).layers[1].qkv[0], expected)


@pytest.mark.parametrize("other", ("sdpa", "flex"))
def test_attention_by_pytorch_s_functions(other: str) -> None:
    torch.manual_seed(0)
    q, keys, values = (torch.randn(*shape, device=HERE) for shape in ((3, 4, 16), (3, 2, 128, 16), (3, 2, 128, 16)))
    positions = torch.tensor([0, 60, 127], device=HERE)
    hidden = torch.arange(128, device=HERE) > positions[:, None]
    by = (
        generation.by_sdpa(q, keys, values, hidden)
        if other == "sdpa"
        else generation.by_flex(q, keys, values, positions)()
    )
    torch.testing.assert_close(by, generation.attended(q, keys, values, hidden), rtol=1e-3, atol=1e-4)
