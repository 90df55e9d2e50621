"""What `generate()` of a Hugging Face Llama pays for: host time by cause, first calls, prompts, and grad modes.

It needs transformers (5.17). Run `python -m snippets.examples.generate_cost`: an 8B Llama with random weights on a
GPU, a tiny one without.
"""

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext

import torch
from torch import Tensor, nn
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from snippets.examples.generate_cost_host import WAYS, host, seconds
from snippets.examples.generate_cost_prefill import prefill
from snippets.examples.generation import LLAMA_1B, LLAMA_8B, TINY, by_library, make_model

MODES: dict[str, Callable] = {"grad": nullcontext, "no_grad": torch.no_grad, "inference_mode": torch.inference_mode}


# --8<-- [start:static]
@torch.inference_mode()
def answered(model: nn.Module, inputs: Mapping[str, Tensor], new: int = 256) -> Tensor:
    """Tokens (batch, prompt + at most new) of `inputs = tokenizer(texts, return_tensors="pt", ...)`."""
    return model.generate(**inputs, max_new_tokens=new, cache_implementation="static")


# --8<-- [end:static]


@contextmanager
def graphs() -> Iterator[Callable[[], int]]:
    """Counts the graphs that Dynamo captures."""
    from torch._dynamo.utils import counters

    before = counters["stats"]["unique_graphs"]
    yield lambda: counters["stats"]["unique_graphs"] - before


def first_calls(model: nn.Module, prompt: Tensor, new: int) -> None:
    """Each line changes one thing; the second call with the same sizes compiles nothing."""
    longer = torch.cat((prompt, prompt[: len(prompt) // 2]))
    static = WAYS["static cache"]
    for name, given, most in (
        ("first call", prompt, new),
        ("again", prompt, new),
        ("longer prompt", longer, new),
        ("again", longer, new),
        ("twice as many new tokens", prompt, 2 * new),
        ("again", prompt, 2 * new),
    ):
        with graphs() as captured:
            took = seconds(lambda given=given, most=most: by_library(model, given, most, **static))
        print(f"{name}: {took:.1f} s, {captured()} graphs captured")


def attention_kernels(model: nn.Module, prompt: Tensor, new: int) -> None:
    """Kernels of attention while decoding, by their names, and their time for a token."""
    for name, options in WAYS.items():
        by_library(model, prompt, new, **options)
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as found:
            by_library(model, prompt, new, **options)
        wanted = ("flash", "fmha", "attention", "softmax", "sdpa")
        for event in found.key_averages():
            if event.device_type == DeviceType.CUDA and any(word in event.key.lower() for word in wanted):
                ms = event.self_device_time_total / 1e3 / new
                print(f"{name}: {event.count / new:.0f} x {event.key.replace('void ', '')[:60]}, {ms:.2f} ms a token")


def modes(model: nn.Module, length: int) -> None:
    """A prompt's forward in each grad mode: time and memory; and what a compiled MLP has to capture again."""
    prompt = torch.randint(model.config.vocab_size, (1, length), device=model.device)
    mlp = model.model.layers[0].mlp
    x = torch.randn(length, model.config.hidden_size, device=model.device, dtype=model.dtype)
    fast = torch.compile(mlp)
    for name, mode in MODES.items():
        with mode(), graphs() as captured:
            call = lambda: model(prompt, logits_to_keep=1)  # noqa: E731
            extra = memory(call)
            took = min(seconds(call) for _ in range(5))
            first, then = seconds(lambda: fast(x)), seconds(lambda: fast(x))
        text = f"{name}: {took * 1e3:.1f} ms" + (f", {extra / 1e9:.2f} GB" if extra else "")
        print(f"{text}; compiled MLP: first call {first:.2f} s, {captured()} graph, then {then * 1e3:.2f} ms")


def memory(call: Callable[[], object]) -> int:
    """The most bytes that a call holds beside what was there; 0 without a GPU."""
    if not torch.cuda.is_available():
        call()
        return 0
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call()
    return torch.cuda.max_memory_allocated() - before


def section(name: str) -> None:
    print(f"==== {name}", flush=True)
    print(f"{time.strftime('%H:%M:%S')} {name}", file=sys.stderr)


def main() -> None:
    """First calls of a 1B, all else of an 8B; on a GPU about three minutes."""
    torch.manual_seed(0)
    gpu = torch.cuda.is_available()
    device, dtype = (torch.device("cuda"), torch.bfloat16) if gpu else (torch.device("cpu"), torch.float32)
    new = 33 if gpu else 9
    small = make_model(LLAMA_1B if gpu else TINY, device, dtype)
    prompt = torch.randint(small.config.vocab_size, (512 if gpu else 24,), device=device)
    section("first calls")
    first_calls(small, prompt, new)
    del small
    model = make_model(LLAMA_8B if gpu else TINY, device, dtype)
    section("host")
    host(model, prompt, new)
    section("attention")
    attention_kernels(model, prompt, new)
    section("modes")
    modes(model, 512 if gpu else 32)
    section("prefill")
    prefill(model, (1, 8, 64) if gpu else (1, 2), (128, 2048, 16384) if gpu else (8, 16))


if __name__ == "__main__":
    main()
