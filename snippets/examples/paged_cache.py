"""Generation with a paged cache: sequences of any length share one pool of pages. It needs torch 2.11 or newer.

Run `python -m snippets.examples.paged_cache` to see that a small pool gives the tokens of `generate()`, and what a
cache in fp8 changes.
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
import triton
from torch import Tensor, nn

from snippets.examples.generation import LLAMA_1B, TINY, by_library, make_model
from snippets.examples.generation_loop import Generator, check
from snippets.examples.generation_step import Decoder, compiled, refuse, rotated, times
from snippets.examples.generation_weights import Layer, quantized
from snippets.examples.paged_cache_kernel import _paged_kernel

PAGE = 64  # places of a page
FP8 = torch.float8_e4m3fn


def launch(slots: int, shared: int, places: int, width: int) -> dict[str, int]:
    """From sweeps on an H100: about 1,000 programs, at least 2 a head, as lengths may differ; more than 32 spill."""
    splits = min(max(1024 // (slots * shared), 2), 32, math.ceil(places / PAGE))
    warps = 2 if width <= 128 else 4  # bytes of a vector; with wider ones, two warps spill
    return {"SPLITS": triton.next_power_of_2(splits), "BLOCK": 64, "num_warps": warps, "num_stages": 2}


@torch.library.custom_op("paged_cache::attend", mutates_args=("keys", "values", "scales", "counts"))
def attend(
    q: Tensor, k: Tensor, v: Tensor, keys: Tensor, values: Tensor, scales: Tensor | None, counts: Tensor,
    table: Tensor, positions: Tensor, window: int,
) -> Tensor:  # fmt: skip
    """Attention (slots, heads * D) of q (slots, heads, D), once k and v (slots, shared, D) have joined the pool.

    Args:
        keys, values: (pages, shared, PAGE, D), in q's dtype or in fp8 with scales (2, pages, shared, PAGE), fp32.
        counts: (slots * shared,), zeros, which a call leaves as they were.
        table: (slots, most), the page of each 64 places; 0, the spare page, where a slot has none.
        positions: (slots,): where the new token is. window: how many places it sees, with its own.
    """
    slots, heads, D = q.shape
    shared = keys.shape[1]
    sizes = launch(slots, shared, min(window, PAGE * table.shape[1]), D * q.element_size())
    rows = slots * heads * sizes["SPLITS"]
    parts, stats = q.new_empty(rows, D, dtype=torch.float32), q.new_empty(2 * rows, dtype=torch.float32)
    queries = triton.next_power_of_2(heads // shared)
    key_scales, value_scales = (None, None) if scales is None else scales.unbind()
    _paged_kernel[(shared, sizes["SPLITS"], slots)](
        q, k, v, keys, values, key_scales, value_scales, table, positions, parts, stats, counts,
        out := q.new_empty(slots, heads * D), q.stride(0), k.stride(0), v.stride(0), table.shape[1], window, D**-0.5,
        HEADS=heads, SHARED=shared, GROUP=max(16, queries), QUERIES=queries, D=D, PAGE=PAGE, **sizes,
    )  # fmt: skip
    return out


@attend.register_fake
def _(q: Tensor, *others: object) -> Tensor:
    return q.new_empty(len(q), q.shape[1] * q.shape[2])


# --8<-- [start:decoder]
@dataclass
class Pool:
    """A layer's pages. In fp8 each vector has a scale of its own: a page's scale would change with each new token."""

    keys: Tensor  # (pages, shared heads, PAGE, size)
    values: Tensor
    scales: Tensor | None  # (2, pages, shared heads, PAGE), those of keys and those of values


class PagedDecoder(Decoder):
    """A Decoder whose slots share `pages` pages of 64 places. Page 0 is spare: slots without a sequence write there.

    With `kept` torch.float8_e4m3fn, keys and values are in fp8. A token sees `window` places, its own among them.
    """

    def __init__(
        self,
        model: nn.Module,
        slots: int,
        length: int,
        pages: int,
        kept: torch.dtype | None = None,
        window: int | None = None,
        dtype: torch.dtype | None = None,
    ):
        super().__init__(model, 0, length, dtype)
        if kept not in (None, FP8):
            raise ValueError(f"kept: expected None or float8_e4m3fn, got {kept}")
        if pages < 2 or (window is not None and window < 1):
            raise ValueError(f"expected 2 pages or more and a window of at least 1, got {pages} and {window}")
        device = self.norm.device
        self.slots, self.window = torch.arange(slots, device=device), window or length
        self.table = torch.zeros(slots, math.ceil(length / PAGE), dtype=torch.int32, device=device)
        self.counts = torch.zeros(slots * self.shared, dtype=torch.int32, device=device)
        shape = pages, self.shared, PAGE, self.size
        self.pools = [
            Pool(*(self.norm.new_zeros(shape, dtype=kept) for _ in range(2)), self.new_scales(shape) if kept else None)
            for _ in self.layers
        ]

    def new_scales(self, shape: Sequence[int]) -> Tensor:
        return self.norm.new_zeros(2, *shape[:3], dtype=torch.float32)

    def __call__(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """Logits (slots, vocabulary) of tokens (slots,) at positions (slots,); their keys and values join the pool."""
        h = self.embedding[tokens]
        cos, sin = self.cos[positions, None], self.sin[positions, None]
        for layer, pool in zip(self.layers, self.pools, strict=True):
            h = self.through(layer, pool, h, cos, sin, positions)
        return self.last(h)

    def through(self, layer: Layer, pool: Pool, h: Tensor, *places: Tensor) -> Tensor:  # type: ignore[override]
        """h (slots, width) after a layer."""
        cos, sin, positions = places
        qkv = times(layer.qkv, self.normed(h, layer.before)).unflatten(-1, (-1, self.size))
        q, k, v = qkv.split([self.heads, self.shared, self.shared], 1)
        q, k, pooled = rotated(q, cos, sin), rotated(k, cos, sin), (pool.keys, pool.values, pool.scales)
        h = h + times(layer.out, attend(q, k, v, *pooled, self.counts, self.table, positions, self.window))
        gate, up = times(layer.gate_up, self.normed(h, layer.between)).chunk(2, -1)
        return h + times(layer.down, F.silu(gate) * up)


# --8<-- [end:decoder]


# --8<-- [start:pages]
class PagedGenerator(Generator):
    """A Generator over a PagedDecoder: a prompt waits until the pages of its whole answer are free."""

    def __init__(self, model: nn.Module, decoder: PagedDecoder, **sampling: float):
        self.free = list(range(1, len(decoder.pools[0].keys)))  # without the spare one
        self.held: dict[int, list[int]] = {}
        super().__init__(model, decoder, **sampling)

    def reserve(self, slot: int, places: int) -> bool:
        """Pages for so many places, which no other slot has. Without enough of them nothing is taken."""
        count = math.ceil(places / PAGE)
        if count > len(self.free):
            return False
        self.held[slot], self.free = self.free[:count], self.free[count:]
        self.decoder.table[slot, :count] = torch.tensor(self.held[slot])
        return True

    def release(self, slot: int) -> None:
        """The slot goes on, until it has another prompt, and writes to the spare page."""
        self.decoder.table[slot] = 0
        self.free += self.held.pop(slot)

    @torch.no_grad()
    def admit(self, slot: int, prompt: Tensor) -> None:
        """The library's own forward reads the prompt (length,); its keys and values go into the slot's pages."""
        found = self.model(prompt[None], use_cache=True, logits_to_keep=1)
        at = torch.arange(len(prompt), device=prompt.device)
        pages, places = self.decoder.table[slot][at // PAGE].long(), at % PAGE
        for pool, layer in zip(self.decoder.pools, found.past_key_values.layers, strict=True):
            for index, (own, new) in enumerate(((pool.keys, layer.keys[0]), (pool.values, layer.values[0]))):
                new = new.transpose(0, 1)  # (length, shared heads, size)
                if pool.scales is not None:
                    rows, scales = quantized(new.flatten(0, 1), FP8)
                    new, pool.scales[index, pages, :, places] = rows.view_as(new), scales.view(new.shape[:2])
                own[pages, :, places] = new
        self.begin(slot, len(prompt), found.logits[:, -1])

    def generate(
        self, prompts: Sequence[Tensor], new: int, stop: int | Collection[int] | None = None, every: int = 16
    ) -> list[list[int]]:
        """As `Generator.generate`. Pages that a call holds when an error ends it are free again."""
        check(prompts, new, self.length)
        most = PAGE * len(self.free)
        for which, prompt in enumerate(prompts):
            if len(prompt) + new > most:
                raise ValueError(
                    f"prompt {which}: expected at most {most - new} tokens (pool less new), got {len(prompt)}"
                )
        try:
            return super().generate(prompts, new, stop, every)
        finally:
            for slot in list(self.held):
                self.release(slot)


# --8<-- [end:pages]


# --8<-- [start:answer]
def prepared(
    model: nn.Module,
    slots: int,
    length: int,
    places: int,
    kept: torch.dtype | None = None,
    **sampling: float,
) -> PagedGenerator:
    """Make it once: this compiles. Up to `slots` sequences, each of up to `length` tokens, share so many `places`."""
    refuse(model)
    if (size := model.config.head_dim) < 16 or size & (size - 1):
        raise ValueError(f"model: expected heads of a power of 2, at least 16, got {size}")
    pages = 1 + math.ceil(places / PAGE)
    return PagedGenerator(model, compiled(PagedDecoder(model, slots, length, pages, kept)), **sampling)


# --8<-- [end:answer]


def main() -> None:
    """A pool smaller than two caches answers as the library does; what the cache's dtype changes."""
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    print("==== same")
    same_tokens(make_model(TINY, device, torch.float32))
    print("==== error")
    large = device.type == "cuda"
    errors(make_model(LLAMA_1B if large else TINY, device, torch.bfloat16 if large else torch.float32))


def same_tokens(model: nn.Module) -> None:
    """Three prompts and three slots, but pages for two at most: the third waits for a page that another gives back."""
    prompts = [torch.randint(256, (n,), device=model.device) for n in (5, 60, 9)]
    generator = PagedGenerator(model, PagedDecoder(model, slots=3, length=128, pages=4))
    for prompt, answer in zip(prompts, generator.generate(prompts, new=8), strict=True):
        print(f"prompt of {len(prompt):2}: {answer == by_library(model, prompt, 8)}, {answer}")


@torch.no_grad()
def errors(model: nn.Module, length: int = 512) -> None:
    """The next token's logits with each cache, against the library's in fp32, as a share of the logits' size."""
    length = min(length, model.config.max_position_embeddings - 1)
    sequence = torch.randint(model.config.vocab_size, (length + 1,), device=model.device)
    found = {}
    for kept in (None, FP8):
        decoder = PagedDecoder(model, 1, length + 1, 2 + length // PAGE, kept)
        generator = PagedGenerator(model, decoder)
        generator.reserve(0, length + 1)
        generator.admit(0, sequence[:-1])
        found[kept or decoder.norm.dtype] = decoder(sequence[-1:], generator.positions * 0 + length)[0]
        size = sum(t.nbytes for pool in decoder.pools for t in vars(pool).values() if t is not None)
        places = PAGE * len(decoder.pools[0].keys)
        print(f"{kept or decoder.norm.dtype} cache: {size // places} bytes a token")
    exact = model.float()(sequence[None], logits_to_keep=1).logits[0, -1]
    for kept, logits in found.items():
        print(f"{kept} cache: RMS error {((logits - exact).norm() / exact.norm()).item():.2%} of the logits")


if __name__ == "__main__":
    main()
