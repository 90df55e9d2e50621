"""One decoding step of a Hugging Face Llama, written out."""

from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from snippets.examples.generation_weights import Layer, Matrix, layer_of, quantized, restored


# --8<-- [start:step]
class Decoder:
    """A Hugging Face Llama that decodes one token for each of `slots` sequences, from caches of `length` places.

    With a dtype, its weights are quantised: torch.int8, torch.float8_e4m3fn, or torch.uint8 for int4.
    """

    def __init__(self, model: nn.Module, slots: int, length: int, dtype: torch.dtype | None = None):
        config, inner = model.config, model.model
        self.heads, self.shared, self.eps = config.num_attention_heads, config.num_key_value_heads, config.rms_norm_eps
        self.size = config.head_dim
        self.layers = [layer_of(layer, dtype) for layer in inner.layers]
        self.embedding, self.norm = inner.embed_tokens.weight.data, inner.norm.weight.data
        self.head = quantized(model.lm_head.weight.data, dtype)
        self.slots, self.places = (torch.arange(n, device=self.norm.device) for n in (slots, length))
        cos, sin = inner.rotary_emb(self.norm.float(), self.places[None])
        self.cos, self.sin = cos[0], sin[0]  # (length, size), fp32
        shape = slots, self.shared, length, self.size
        self.cache = [(self.norm.new_zeros(shape), self.norm.new_zeros(shape)) for _ in self.layers]  # keys and values

    def __call__(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """Logits (slots, vocabulary) of tokens (slots,) at positions (slots,); their keys and values join the cache."""
        h = self.embedding[tokens]
        cos, sin = self.cos[positions, None], self.sin[positions, None]
        hidden = self.places > positions[:, None]
        for layer, (keys, values) in zip(self.layers, self.cache, strict=True):
            h = self.through(layer, keys, values, h, cos, sin, hidden, positions)
        return self.last(h)

    def last(self, h: Tensor) -> Tensor:
        return times(self.head, self.normed(h, self.norm))

    def through(self, layer: Layer, keys: Tensor, values: Tensor, h: Tensor, *places: Tensor) -> Tensor:
        """h (slots, width) after a layer. Were keys and values one tensor, compiled code would copy all of it."""
        cos, sin, hidden, positions = places
        qkv = times(layer.qkv, self.normed(h, layer.before)).unflatten(-1, (-1, self.size))
        q, k, v = qkv.split([self.heads, self.shared, self.shared], 1)
        keys[self.slots, :, positions] = rotated(k, cos, sin)
        values[self.slots, :, positions] = v
        h = h + times(layer.out, self.attended(rotated(q, cos, sin), keys, values, hidden))
        gate, up = times(layer.gate_up, self.normed(h, layer.between)).chunk(2, -1)
        return h + times(layer.down, F.silu(gate) * up)

    def attended(self, q: Tensor, keys: Tensor, values: Tensor, hidden: Tensor) -> Tensor:
        return attended(q, keys, values, hidden)

    def normed(self, h: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(h, weight.shape, weight, self.eps)


def times(matrix: Matrix, x: Tensor) -> Tensor:
    return F.linear(x, restored(matrix, x.dtype))


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """RoPE of (slots, heads, size) by angles (slots, 1, size)."""
    first, second = x.chunk(2, -1)
    return (x * cos + torch.cat((-second, first), -1) * sin).to(x.dtype)


def attended(q: Tensor, keys: Tensor, values: Tensor, hidden: Tensor) -> Tensor:
    """Attention of q (slots, heads, size); several heads share the keys (slots, shared, length, size)."""
    q = q.unflatten(1, (keys.shape[1], -1))
    scores = (q @ keys.mT) * q.shape[-1] ** -0.5
    wide = torch.promote_types(q.dtype, torch.float32)
    weights = scores.masked_fill(hidden[:, None, None], float("-inf")).softmax(-1, dtype=wide).to(q.dtype)
    return (weights @ values).flatten(1)


# --8<-- [end:step]


def compiled(decoder: Decoder) -> Decoder:
    """One layer is compiled, and all layers use it: seconds, where the whole step would take a minute."""
    decoder.through, decoder.last = (torch.compile(f, dynamic=False) for f in (decoder.through, decoder.last))
    return decoder


def refuse(model: nn.Module, dtype: torch.dtype | None = None) -> None:
    """The step is that of a Llama in plain linear layers: what it does not compute must not be in the model."""
    if (name := type(model).__name__) != "LlamaForCausalLM":
        raise TypeError(f"model: expected a LlamaForCausalLM, got a {name}")
    if dtype not in (None, torch.int8, torch.float8_e4m3fn, torch.uint8):
        raise ValueError(f"dtype: expected int8, float8_e4m3fn or uint8 (for int4), got {dtype}")
    if torch.is_inference_mode_enabled():
        raise RuntimeError(
            "expected to be outside torch.inference_mode(), where merged weights could never train again"
        )
    config, rope = model.config, model.model.rotary_emb.rope_type
    own = [(name, each) for name, each in model.named_modules() if name.endswith(("_proj", "lm_head"))]
    plain = {name for name, m in own if type(m) is nn.Linear and type(m.weight.data) is Tensor}
    _expect("plain linear layers (merge adapters, load unquantised)", (name for name, _ in own if name not in plain))
    _expect("no bias", (name for name, _ in model.named_parameters() if name.endswith(".bias")))
    _expect("SiLU", (act for act in [config.hidden_act] if act != "silu"))
    _expect("RoPE that does not depend on the length", (rope for _ in range(rope in ("dynamic", "longrope"))))
    widths = config.head_dim * config.num_attention_heads, config.hidden_size
    _expect("heads that together are as wide as the model", (f"{a} in {b}" for a, b in [widths] if a != b))
    if dtype == torch.uint8:
        _expect("columns in steps of 128 for int4", (name for name, linear in own if linear.in_features % 128))


def _expect(what: str, wrong: Iterable[str]) -> None:
    for found in wrong:
        raise ValueError(f"model: expected {what}, got {found}")
