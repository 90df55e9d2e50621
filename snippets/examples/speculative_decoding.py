"""Speculative decoding of one sequence: cheap guesses, all checked by one step of the model, with its greedy tokens.

It needs transformers (5.17). Run `python -m snippets.examples.speculative_decoding` to see that the tokens are those
of `generate()`.
"""

import timeit
from collections.abc import Collection, Sequence

import torch
from torch import Tensor, nn

from snippets.examples.generation import TINY, by_library, make_model
from snippets.examples.generation_loop import Generator, check, stopped
from snippets.examples.generation_step import Decoder, compiled, refuse
from snippets.examples.speculative_decoding_drafts import Draft, DraftModel, agreeing, ngram


# --8<-- [start:verifier]
class Verifier(Decoder):
    """A Decoder whose rows are `width` neighbours of one sequence: all write to one cache, and read it."""

    def __init__(self, model: nn.Module, width: int, length: int, dtype: torch.dtype | None = None):
        super().__init__(model, 1, length, dtype)
        self.slots = self.slots.new_zeros(width)

    def attended(self, q: Tensor, keys: Tensor, values: Tensor, hidden: Tensor) -> Tensor:
        """One product for all rows. As another slot's, each row's would first copy the cache."""
        wide, width = torch.promote_types(q.dtype, torch.float32), len(q)
        q = q.unflatten(1, (self.shared, -1)).transpose(0, 1)  # (shared, width, heads that share, size)
        scores = (q.flatten(1, 2) @ keys[0].mT).unflatten(1, (width, -1)) * self.size**-0.5
        weights = scores.masked_fill(hidden[:, None], float("-inf")).softmax(-1, dtype=wide).to(q.dtype)
        return (weights.flatten(1, 2) @ values[0]).unflatten(1, (width, -1)).transpose(0, 1).flatten(1)


# --8<-- [end:verifier]


# --8<-- [start:speculator]
class Speculator(Generator):
    """Answers one prompt at a time with the model's greedy tokens, several a step where the draft is right."""

    def __init__(self, model: nn.Module, decoder: Verifier, draft: Draft):
        if not isinstance(decoder, Verifier):
            raise TypeError(f"decoder: expected a Verifier, got a {type(decoder).__name__}")
        if len(decoder.slots) < 2:
            raise ValueError(f"decoder: expected a width of at least 2, got {len(decoder.slots)}")
        super().__init__(model, decoder)
        if isinstance(draft, DraftModel) and draft.loop.length < self.length:
            raise ValueError(f"draft: expected a cache of {self.length} places or more, got {draft.loop.length}")
        self.draft, self.width, self.steps = draft, len(decoder.slots), 0

    def generate(  # type: ignore[override]
        self, prompts: Sequence[Tensor], new: int, stop: int | Collection[int] | None = None
    ) -> list[list[int]]:
        """Up to `new` tokens for each prompt, until a `stop`. `steps` says how often the model checked a draft."""
        check(prompts, new, self.length)
        self.steps = 0
        return [self.answer(prompt, new, stop) for prompt in prompts]

    def answer(self, prompt: Tensor, new: int, stop: int | Collection[int] | None) -> list[int]:
        self.admit(0, prompt)
        text = [*prompt.tolist(), int(self.tokens[0])]
        while len(text) < len(prompt) + new and not stopped(text[-1:], stop):
            found = self.checked(text, self.draft(text, self.width - 1)[: self.width - 1])
            text += stopped(found, stop) or found
        return text[len(prompt) : len(prompt) + new]

    def checked(self, text: list[int], drafted: list[int]) -> list[int]:
        """The drafted tokens that the model would choose, up to the first other one, and the one that it chooses."""
        rows, last = [text[-1], *drafted], len(text) - 1
        rows += rows[-1:] * (self.width - len(rows))
        self.tokens.copy_(torch.tensor(rows))
        # What wrong rows leave in the cache is hidden until the right token overwrites it.
        self.positions.copy_(torch.arange(last, last + self.width).clamp_(max=self.length - 1))
        self.replay()
        self.steps += 1
        chosen = self.tokens.tolist()  # waits for the GPU
        return chosen[: agreeing(rows[1:], chosen) + 1]


# --8<-- [end:speculator]


# --8<-- [start:answer]
def prepared(
    model: nn.Module,
    draft: nn.Module | None = None,
    width: int = 4,
    length: int = 2048,
    dtype: torch.dtype | None = None,
) -> Speculator:
    """Make it once: this compiles. Each step checks width - 1 tokens: the draft model's, or those of n-gram lookup."""
    refuse(model, dtype)
    if draft is not None:
        refuse(draft)
    decoder = compiled(Verifier(model, width, length, dtype))
    if draft is None:
        return Speculator(model, decoder, ngram)
    if (got := draft.config.vocab_size) != (expected := model.config.vocab_size):
        raise ValueError(f"draft: expected the model's vocabulary of {expected} tokens, got {got}")
    return Speculator(model, decoder, DraftModel(draft, compiled(Decoder(draft, 1, length))))


# --8<-- [end:answer]


def main() -> None:
    """Three drafters beside `generate()`."""
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model, small = (make_model(TINY | {"num_hidden_layers": n}, device, torch.float32) for n in (2, 1))
    prompt = torch.randint(256, (24,), device=device)
    expected = by_library(model, prompt, 64)
    drafts = {"the model itself": model, "a smaller model": small}
    drafters = {name: DraftModel(each, Decoder(each, 1, 128)) for name, each in drafts.items()}
    print("==== same")
    for name, draft in ({"n-gram lookup": ngram} | drafters).items():
        loop = Speculator(model, Verifier(model, 4, 128), draft)
        (found,) = loop.generate([prompt], 64)
        print(f"{name:16}: {found == expected}, {len(found)} tokens in {loop.steps} steps of 4")
    print("==== lookup")
    text = list(range(2000))
    print(f"2000 tokens: {min(timeit.repeat(lambda: ngram(text, 3), number=100)) / 100 * 1e6:.0f} µs")


if __name__ == "__main__":
    main()
