"""Compiled layers give the library's tokens, and texts are answered; and what the tests of generation share."""

import functools
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("transformers", reason="a development dependency: constraints.txt names its version")

from snippets.examples import generation
from snippets.examples.generation_loop import Generator
from snippets.examples.generation_step import Decoder

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
