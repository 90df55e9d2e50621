"""Cheap guesses of the next tokens, by n-gram lookup or a smaller model, and how many are right."""

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import nn

from snippets.examples.generation_loop import Generator
from snippets.examples.generation_step import Decoder

Draft = Callable[[list[int], int], list[int]]  # of all tokens so far: up to so many that may come next


def agreeing(first: Sequence[int], second: Sequence[int]) -> int:
    """How many tokens are equal before the first that differs."""
    pairs = zip(first, second, strict=False)
    return next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(first), len(second)))


# --8<-- [start:ngram]
def ngram(text: list[int], k: int) -> list[int]:
    """What followed the last 3 tokens where they stood last; else the last 2, else the last one."""
    joined = "".join(map(chr, text))  # a character a token: Python finds a string fast
    for n in (3, 2, 1):
        at = joined.rfind(joined[-n:], 0, len(text) - 1)
        if at >= 0:
            found = text[at + n : at + n + k]
            return (found * k)[:k]  # where it reaches the end, it goes round
    return []


# --8<-- [end:ngram]


# --8<-- [start:draft]
class DraftModel:
    """Drafts the greedy tokens of a smaller model with the same tokenizer, which has a cache of its own."""

    def __init__(self, model: nn.Module, decoder: Decoder):
        self.loop = Generator(model, decoder)
        self.read: list[int] = []  # what its cache holds

    def __call__(self, text: list[int], k: int) -> list[int]:
        last, loop = len(text) - 1, self.loop
        if len(text) >= loop.length:
            raise ValueError(f"text: expected at most {loop.length - 1} tokens (the draft's cache), got {len(text)}")
        # All but the last token was read, or but the last two: if a whole draft was right, its end was not.
        known = [n for n in (last, last - 1) if text[:n] == self.read[:n]]
        if known:
            for place in range(known[0], last + 1):
                loop.tokens.fill_(text[place])
                loop.positions.fill_(place)
                loop.replay()
        else:
            loop.admit(0, torch.tensor(text, device=loop.tokens.device))
        for _ in range(k - 1):
            loop.replay()
        found = loop.answers[0, last + 1 : last + 1 + k].tolist()
        self.read = text + found[:-1]
        return found


# --8<-- [end:draft]


# --8<-- [start:acceptance]
def acceptance(logs: Iterable[tuple[list[int], list[int]]], draft: Draft, k: int) -> float:
    """Accepted tokens per step of k drafted ones, from prompts and answers. N-gram lookup needs no model for it."""
    steps = accepted = 0
    for prompt, answer in logs:
        text, at = prompt + answer, len(prompt) + 1  # the prompt's step gives the first token
        while at + k < len(text):
            found = agreeing(draft(text[:at], k), text[at : at + k])
            steps, accepted, at = steps + 1, accepted + found, at + found + 1
    return accepted / max(steps, 1)


# --8<-- [end:acceptance]
