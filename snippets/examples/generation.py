"""Generation with a Hugging Face Llama: its decoding step written out, compiled, and replayed as a CUDA graph.

It needs transformers (5.17). Run `python -m snippets.examples.generation` to see that the loop gives the tokens of
`generate()`.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Matrix = tuple[Tensor, Tensor | None]  # a weight, and the scales of its rows if it is int8, fp8 or int4

LLAMA_1B: dict[str, float] = {
    "hidden_size": 2048,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 8192,
    "vocab_size": 128256,
    "max_position_embeddings": 32768,
    "tie_word_embeddings": True,
}
LLAMA_8B = LLAMA_1B | {
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "intermediate_size": 14336,
    "tie_word_embeddings": False,
}
TINY = LLAMA_1B | {
    "hidden_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 256,
    "vocab_size": 256,
    "max_position_embeddings": 128,
    "initializer_range": 0.1,  # with the usual weights so few numbers would hardly tell one token from another
}


def make_model(sizes: Mapping[str, float], device: torch.device, dtype: torch.dtype) -> nn.Module:
    """The library's own model with random weights."""
    from transformers import LlamaConfig, LlamaForCausalLM

    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)  # never in memory as fp32; RoPE's frequencies are fp32 all the same
    try:
        with torch.device(device):
            model = LlamaForCausalLM(LlamaConfig(**sizes, attn_implementation="sdpa"))
    finally:
        torch.set_default_dtype(before)
    return model.eval()


@dataclass
class Layer:
    """The weights of a layer, those that multiply the same input as one matrix."""

    before: Tensor  # (width,), the RMSNorm
    qkv: Matrix
    out: Matrix
    between: Tensor
    gate_up: Matrix
    down: Matrix


def layer_of(layer: nn.Module, dtype: torch.dtype | None) -> Layer:
    own, mlp = layer.self_attn, layer.mlp
    return Layer(
        before=layer.input_layernorm.weight.data,
        qkv=quantized(merged(own.q_proj, own.k_proj, own.v_proj), dtype),
        out=quantized(own.o_proj.weight.data, dtype),
        between=layer.post_attention_layernorm.weight.data,
        gate_up=quantized(merged(mlp.gate_proj, mlp.up_proj), dtype),
        down=quantized(mlp.down_proj.weight.data, dtype),
    )


def merged(*linears: nn.Linear) -> Tensor:
    """One matrix for all. The model's own weights become parts of it, so that nothing is in memory twice."""
    weights = [linear.weight.data for linear in linears]
    starts, ends = [w.data_ptr() for w in weights], [w.data_ptr() + w.nbytes for w in weights]
    if starts[1:] == ends[:-1] and len({w.untyped_storage().data_ptr() for w in weights}) == 1:  # merged before
        return weights[0].as_strided((sum(map(len, weights)), weights[0].shape[1]), weights[0].stride())
    whole = torch.cat(weights)
    for linear, part in zip(linears, whole.split([len(weight) for weight in weights]), strict=True):
        linear.weight.data = part
    return whole


# --8<-- [start:quantized]
def quantized(weight: Tensor, dtype: torch.dtype | None) -> Matrix:
    """int8 or fp8 (e4m3) with a scale for each row; torch.uint8 stands for int4, with one for each 128 columns.

    The largest number of a row, or of 128 columns, becomes the largest of the dtype.
    """
    if dtype is None:
        return weight, None
    most = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0, torch.uint8: 7.0}[dtype]
    rows = weight.float().unflatten(1, (-1, 128 if dtype == torch.uint8 else weight.shape[1]))
    scale = rows.abs().amax(-1, keepdim=True).clamp(min=1e-12) / most
    rows = (rows / scale).flatten(1)
    if dtype != torch.uint8:
        return (rows.round() if dtype == torch.int8 else rows).to(dtype), scale[:, 0, 0]
    first, second = (rows.round() + 8).to(torch.uint8).unflatten(1, (-1, 2)).unbind(-1)
    return first | second << 4, scale[..., 0].contiguous()  # two neighbours in a byte


def restored(matrix: Matrix, dtype: torch.dtype) -> Tensor:
    """The weight again, as far as its numbers keep it."""
    weight, scale = matrix
    if scale is None:
        return weight.to(dtype)
    if weight.dtype == torch.uint8:
        rows = torch.stack((weight & 15, weight >> 4), -1).flatten(1).float().unflatten(1, (-1, 128)) - 8
        return (rows * scale[..., None]).flatten(1).to(dtype)
    return (weight.float() * scale[:, None]).to(dtype)


# --8<-- [end:quantized]


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


# --8<-- [start:attention]
def by_sdpa(q: Tensor, keys: Tensor, values: Tensor, hidden: Tensor) -> Tensor:
    """The same by PyTorch's own function, which takes the mask of places that may be seen."""
    seen = ~hidden[:, None, None]
    return F.scaled_dot_product_attention(q[:, :, None], keys, values, attn_mask=seen, enable_gqa=True).flatten(1)


def by_flex(q: Tensor, keys: Tensor, values: Tensor, positions: Tensor) -> Callable[[], Tensor]:
    """The same by FlexAttention, which skips blocks of hidden places. Their list is made here, once."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    def seen(slot: Tensor, head: Tensor, query: Tensor, place: Tensor) -> Tensor:
        return place <= positions[slot]

    mask = create_block_mask(seen, len(q), None, 1, keys.shape[2], device=q.device.type)
    fast = torch.compile(flex_attention, dynamic=False)
    return lambda: fast(q[:, :, None], keys, values, block_mask=mask, enable_gqa=True).flatten(1)


# --8<-- [end:attention]


def compiled(decoder: Decoder) -> Decoder:
    """One layer is compiled, and all layers use it: seconds, where the whole step would take a minute."""
    decoder.through, decoder.last = (torch.compile(f, dynamic=False) for f in (decoder.through, decoder.last))
    return decoder


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
        beyond = ordered.cumsum(-1) - ordered >= top_p
        beyond[:, 0] = False  # the likeliest stays, whatever top_p
        ordered[beyond] = 0
        p = torch.zeros_like(p).scatter(-1, order, ordered)
    return (p / torch.empty_like(p).exponential_()).argmax(-1)  # one draw from each row, as multinomial's


# --8<-- [end:sample]


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


# --8<-- [start:answer]
def prepared(model: nn.Module, slots: int = 1, length: int = 2048, **sampling: float) -> Generator:
    """Make it once: this compiles. Then `generate` answers `slots` prompts side by side, of up to `length` tokens."""
    refuse(model)
    return Generator(model, compiled(Decoder(model, slots, length)), **sampling)


def answered(generator: Generator, tokenizer: Callable, texts: Sequence[str], new: int = 256) -> list[str]:
    """A text's answer ends with the tokenizer's stop token, or after `new` tokens."""
    device = generator.tokens.device
    prompts = [tokenizer(text, return_tensors="pt").input_ids[0].to(device) for text in texts]
    return [tokenizer.decode(found) for found in generator.generate(prompts, new, stop=tokenizer.eos_token_id)]


# --8<-- [end:answer]


def main() -> None:
    """The loop beside `generate()`, on a small model."""
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    print("==== same")
    same_tokens(make_model(TINY, device, torch.float32))


def same_tokens(model: nn.Module) -> None:
    """Three prompts, two slots: the third is admitted when another has its answer."""
    prompts = [torch.randint(256, (n,), device=model.device) for n in (5, 17, 9)]
    answers = Generator(model, Decoder(model, slots=2, length=64)).generate(prompts, new=16)
    for prompt, answer in zip(prompts, answers, strict=True):
        print(f"prompt of {len(prompt):2}: {answer == by_library(model, prompt, 16)}, {answer}")


def by_library(model: nn.Module, prompt: Tensor, new: int, **options: object) -> list[int]:
    given = {"attention_mask": torch.ones_like(prompt)[None], "do_sample": False, "pad_token_id": 0} | options
    found = model.generate(prompt[None], max_new_tokens=new, min_new_tokens=new, eos_token_id=None, **given)
    return found[0, len(prompt) :].tolist()


if __name__ == "__main__":
    main()
