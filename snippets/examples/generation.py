"""Generation with a Hugging Face Llama: its decoding step written out, compiled, and replayed as a CUDA graph.

It needs transformers (5.17). Run `python -m snippets.examples.generation` to see that the loop gives the tokens of
`generate()`.
"""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

from snippets.examples.generation_loop import Generator
from snippets.examples.generation_step import Decoder, compiled, refuse

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
