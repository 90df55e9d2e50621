"""The calculator of a training step on several GPUs: its form, what was measured, and how far predictions were off."""

import json
import re
from collections.abc import Mapping
from typing import Any

from docs.publish.evidence import Evidence
from docs.publish.macros import captures as blocks
from docs.publish.macros.calculators.form import Field, render
from docs.publish.records.captures import Captures
from snippets.examples.multi_gpu_bytes import STRATEGIES
from snippets.examples.multi_gpu_measured import by_size
from snippets.examples.multi_gpu_predict import predict
from snippets.examples.multi_gpu_ranks import GIB
from snippets.reference.communication import Rates, rates_of

MODEL = "Llama 1B"
NAMES = {
    "DDP": "DDP",
    "FSDP2": "FSDP2",
    "FSDP2, no reshard": "FSDP2, not resharded",
    "tensor + sequence": "tensor and sequence parallel",
}
COMPILED = {"nothing": "{}", "each block": "blocks, {}", "the whole model": "{}, whole"}  # and as the record names it
SENT_AS = {"all-reduce": "float32", "all-gather": "bfloat16", "reduce-scatter": "float32"}
SIZES = {
    "layers": "Layers",
    "width": "Width",
    "inner": "MLP width",
    "shared": "Key/value width",
    "vocabulary": "Vocabulary",
}
STEP = {
    "forward": "1 GPU: forward, ms",
    "backward": "1 GPU: backward, ms",
    "update": "1 GPU: update, ms",
    "peak": "1 GPU: peak, GiB",
}
ROWS = {
    "alone": "Step on one GPU",
    "bytes": "Each GPU sends",
    "communication": "Communication",
    "exposed": "Exposed",
    "step": "Step",
    "memory": "Peak memory",
}
RECORDED = 2  # GPUs of the section "record"; of more of them "more" has steps and peaks, and the other script rates
MORE = re.compile(r"^(\d+) GPUs, (.+?) +[\d.]+ +[\d.]+ +([\d.]+) +[-+]\d+% +([\d.]+)$", re.M)

Runs = dict[str, dict[str, Any]]


def panel(captures: Captures, page: Evidence) -> str:
    """The form as HTML, with what two and more GPUs took."""
    record, more = (captures.find("examples/multi_gpu", section, "gpu") for section in ("record", "more"))
    links = captures.find("reference/communication", "rates", "gpu")
    known = json.loads(record.content)
    runs, bases = known["runs"], known["bases"]
    rates = _rates(by_size(known["rates"]), links.content)
    measured = {RECORDED: runs} | {n: _more(more.content, n) for n in rates if n != RECORDED}
    sizes, tokens = _sizes(bases["one GPU"]["shape"]), bases["one GPU"]["shape"]["tokens"]
    data = {
        "memory": record.run.machine["memory_bytes"],
        "sizes": sizes,
        "tokens": tokens,
        "rates": {n: {name: sorted(row.items()) for name, row in each.items()} for n, each in rates.items()},
        "strategies": {
            name: {how: _strategy(name, run.format(name), bases, rates, measured) for how, run in COMPILED.items()}
            for name in NAMES
        },
    }
    source = "".join(blocks.provenance(captures, capture, page) for capture in (record, links))
    return render("multi_gpu", _fields(sizes, tokens), ROWS, data, source)


def _fields(sizes: Mapping[str, int], tokens: int) -> list[Field]:
    return [
        Field("model", "Model", {"measured": MODEL, "own": "your model"}),
        Field("tokens", "Tokens per GPU", value=tokens),
        Field("gpus", "GPUs", value=RECORDED, least=2),
        Field("strategy", "Strategy", NAMES),
        Field("compiled", "Compiled", {how: how for how in COMPILED}),
        *(Field(size, label, value=sizes[size], when=("model", "own")) for size, label in SIZES.items()),
        Field("embeddings", "Embeddings", {"tied": "tied", "untied": "untied"}, when=("model", "own")),
        *(Field(part, label, least=0, step="any", required=False) for part, label in STEP.items()),
    ]


def _sizes(shape: Mapping[str, Any]) -> dict[str, int]:
    """A model's sizes, of the numbers of elements that the record has."""
    layers, width = shape["layers"], shape["width"]
    _, key, _, _, gate, *_ = layers[0]
    return {
        "layers": len(layers),
        "width": width,
        "inner": gate // width,
        "shared": key // width,
        "vocabulary": shape["root"] // width - 1,  # the last norm's weight is one row, too
    }


def _rates(recorded: Rates, links: str) -> dict[int, Rates]:
    """Seconds by bytes, for each number of GPUs; gathers are in bf16, and reductions in fp32, as strategies send."""
    rates = {RECORDED: recorded}
    for n in sorted({json.loads(line)["ranks"] for line in links.splitlines()} - {RECORDED}):
        rates[n] = {operation: rates_of(links, n, dtype)[operation] for operation, dtype in SENT_AS.items()}
    return rates


def _more(printed: str, gpus: int) -> dict[str, dict[str, float]]:
    """Steps and peaks on so many GPUs, by strategy."""
    rows = [found.groups() for found in MORE.finditer(printed)]
    return {name: {"step": float(ms) / 1e3, "peak": float(gib) * GIB} for n, name, ms, gib in rows if int(n) == gpus}


def _strategy(
    name: str, run: str, bases: Runs, rates: Mapping[int, Rates], measured: Mapping[int, Runs]
) -> dict[str, Any]:
    """The step on one GPU that predicts a strategy, and by how much of the prediction the measurement is above it.

    Where that step was not measured, neither is there.
    """
    works, base = STRATEGIES[name].works, bases.get(run)
    assert works
    return {
        "works": works.__name__,
        "alone": {part: base[part] for part in STEP} if base else {},
        "off": {
            n: _off(predict(run, base, rates[n], n), found[run])
            for n, found in measured.items()
            if base and run in found
        },
    }


def _off(guess: Mapping[str, float], found: Mapping[str, float]) -> dict[str, float]:
    return {
        part: found[part] / guess[part] - 1 for part in ("communication", "exposed", "step", "peak") if part in found
    }
