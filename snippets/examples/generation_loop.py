"""Prompts in free slots, which decode together as one CUDA graph."""

from collections.abc import Callable, Collection, Sequence

import torch
from torch import Tensor, nn

from snippets.examples.generation_sample import sample
from snippets.examples.generation_step import Decoder, refuse


# --8<-- [start:loop]
def check(prompts: Sequence[Tensor], new: int, length: int) -> None:
    """What does not fit into a cache of `length` places is refused before anything is read."""
    if not 0 < new < length:
        raise ValueError(f"new: expected 1 to {length - 1} tokens (cache less a prompt), got {new}")
    for which, prompt in enumerate(prompts):
        if not isinstance(prompt, Tensor) or prompt.dim() != 1:
            got = tuple(prompt.shape) if isinstance(prompt, Tensor) else type(prompt).__name__
            raise ValueError(f"prompt {which}: expected a tensor of tokens (length,), got {got}")
        if not 0 < len(prompt) <= (most := length - new):
            raise ValueError(f"prompt {which}: expected 1 to {most} tokens (cache less new), got {len(prompt)}")


def stopped(answer: list[int], stop: int | Collection[int] | None) -> list[int] | None:
    """The answer up to its first stop token; none where it has none."""
    stops = {stop} if isinstance(stop, int) else set(stop or ())
    return next((answer[: n + 1] for n, token in enumerate(answer) if token in stops), None)


class Generator:
    """Answers prompts: each takes a free slot, and all slots decode together, one CUDA graph replay a token."""

    def __init__(self, model: nn.Module, decoder: Decoder, **sampling: float):
        refuse(model)
        if not set(sampling) <= {"temperature", "top_k", "top_p"}:
            raise TypeError(f"sampling: expected temperature, top_k and top_p, got {', '.join(sampling)}")
        temperature, top_k, top_p = (sampling.get(*each) for each in (("temperature", 0), ("top_k", 0), ("top_p", 1)))
        most = model.config.vocab_size
        if not temperature >= 0 or top_k not in range(most + 1) or not 0 < top_p <= 1:
            expected = f"temperature from 0, top_k from 0 to {most}, top_p above 0 and up to 1"
            raise ValueError(f"sampling: expected {expected}, got {sampling}")
        if not len(decoder.slots) or not len(decoder.places):
            raise ValueError("decoder: expected at least one slot and one place")
        if decoder.norm.is_cuda and decoder.norm.get_device() != torch.cuda.current_device():
            raise ValueError(
                f"model: expected it on the current GPU (torch.cuda.set_device), got {decoder.norm.device}"
            )
        self.model, self.decoder, self.sampling = model, decoder, sampling
        device, slots, self.length = decoder.norm.device, len(decoder.slots), len(decoder.places)
        self.tokens, self.positions = (torch.zeros(slots, dtype=torch.long, device=device) for _ in range(2))
        self.answers = torch.zeros(slots, self.length + 1, dtype=torch.long, device=device)
        self.replay = self.advance
        if device.type == "cuda":
            self.keep = torch.compile(self.keep, dynamic=False)  # seven small kernels become three
            self.replay = self.captured()

    @torch.no_grad()
    def advance(self) -> None:
        """One token for each slot. Nothing is read by the host, so that a CUDA graph can repeat it."""
        self.keep(self.decoder(self.tokens, self.positions))

    def keep(self, logits: Tensor) -> None:
        self.tokens.copy_(sample(logits, **self.sampling))
        self.answers[self.decoder.slots, self.positions + 1] = self.tokens
        self.positions.add_(1).clamp_(max=self.length - 1)  # a slot that nobody waits for writes behind its answer

    def captured(self) -> Callable[[], None]:
        for _ in range(3):
            self.advance()  # compiles, and allocates what libraries keep
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.advance()
        return graph.replay

    @torch.no_grad()
    def admit(self, slot: int, prompt: Tensor) -> None:
        """The library's own forward reads the prompt (length,); its keys and values go into the slot."""
        found = self.model(prompt[None], use_cache=True, logits_to_keep=1)
        for (keys, values), layer in zip(self.decoder.cache, found.past_key_values.layers, strict=True):
            for cache, read in ((keys, layer.keys), (values, layer.values)):
                cache[slot, :, : len(prompt)] = read[0]
                cache[slot, :, len(prompt) :] = 0  # hidden, but 0 * NaN of an earlier sequence would still be NaN
        self.begin(slot, len(prompt), found.logits[:, -1])

    def begin(self, slot: int, length: int, logits: Tensor) -> None:
        self.tokens[slot] = sample(logits, **self.sampling)[0]
        self.positions[slot] = length
        self.answers[slot, length] = self.tokens[slot]

    def reserve(self, slot: int, places: int) -> bool:
        """Whether the slot has room for so many tokens: always, as the lengths were checked."""
        return True

    def release(self, slot: int) -> None:
        """What to do when its sequence has ended: nothing here."""

    def generate(
        self, prompts: Sequence[Tensor], new: int, stop: int | Collection[int] | None = None, every: int = 16
    ) -> list[list[int]]:
        """Up to `new` tokens for each prompt, until a `stop`. The host looks for it at `every` so many tokens."""
        if every < 1:
            raise ValueError(f"every: expected at least 1, got {every}")
        check(prompts, new, self.length)
        waiting, found = list(enumerate(prompts)), dict[int, list[int]]()
        running: dict[int, tuple[int, int]] = {}  # by slot: which prompt, and the length of its prompt
        while waiting or running:
            for slot in range(len(self.tokens)):
                if waiting and slot not in running and self.reserve(slot, len(waiting[0][1]) + new):
                    which, prompt = waiting.pop(0)
                    self.admit(slot, prompt)
                    running[slot] = which, len(prompt)
            for _ in range(every):
                self.replay()
            answers, ends = self.answers.tolist(), self.positions.tolist()  # waits for the GPU
            for slot, (which, start) in list(running.items()):
                answer = answers[slot][start : min(ends[slot] + 1, start + new)]
                ended = stopped(answer, stop)
                if ended or len(answer) == new:
                    found[which] = ended or answer
                    del running[slot]
                    self.release(slot)
        return [found[which] for which in range(len(prompts))]


# --8<-- [end:loop]
