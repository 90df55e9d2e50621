"""What `generate()` of a Hugging Face Llama pays for: host time by cause, first calls, prompts, and grad modes.

It needs transformers (5.17). Run `python -m snippets.examples.generate_cost`: an 8B Llama with random weights on a
GPU, a tiny one without.
"""

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from unittest import mock

import torch
from torch import Tensor, nn
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from snippets.examples.generation import LLAMA_1B, LLAMA_8B, TINY, by_library, make_model

WAYS: dict[str, dict[str, object]] = {"as it comes": {}, "static cache": {"cache_implementation": "static"}}
MODES: dict[str, Callable] = {"grad": nullcontext, "no_grad": torch.no_grad, "inference_mode": torch.inference_mode}
MOST = 2**17  # tokens of a prefill: an 8B, its cache and its activations then fill 80 GB


# --8<-- [start:static]
@torch.inference_mode()
def answered(model: nn.Module, inputs: Mapping[str, Tensor], new: int = 256) -> Tensor:
    """Tokens (batch, prompt + at most new) of `inputs = tokenizer(texts, return_tensors="pt", ...)`."""
    return model.generate(**inputs, max_new_tokens=new, cache_implementation="static")


# --8<-- [end:static]


def seconds(call: Callable[[], object]) -> float:
    wait = torch.accelerator.synchronize if torch.accelerator.is_available() else int
    wait()
    start = time.perf_counter()
    call()
    wait()
    return time.perf_counter() - start


def per_token(spent: Callable[[int], dict[str, float]], new: int) -> dict[str, float]:
    """What each of `new` tokens costs beyond the first, which reads the prompt."""
    whole, one = spent(new), spent(1)
    return {name: (each - one.get(name, 0.0)) / (new - 1) for name, each in whole.items()}


# ---- host time by cause --------------------------------------------------------------------------------------------


def profiled(call: Callable[[], object]) -> dict[str, float]:
    """Milliseconds by cause, and launches; profiling lengthens all that the host does."""
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as found:
        whole = seconds(call)
    events = found.key_averages()
    host = [event for event in events if event.device_type == DeviceType.CPU]
    spent = dict.fromkeys(("waiting for the GPU", "launching", "operators"), 0.0)
    for event in host:
        cause = "launching" if "Launch" in event.key else "operators"
        spent["waiting for the GPU" if "Synchronize" in event.key else cause] += event.self_cpu_time_total / 1e3
    spent["Python"] = whole * 1e3 - sum(spent.values())
    gpu = [event for event in events if event.device_type == DeviceType.CUDA]
    spent["GPU busy"] = sum(event.self_device_time_total for event in gpu) / 1e3
    return spent | {"launches": sum(event.count for event in host if "Launch" in event.key)}


def by_part(model: nn.Module, call: Callable[[], object], compiles: bool) -> dict[str, float]:
    """Milliseconds in each part of `generate()`, without a profiler. The host may run ahead of the GPU.

    `compiles`: whether `generate()` takes its compiled path, as it does with a static cache on a GPU.
    """
    spent = {"prepare inputs": 0.0, "forward": 0.0}

    def timed(function: Callable, part: str) -> Callable:
        def wrapper(*args: object, **kwargs: object) -> object:
            start = time.perf_counter()
            found = function(*args, **kwargs)
            spent[part] += (time.perf_counter() - start) * 1e3
            return found

        return wrapper

    kind, made = type(model), model.get_compiled_call
    prepared = timed(model.prepare_inputs_for_generation, "prepare inputs")
    plain = mock.patch.object(kind, "__call__", timed(kind.__call__, "forward"))
    fast = mock.patch.object(model, "get_compiled_call", lambda config: timed(made(config), "forward"))
    with (
        fast if compiles else plain,  # were the class changed, compiled code would be compiled again
        mock.patch.object(model, "prepare_inputs_for_generation", prepared),
    ):
        whole = seconds(call) * 1e3
    return spent | {"choose, stop and the rest": whole - sum(spent.values())}


def host(model: nn.Module, prompt: Tensor, new: int) -> None:
    for name, options in WAYS.items():
        call = lambda n, options=options: lambda: by_library(model, prompt, n, **options)  # noqa: E731
        call(new)()
        ms = per_token(lambda n, call=call: {"ms": min(seconds(call(n)) for _ in range(3)) * 1e3}, new)["ms"]
        print(f"{name}: {ms:.1f} ms a token, {1e3 / ms:.0f} tokens/s")
        compiles = bool(options) and prompt.is_cuda
        parts = per_token(lambda n, call=call, compiles=compiles: by_part(model, call(n), compiles), new)
        print("  by part: " + ", ".join(f"{part} {each:.1f} ms" for part, each in parts.items()))
        found = per_token(lambda n, call=call: profiled(call(n)), new)
        launches, busy = found.pop("launches"), found.pop("GPU busy")
        print("  by cause, profiled: " + ", ".join(f"{cause} {each:.1f} ms" for cause, each in found.items()))
        print(f"  launches: {launches:.0f} a token; GPU busy: {busy:.1f} ms a token")


# ---- first calls ---------------------------------------------------------------------------------------------------


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


# ---- prompts -------------------------------------------------------------------------------------------------------


# --8<-- [start:prefill]
@torch.inference_mode()
def first_token(model: nn.Module, tokens: Tensor) -> Tensor:
    """The next token (batch,) after prompts (batch, length); their keys and values stay in the cache."""
    found = model(tokens, use_cache=True, logits_to_keep=1)
    return found.logits[:, -1].argmax(-1)


# --8<-- [end:prefill]


def prefill(model: nn.Module, batches: tuple[int, ...], lengths: tuple[int, ...]) -> None:
    """Time to the first token, and how many FLOP/s its matmuls and attention make of it."""
    config = model.config
    matrices = sum(p.numel() for name, p in model.named_parameters() if p.dim() == 2 and "embed" not in name)
    matrices -= model.lm_head.weight.numel()  # only the last token goes through it
    width = config.num_attention_heads * config.head_dim
    for batch in batches:
        for n in lengths:
            if batch * n > MOST:
                print(f"{batch:2} x {n:5} tokens: not run, more than {MOST} tokens")
                continue
            tokens = torch.randint(config.vocab_size, (batch, n), device=model.device)
            took = min(seconds(lambda tokens=tokens: first_token(model, tokens)) for _ in range(2))
            flops = batch * n * (2 * matrices + 2 * config.num_hidden_layers * n * width)
            print(f"{batch:2} x {n:5} tokens: {took * 1e3:7.1f} ms, {flops / took / 1e12:5.1f} TFLOP/s")


# ---- grad modes ----------------------------------------------------------------------------------------------------


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
