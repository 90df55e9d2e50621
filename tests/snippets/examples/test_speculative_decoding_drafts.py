"""N-gram lookup finds what followed, and acceptance counts what is right."""

import pytest

from snippets.examples.speculative_decoding_drafts import acceptance, ngram


@pytest.mark.parametrize(
    ("text", "k", "found"),
    (
        ([1, 2, 3, 4, 9, 1, 2, 3], 2, [4, 9]),
        ([1, 2, 3, 4, 1, 2, 3, 5, 8, 1, 2, 3], 1, [5]),  # the later of two places
        ([1, 2, 3, 4, 7, 3, 6, 8, 1, 2, 3], 1, [4]),  # the longest match, not the latest
        ([5, 2, 3, 4, 9, 2, 3], 1, [4]),
        ([5, 6, 9, 5], 3, [6, 9, 5]),
        ([4, 4], 3, [4, 4, 4]),  # round and round
        ([8, 1, 2, 1, 2], 5, [1, 2, 1, 2, 1]),
        ([1, 2, 3], 3, []),
        ([1], 3, []),
        ([55296, 128255, 0, 55296], 2, [128255, 0]),  # numbers of surrogates are tokens like others
    ),
)
def test_ngram_lookup(text: list[int], k: int, found: list[int]) -> None:
    assert ngram(text, k) == found


def test_acceptance_of_a_planted_text() -> None:
    """Drafts of 2 behind the first 7: [1, 2] is right and gives 3 tokens; [4, 9] errs at its end, and gives 2."""
    answer, drafts = [7, 1, 2, 3, 4, 5, 6, 8, 9], {2: [1, 2], 5: [4, 9], 7: [0, 0], 8: [9, 9]}
    log = [0], answer
    assert acceptance([log], lambda text, k: drafts[len(text)], 2) == pytest.approx((2 + 1 + 0) / 3)
    assert acceptance([log, log], lambda text, k: drafts[len(text)], 2) == pytest.approx(1)
    assert acceptance([], ngram, 2) == 0
