"""The kernel sees its window's places and no other, in any number of parts."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from snippets.examples import paged_cache
from snippets.examples.generation_step import attended
from snippets.examples.generation_weights import quantized, restored
from snippets.examples.paged_cache import FP8, PAGE, attend
from tests.snippets.examples.test_generation import HERE


def on_the_grid(x: Tensor) -> Tensor:
    """Vectors that fp8 keeps as they are: Triton's interpreter rounds 127.9 to 64, where a GPU rounds it to 128."""
    numbers = (x.clamp(-4, 4) * 100).to(FP8).float()
    numbers[..., 0] = 448
    return numbers / 512


class Filled:
    """Four query heads on two shared heads. Each place that may not be seen is NaN, in the cache and in the pool."""

    def __init__(self, positions: tuple[int, ...], window: int, kept: torch.dtype | None = None):
        torch.manual_seed(0)
        slots, most, size = len(positions), 5, 32
        self.q, self.k, self.v = (torch.randn(slots, heads, size, device=HERE) for heads in (4, 2, 2))
        if kept:
            self.k, self.v = on_the_grid(self.k), on_the_grid(self.v)
        self.positions, self.window = torch.tensor(positions, device=HERE), window
        places = torch.arange(most * PAGE, device=HERE)
        self.hidden = (places > self.positions[:, None]) | (places <= self.positions[:, None] - window)
        self.table = 1 + torch.randperm(slots * most, device=HERE).view(slots, most).int()
        self.pools, self.scales, self.caches = [], [] if kept else None, []
        for new in (self.k, self.v):
            cache = torch.randn(slots, 2, most * PAGE, size, device=HERE)
            numbers, scales = quantized(cache.flatten(0, 2), kept)
            self.pools.append(self.in_pages(numbers.view_as(cache)))
            if kept:
                self.scales.append(self.in_pages(scales.view(cache.shape[:3])))
                cache = restored((numbers, scales), torch.float32).view_as(cache)
            cache[torch.arange(slots), :, self.positions] = new
            self.caches.append(cache.masked_fill(self.hidden[:, None, :, None], 0))
        self.scales = torch.stack(self.scales) if kept else None
        self.counts = torch.zeros(2 * slots, dtype=torch.int32, device=HERE)

    def in_pages(self, cache: Tensor) -> Tensor:
        unseen = self.hidden.clone()
        unseen[torch.arange(len(unseen)), self.positions] = True  # the new token's place is not written yet
        unseen = unseen[:, None].expand(cache.shape[:3]).view(*cache.shape[:3], *[1] * (cache.dim() - 3))
        pages = (
            cache.float()
            .masked_fill(unseen, torch.nan)
            .to(cache.dtype)
            .unflatten(2, (-1, PAGE))
            .transpose(1, 2)
            .flatten(0, 1)
        )
        pool = torch.full((len(pages) + 1, *pages.shape[1:]), torch.nan, device=HERE).to(cache.dtype)
        pool[self.table.flatten().long()] = pages
        return pool

    def attended(self) -> Tensor:
        return attended(self.q, *self.caches, self.hidden)

    def by_pages(self) -> Tensor:
        given = self.scales, self.counts, self.table, self.positions, self.window
        return attend(self.q, self.k, self.v, *self.pools, *given)

    def written(self) -> Iterator[Tensor]:
        """The new keys and values, as the pool keeps them."""
        slots, places = torch.arange(len(self.q), device=HERE), self.positions % PAGE
        pages = self.table[slots, self.positions // PAGE].long()
        for pool, scales in zip(self.pools, self.scales, strict=True):
            yield pool.float()[pages, :, places] * scales[pages, :, places, None]


EVERY = 0, 63, 64, 319  # places of the new token


@pytest.mark.parametrize("window", (320, 1, 64, 65))
def test_a_token_sees_its_window_and_nothing_else(window: int) -> None:
    filled = Filled(EVERY, window)
    for _ in range(2):  # what a call leaves behind must not disturb the next
        torch.testing.assert_close(filled.by_pages(), filled.attended(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("splits", "block"), ((1, 64), (2, 32), (4, 128)))
def test_any_number_of_parts_and_any_block(splits: int, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paged_cache, "launch", lambda *_: {"SPLITS": splits, "BLOCK": block})
    filled = Filled(EVERY, 190)
    torch.testing.assert_close(filled.by_pages(), filled.attended(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("window", (320, 65))
def test_attention_over_what_fp8_keeps(window: int) -> None:
    filled = Filled(EVERY, window, FP8)
    torch.testing.assert_close(filled.by_pages(), filled.attended(), rtol=1e-4, atol=1e-4)
    for kept, new in zip(filled.written(), (filled.k, filled.v), strict=True):
        torch.testing.assert_close(kept, new)


@pytest.mark.skipif(HERE.type == "cpu", reason="Triton's interpreter rounds 127.9 in fp8 to 64")
def test_a_new_vector_in_fp8_is_as_near_as_its_largest_number_allows() -> None:
    filled = Filled(EVERY, 320, FP8)
    filled.k.normal_(), filled.v.normal_()
    filled.by_pages()
    for kept, new in zip(filled.written(), (filled.k, filled.v), strict=True):
        most = new.abs().amax(-1, keepdim=True)
        assert ((kept - new).abs() <= (new.abs() / 16 + most / 448 / 1024) * 1.001).all()


def test_the_error_of_a_cache_in_fp8_is_that_of_its_numbers() -> None:
    """Rounding to 3 bits of fraction changes a number by up to 1/16; a mean over many places by less."""
    filled = Filled((319,), 320, FP8)
    exact, whole = filled.by_pages(), Filled((319,), 320)
    error = (exact - whole.attended()).norm() / whole.attended().norm()
    assert 0.005 < error < 1 / 16


def test_the_operator_says_what_it_changes() -> None:
    filled = Filled((70,), 320)
    given = filled.scales, filled.counts, filled.table, filled.positions, filled.window
    found = torch.library.opcheck(attend, (filled.q, filled.k, filled.v, *filled.pools, *given))
    assert set(found.values()) == {"SUCCESS"}
