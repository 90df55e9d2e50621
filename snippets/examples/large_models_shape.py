"""The numbers of a Llama that its memory follows from."""

from collections.abc import Mapping
from dataclasses import dataclass

from snippets.examples.hf_llama import LLAMA_1B
from snippets.examples.llama_model import TINY

LLAMA_3B = LLAMA_1B | {"hidden_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 24}
SMALL = TINY | {"tie_word_embeddings": True}

Sizes = Mapping[str, float]


# --8<-- [start:shape]
@dataclass(frozen=True)
class Shape:
    """The numbers of a Llama that its memory follows from."""

    width: int
    inner: int  # of the MLP
    kv: int  # width of keys, and of values
    heads: int
    words: int
    layers: int
    tied: bool

    @property
    def block(self) -> int:
        """Weights of a block's matmuls."""
        return 2 * self.width**2 + 2 * self.width * self.kv + 3 * self.width * self.inner

    @property
    def embedding(self) -> int:
        return self.words * self.width

    @property
    def parameters(self) -> int:
        norms = (2 * self.layers + 1) * self.width
        return self.layers * self.block + norms + self.embedding * (1 if self.tied else 2)


def shape_of(sizes: Sizes) -> Shape:
    width, heads = int(sizes["hidden_size"]), int(sizes["num_attention_heads"])
    return Shape(
        width=width,
        inner=int(sizes["intermediate_size"]),
        kv=width // heads * int(sizes["num_key_value_heads"]),
        heads=heads,
        words=int(sizes["vocab_size"]),
        layers=int(sizes["num_hidden_layers"]),
        tied=bool(sizes.get("tie_word_embeddings", False)),
    )


# --8<-- [end:shape]
