"""Two byte models, trained for seconds on the text of Python's standard library: what smaller weights change, and
how many drafted tokens they accept. It needs transformers (5.17).

Run `python -m snippets.examples.speculative_decoding_trained`; on an H100 it takes two minutes.
"""

import math
import sys
import sysconfig
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from snippets.examples.generate_cost import seconds
from snippets.examples.generation import LLAMA_1B, TINY, make_model
from snippets.examples.generation_loop import Generator
from snippets.examples.generation_step import Decoder
from snippets.examples.speculative_decoding import Draft, DraftModel, Speculator, Verifier, acceptance, ngram

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
FORMATS = {"bf16": None, "int8": torch.int8, "fp8": torch.float8_e4m3fn, "int4": torch.uint8}
AHEAD = 1, 2, 4, 8  # lengths of drafts
Sizes = Mapping[str, float]


@dataclass(frozen=True)
class Plan:
    """What a device can do in its time."""

    target: Sizes
    draft: Sizes
    seconds: tuple[float, float]  # of training
    batch: int
    context: int  # bytes
    prompts: int
    prompt: int  # bytes of each
    new: int


TARGET = LLAMA_1B | {
    "hidden_size": 1024,
    "num_hidden_layers": 8,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "intermediate_size": 2816,
    "vocab_size": 256,
    "tie_word_embeddings": False,
}
DRAFT = TARGET | {
    "hidden_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "intermediate_size": 1408,
}
PLANS = {
    "cuda": Plan(TARGET, DRAFT, (20.0, 10.0), batch=16, context=1024, prompts=16, prompt=256, new=256),
    "cpu": Plan(TINY, TINY | {"num_hidden_layers": 1}, (1.0, 0.5), batch=8, context=64, prompts=2, prompt=32, new=24),
}


# ---- training -------------------------------------------------------------------------------------------------------


def texts() -> tuple[bytes, list[bytes]]:
    """What to train on; and every 20th file, which no model sees."""
    root = Path(sysconfig.get_paths()["stdlib"])
    without = {"site-packages", "dist-packages", "test", "tests", "idlelib"}
    files = sorted(path for path in root.rglob("*.py") if not without & {*path.relative_to(root).parts})
    read = [path.read_bytes() for path in files]
    return b"".join(text for at, text in enumerate(read) if at % 20), read[::20]


# --8<-- [start:train]
def trained(sizes: Sizes, text: bytes, plan: Plan, limit: float) -> tuple[nn.Module, int]:
    """A model after `limit` seconds of training, and the number of steps."""
    model = make_model(sizes, DEVICE, torch.float32).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    data = torch.frombuffer(bytearray(text), dtype=torch.uint8).to(DEVICE)
    ahead, steps, start = torch.arange(plan.context, device=DEVICE), 0, math.inf
    while (done := max(0.0, time.perf_counter() - start) / limit) < 1:
        optimizer.param_groups[0]["lr"] = 1e-3 * min(1, 20 * done) * (1 - done)
        tokens = data[torch.randint(len(data) - plan.context, (plan.batch, 1), device=DEVICE) + ahead].long()
        with torch.autocast(DEVICE.type, torch.bfloat16, enabled=DEVICE.type == "cuda"):
            loss = model(tokens, labels=tokens, use_cache=False).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        shown = loss.item() / math.log(2)  # waits for the GPU
        start = min(start, time.perf_counter())  # the first step warms up, with a learning rate of 0
        steps += 1
        if steps % 100 == 1:
            print(f"step {steps}: {shown:.2f} bits per byte", file=sys.stderr, flush=True)
    return model, steps


# --8<-- [end:train]


def copied(model: nn.Module, sizes: Sizes, dtype: torch.dtype) -> nn.Module:
    """The same weights in another dtype; RoPE's frequencies stay fp32."""
    made = make_model(sizes, DEVICE, dtype)
    made.load_state_dict(model.state_dict())
    return made


def held_out(files: list[bytes], count: int, length: int) -> Tensor:
    """(count, length) bytes: from the middle of each file that is long enough, one after the other."""
    middles = [text[len(text) // 2 :][:length] for text in files if len(text) >= 2 * length]
    if len(middles) < count:
        raise ValueError(f"held-out files: expected {count} of {2 * length} bytes or more, got {len(middles)}")
    return torch.tensor([list(middle) for middle in middles[:count]], device=DEVICE)


@torch.no_grad()
def bits(model: nn.Module, tokens: Tensor) -> float:
    """Bits per byte of text that no model saw."""
    return sum(model(each[None], labels=each[None]).loss.item() for each in tokens) / len(tokens) / math.log(2)


# ---- what smaller weights change ------------------------------------------------------------------------------------


@torch.no_grad()
def followed(decoder: Decoder, prompts: Tensor, new: int) -> tuple[Tensor, Tensor]:
    """Prompts (slots, length) with `new` greedy tokens each, and the logits at each place of the prompts."""
    tokens, logits = prompts, []
    for place in range(prompts.shape[1] + new - 1):
        logits.append(decoder(tokens[:, place], torch.full_like(tokens[:, 0], place)).float())
        if place + 1 == tokens.shape[1]:
            tokens = torch.cat((tokens, logits[-1].argmax(-1, keepdim=True)), 1)
    return tokens, torch.stack(logits[: prompts.shape[1]], 1)


def compared(model: nn.Module, exact: nn.Module, prompts: Tensor, new: int) -> Iterator[str]:
    """Each format beside fp32: logits and next tokens for the same text, and `new` tokens decoded freely."""
    decode = lambda model, dtype: followed(Decoder(model, *space(prompts, new), dtype), prompts, new)  # noqa: E731
    tokens, logits = decode(exact, None)
    yield "weights   error of logits   same next token   equal until the first difference   all equal"
    for name, dtype in FORMATS.items():
        found, others = decode(model, dtype)
        error = ((others - logits).square().mean() / logits.square().mean()).sqrt().item()
        same = (others.argmax(-1) == logits.argmax(-1)).float().mean().item()
        until = (found == tokens)[:, prompts.shape[1] :].long().cumprod(1).sum(1)
        mean, whole = until.float().mean().item(), (until == new).sum().item()
        yield f"{name:9} {error:15.1%} {same:17.1%} {mean:23.0f} of {new} tokens {whole:5} of {len(prompts)}"


def space(prompts: Tensor, new: int) -> tuple[int, int]:
    return len(prompts), prompts.shape[1] + new


# ---- what drafts are worth ------------------------------------------------------------------------------------------


def accepted(texts: Tensor, start: int, draft: Draft) -> list[float]:
    """Accepted tokens per step by length of the draft, over all texts."""
    logs = [(text[:start], text[start:]) for text in texts.tolist()]
    return [acceptance(logs, draft, k) for k in AHEAD]


def by_formula(first: float) -> list[float]:
    """The same, were each token right as often as the first, whatever came before: a + a^2 + ... + a^k."""
    return [sum(first**n for n in range(1, k + 1)) for k in AHEAD]


def repeating(prompts: Tensor) -> Tensor:
    """Three quarters of each prompt, and its first quarter again: the model may go on copying."""
    quarter = prompts.shape[1] // 4
    return torch.cat((prompts[:, : 3 * quarter], prompts[:, :quarter]), 1)


def drafted(model: nn.Module, draft: DraftModel, pieces: Tensor, plan: Plan) -> Iterator[str]:
    prompts = pieces[:, : plan.prompt]
    again = repeating(prompts)
    decoder = Decoder(model, *space(prompts, plan.new))
    answers, copies = followed(decoder, prompts, plan.new)[0], followed(decoder, again, plan.prompt // 2)[0]
    yield "draft of".ljust(35) + "".join(f"{k:6}" for k in AHEAD)
    rows = {
        "n-gram, held-out files as they are": accepted(pieces, plan.prompt, ngram),
        "n-gram, the model's answers": accepted(answers, plan.prompt, ngram),
        "n-gram, the prompt once more": accepted(copies, again.shape[1], ngram),
        "draft model, the model's answers": (found := accepted(answers, plan.prompt, draft)),
        "  by the formula": by_formula(found[0]),
    }
    for name, row in rows.items():
        yield f"{name:35}" + "".join(f"{value:6.2f}" for value in row)


def timed(model: nn.Module, draft: DraftModel, prompts: Tensor, new: int, width: int = 4) -> Iterator[str]:
    """Tokens per second in CUDA graphs, prompts included; and how often rounding chose another token."""
    plain = Generator(model, Decoder(model, 1, prompts.shape[1] + new))
    loop = Speculator(model, Verifier(model, width, prompts.shape[1] + new), ngram)
    for name, given in (("held-out files", prompts), ("the prompt once more", repeating(prompts))):
        expected = plain.generate(list(given), new)
        took = seconds(lambda given=given: plain.generate(list(given), new))
        yield f"{name}: plain {len(given) * new / took:.0f} tokens/s"
        for drafter, loop.draft in (("n-gram", ngram), ("draft model", draft)):
            found = loop.generate(list(given), new)
            took = seconds(lambda given=given: loop.generate(list(given), new))
            same = sum(one == other for one, other in zip(found, expected, strict=True))
            rate, a_step = len(given) * new / took, len(given) * (new - 1) / loop.steps
            yield f"  {drafter}: {rate:.0f} tokens/s, {a_step:.2f} tokens a step; equal answers: {same} of {len(given)}"


def main() -> None:
    torch.manual_seed(0)
    plan, (text, files) = PLANS[DEVICE.type], texts()
    pieces = held_out(files, plan.prompts, plan.prompt + plan.new)
    print("==== trained", flush=True)
    models = []
    for name, sizes, limit in zip(("target", "draft"), (plan.target, plan.draft), plan.seconds, strict=True):
        model, steps = trained(sizes, text, plan, limit)
        millions = sum(p.numel() for p in model.parameters()) / 1e6
        models += [copied(model, sizes, torch.bfloat16), copied(model, sizes, torch.float32)]
        print(f"{name}: {millions:.1f} million parameters, {bits(models[-1], pieces):.2f} bits per held-out byte")
        print(f"  {steps} steps of {plan.batch} x {plan.context} bytes in {limit:.1f} s", flush=True)
    model, exact, small, _ = models
    draft = DraftModel(small, Decoder(small, 1, plan.prompt + plan.new + AHEAD[-1]))
    sections = {"weights": compared(model, exact, pieces[:, : plan.prompt], plan.new)}
    sections |= {"acceptance": drafted(model, draft, pieces, plan)}
    if DEVICE.type == "cuda":
        sections |= {"speed": timed(model, draft, pieces[:4, : plan.prompt], plan.new)}
    for name, lines in sections.items():
        print(f"==== {name}", *lines, sep="\n", flush=True)


if __name__ == "__main__":
    main()
