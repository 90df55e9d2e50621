"""Only the fused kernel and the tiles never hold the score matrix, and each step removes operations."""

from snippets.patterns.attention import VERSIONS, naive, sdpa
from snippets.patterns.attention_watch import Watch
from tests.snippets.patterns.test_attention import layer


def watched(version, tokens: int) -> Watch:
    x, w = layer(tokens)
    with Watch() as watch:
        version(x, w)
    return watch


def test_only_the_fused_kernel_and_the_tiles_never_hold_the_score_matrix() -> None:
    growth = {
        name: watched(version, 2048).largest / watched(version, 512).largest for name, version in VERSIONS.items()
    }
    assert growth["naive"] == growth["fused-qkv"] == 16
    assert growth["tiled"] == growth["sdpa"] == 4
    assert watched(naive, 512).largest == 4 * 512**2 * 4  # heads, tokens², bytes


def test_each_step_removes_ops() -> None:
    made = {name: watched(version, 512).made for name, version in VERSIONS.items()}
    assert made["naive"] - made["fused-qkv"] == 2  # three projections became one
    assert made["sdpa"] == 3  # one in, attention, one out
    assert watched(sdpa, 512).attention.startswith("_scaled_dot_product")
    assert watched(naive, 512).attention == "softmax of explicit scores"
