"""Generation with a Hugging Face Llama: one decoding step, compiled or in Triton, replayed as a CUDA graph.

It needs transformers (5.17). Run `python -m snippets.examples.generation` to see that each step gives the tokens of
`generate()`, and on a GPU how many it gives in a second.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from snippets.examples.generation_kernels import Attention, matvec
from snippets.examples.llama import LLAMA, TINY

Step = Callable[[Tensor, Tensor], Tensor]  # tokens (slots,) at positions (slots,) -> logits (slots, vocabulary)
LLAMA_1B = LLAMA | {"tie_word_embeddings": True}
LLAMA_8B = LLAMA | {"hidden_size": 4096, "num_hidden_layers": 32, "intermediate_size": 14336}


# --8<-- [start:weights]
@dataclass
class Layer:
    """The weights of a layer, those that multiply the same input as one matrix."""

    before: Tensor  # (width,), the RMSNorm
    qkv: Tensor
    out: Tensor
    between: Tensor
    gate_up: Tensor
    down: Tensor


def merged(*linears: nn.Linear) -> Tensor:
    """One matrix for all. The model's own weights become parts of it, so that nothing is in memory twice."""
    weight = torch.cat([linear.weight.data for linear in linears])
    for linear, part in zip(linears, weight.split([linear.out_features for linear in linears]), strict=True):
        linear.weight.data = part
    return weight


def layer_of(layer: nn.Module) -> Layer:
    own, mlp = layer.self_attn, layer.mlp
    return Layer(
        before=layer.input_layernorm.weight.data,
        qkv=merged(own.q_proj, own.k_proj, own.v_proj),
        out=own.o_proj.weight.data,
        between=layer.post_attention_layernorm.weight.data,
        gate_up=merged(mlp.gate_proj, mlp.up_proj),
        down=mlp.down_proj.weight.data,
    )


# --8<-- [end:weights]


# --8<-- [start:step]
class Decoder:
    """A Hugging Face Llama that decodes one token for each of `slots` sequences, from caches of `length` places."""

    def __init__(self, model: nn.Module, slots: int, length: int):
        config, inner = model.config, model.model
        self.heads, self.shared, self.eps = config.num_attention_heads, config.num_key_value_heads, config.rms_norm_eps
        self.size = config.hidden_size // self.heads
        self.layers = [layer_of(layer) for layer in inner.layers]
        self.embedding, self.norm, self.head = inner.embed_tokens.weight.data, inner.norm.weight.data, model.lm_head.weight.data
        self.slots, self.places = (torch.arange(n, device=self.norm.device) for n in (slots, length))
        cos, sin = inner.rotary_emb(self.norm.float(), self.places[None])
        self.cos, self.sin = cos[0], sin[0]  # (length, size), fp32
        self.cache = [self.norm.new_zeros(2, slots, self.shared, length, self.size) for _ in self.layers]

    def __call__(self, tokens: Tensor, positions: Tensor) -> Tensor:
        h = self.embedding[tokens]
        cos, sin = self.cos[positions, None], self.sin[positions, None]
        hidden = self.places > positions[:, None]  # (slots, length)
        for layer, (keys, values) in zip(self.layers, self.cache, strict=True):
            qkv = F.linear(self.normed(h, layer.before), layer.qkv).unflatten(-1, (-1, self.size))
            q, k, v = qkv.split([self.heads, self.shared, self.shared], 1)
            keys[self.slots, :, positions] = rotated(k, cos, sin)
            values[self.slots, :, positions] = v
            h = h + F.linear(attended(rotated(q, cos, sin), keys, values, hidden), layer.out)
            gate, up = F.linear(self.normed(h, layer.between), layer.gate_up).chunk(2, -1)
            h = h + F.linear(F.silu(gate) * up, layer.down)
        return F.linear(self.normed(h, self.norm), self.head)

    def normed(self, h: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(h, weight.shape, weight, self.eps)


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """RoPE of (slots, heads, size) by angles (slots, 1, size)."""
    first, second = x.chunk(2, -1)
    return (x * cos + torch.cat((-second, first), -1) * sin).to(x.dtype)


def attended(q: Tensor, keys: Tensor, values: Tensor, hidden: Tensor) -> Tensor:
    """Attention of q (slots, heads, size); several heads share the keys (slots, shared, length, size)."""
    q = q.unflatten(1, (keys.shape[1], -1))
    scores = (q @ keys.mT).float() * q.shape[-1] ** -0.5
    weights = scores.masked_fill(hidden[:, None, None], float("-inf")).softmax(-1).to(q.dtype)
    return (weights @ values).flatten(1)


# --8<-- [end:step]


# --8<-- [start:triton]
class TritonDecoder(Decoder):
    """The same step of one sequence, four kinds of kernels a layer, weights in bf16, int8 or fp8."""

    def __init__(self, model: nn.Module, length: int, dtype: torch.dtype | None = None):
        super().__init__(model, 1, length)
        self.kept = {id(w): quantized(w, dtype) for w in self.matrices()} if dtype else {}
        width, inner = self.norm.numel(), self.layers[0].down.shape[1]
        rows = [width, (self.heads + 2 * self.shared) * self.size, self.heads * self.size, inner, len(self.head)]
        self.h, self.qkv, self.mixed, self.gated, self.logits = (self.norm.new_empty(n) for n in rows)
        self.attention = Attention(self.heads, self.shared, self.size, length, self.norm.device)

    def matrices(self) -> Iterator[Tensor]:
        for layer in self.layers:
            yield from (layer.qkv, layer.out, layer.gate_up, layer.down)
        yield self.head

    def times(self, weight: Tensor, x: Tensor, out: Tensor, **more: object) -> Tensor:
        weight, scale = self.kept.get(id(weight), (weight, None))
        return matvec(x, weight, out, scale=scale, **more)

    def __call__(self, tokens: Tensor, positions: Tensor) -> Tensor:
        h = torch.index_select(self.embedding, 0, tokens, out=self.h[None])[0]
        for layer, cache in zip(self.layers, self.cache, strict=True):
            self.times(layer.qkv, h, self.qkv, norm=layer.before, eps=self.eps)
            self.attention(self.qkv, self.cos, self.sin, cache[:, 0], positions, self.mixed)
            self.times(layer.out, self.mixed, h, residual=h)
            self.times(layer.gate_up, h, self.gated, norm=layer.between, eps=self.eps, gated=True)
            self.times(layer.down, self.gated, h, residual=h)
        return self.times(self.head, h, self.logits, norm=self.norm, eps=self.eps)[None]


def quantized(weight: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """int8 or fp8 (e4m3) with a scale for each row; torch.uint8 stands for int4, with one for each 128 columns.

    The largest number of a row, or of 128 columns, becomes the largest of the dtype.
    """
    rows = weight.float()
    if dtype == torch.uint8:
        rows = rows.unflatten(1, (-1, 128))
    most = {torch.int8: 127.0, torch.uint8: 7.0}.get(dtype) or torch.finfo(dtype).max
    scale = rows.abs().amax(-1, keepdim=True).clamp(min=1e-12) / most
    rows = rows / scale
    if dtype.is_floating_point:
        return rows.to(dtype), scale[:, 0]
    if dtype == torch.int8:
        return rows.round().to(dtype), scale[:, 0]
    first, second = (rows.round() + 8).to(torch.uint8).flatten(1).unflatten(1, (-1, 2)).unbind(-1)
    return first | second << 4, scale[..., 0].contiguous()  # two neighbours in a byte


# --8<-- [end:triton]


# --8<-- [start:sample]
def sample(logits: Tensor, temperature: float = 0.0, top_k: int = 0, top_p: float = 1.0) -> Tensor:
    """The next token of each slot; with temperature 0 the likeliest. Without a sync: a CUDA graph can hold it."""
    if temperature == 0:
        return logits.argmax(-1)
    logits = logits.float() / temperature
    if top_k:
        logits = logits.masked_fill(logits < logits.topk(top_k).values[:, -1:], float("-inf"))
    p = logits.softmax(-1)
    if top_p < 1:
        ordered, order = p.sort(descending=True)
        ordered[ordered.cumsum(-1) - ordered >= top_p] = 0  # the first one stays, whatever top_p
        p = torch.zeros_like(p).scatter(-1, order, ordered)
    return (p / torch.empty_like(p).exponential_()).argmax(-1)  # one draw from each row, as multinomial's


# --8<-- [end:sample]


# --8<-- [start:loop]
class Generator:
    """Answers prompts: each takes a free slot, and all slots decode together, one CUDA graph replay a token."""

    def __init__(self, model: nn.Module, decoder: Decoder, step: Step | None = None, **sampling: float):
        self.model, self.decoder, self.step, self.sampling = model, decoder, step or decoder, sampling
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
        self.keep(self.step(self.tokens, self.positions))

    def keep(self, logits: Tensor) -> None:
        self.tokens.copy_(sample(logits, **self.sampling))
        self.positions.add_(1).clamp_(max=self.length - 1)  # a slot that nobody waits for stays at its last place
        self.answers[self.decoder.slots, self.positions] = self.tokens

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
        for cache, layer in zip(self.decoder.cache, found.past_key_values.layers, strict=True):
            cache[0, slot, :, : len(prompt)] = layer.keys[0]
            cache[1, slot, :, : len(prompt)] = layer.values[0]
        self.tokens[slot] = sample(found.logits[:, -1], **self.sampling)[0]
        self.positions[slot] = len(prompt)
        self.answers[slot, len(prompt)] = self.tokens[slot]

    def generate(self, prompts: Sequence[Tensor], new: int, stop: int | None = None, every: int = 16) -> list[list[int]]:
        """Up to `new` tokens for each prompt, until `stop`. The host looks for it at `every` so many tokens."""
        for prompt in prompts:
            if not 0 < len(prompt) <= self.length - new:
                raise ValueError(f"prompt: expected 1 to {self.length - new} tokens (cache less new), got {len(prompt)}")
        waiting, found = list(enumerate(prompts)), dict[int, list[int]]()
        running: dict[int, tuple[int, int]] = {}  # by slot: which prompt, and the length of its prompt
        while waiting or running:
            for slot in range(len(self.tokens)):
                if waiting and slot not in running:
                    which, prompt = waiting.pop(0)
                    self.admit(slot, prompt)
                    running[slot] = which, len(prompt)
            for _ in range(every):
                self.replay()
            answers, ends = self.answers.tolist(), self.positions.tolist()  # waits for the GPU
            for slot, (which, start) in list(running.items()):
                answer = answers[slot][start : min(ends[slot] + 1, start + new)]
                ended = stop in answer
                if ended or len(answer) == new:
                    found[which] = answer[: answer.index(stop) + 1] if ended else answer
                    del running[slot]
        return [found[which] for which in range(len(prompts))]


# --8<-- [end:loop]
