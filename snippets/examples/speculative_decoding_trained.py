"""Two byte models, trained for seconds on the text of Python's standard library: what smaller weights change, and
how many drafted tokens they accept. It needs transformers (5.17).

Run `python -m snippets.examples.speculative_decoding_trained`; on an H100 it takes two minutes.
"""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from snippets.examples.generate_cost_host import seconds
from snippets.examples.generation_loop import Generator
from snippets.examples.generation_step import Decoder
from snippets.examples.speculative_decoding import Speculator, Verifier
from snippets.examples.speculative_decoding_drafts import Draft, DraftModel, acceptance, ngram
from snippets.examples.speculative_decoding_models import DEVICE, PLANS, Plan, bits, copied, held_out, texts, trained

FORMATS = {"bf16": None, "int8": torch.int8, "fp8": torch.float8_e4m3fn, "int4": torch.uint8}
AHEAD = 1, 2, 4, 8  # lengths of drafts


# --8<-- [start:compared]
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


# --8<-- [end:compared]


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
