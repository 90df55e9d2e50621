"""The calculator of a decoding step: its form, and the steps that were measured."""

from collections.abc import Mapping
from html import escape
from typing import Any

from docs.publish import evidence, markup, palette
from docs.publish.evidence import Evidence
from docs.publish.macros.calculators.form import Field, render
from docs.publish.place import machine_page
from docs.publish.records.measured import Coordinates, Measured
from docs.publish.records.store import Store
from snippets.examples.generation import LLAMA_1B, LLAMA_8B

WAYS = "triton", "graph"
DTYPES = "bf16", "int8", "fp8", "int4"
SIZES = {  # as the form names them, and as the library's configuration does
    "layers": ("Layers", "num_hidden_layers"),
    "width": ("Hidden width", "hidden_size"),
    "inner": ("Intermediate width", "intermediate_size"),
    "heads": ("Heads", "num_attention_heads"),
    "shared": ("KV heads", "num_key_value_heads"),
    "vocabulary": ("Vocabulary", "vocab_size"),
}
MODELS = {
    name: {size: int(config[key]) for size, (_, key) in SIZES.items()}
    for name, config in (("1B", LLAMA_1B), ("8B", LLAMA_8B))
}


def panel(store: Store, page: Evidence, case: str) -> str:
    """The form as HTML, with what was measured of whole steps on each GPU."""
    timed = {slug: _steps(store, slug, case) for slug in store.machines}
    rows = [row for steps in timed.values() for row in steps]
    stale = any(row.stale or row.busy for row in rows)
    page.stale += ["the calculator"] * stale
    machines = [found for slug in timed if (found := _machine(store, slug, timed[slug]))]
    ways = {way: palette.label(way, case=case) for way in WAYS}
    source = _source(rows, page) + f" {markup.STALE_ALL}" * stale
    return render(
        "generation",
        _fields({each["slug"]: each["name"] for each in machines}),
        {"bytes": "Bytes per token", "bound": "Bound"} | ways,
        {"models": MODELS, "ways": ways, "machines": machines},
        f'<p class="rp-chart__source">{source}</p>',
    )


def _fields(machines: dict[str, str]) -> list[Field]:
    """What the form asks for; machines are names by slug."""
    models = {name: f"Llama {name}" for name in MODELS}
    more = {"own": "your shapes", "parameters": "parameters only"}
    return [
        Field("model", "Model", models | more, value=[*MODELS][-1]),
        Field("dtype", "Weights", {name: name for name in DTYPES}),
        Field("batch", "Batch", value=1, most=64),
        Field("context", "Context, tokens", value=512, least=0),
        Field("gpu", "GPU", machines | {"": "another, by its bandwidth"}),
        Field("bandwidth", "Bandwidth, GB/s", step="any", when=("gpu", "")),
        *(Field(size, label, when=("model", "own")) for size, (label, _) in SIZES.items()),
        Field("parameters", "Parameters, billions", value=7, least=0.001, step="any", when=("model", "parameters")),
    ]


def _steps(store: Store, machine: str, case: str) -> list[Measured]:
    """What was timed of whole steps of the models that the form offers."""
    rows = store.select(Coordinates(case, machine=machine))
    return [row for row in rows if row.variant in WAYS and _dtype(row) in DTYPES and _model(row)]


def _dtype(row: Measured) -> str:
    return row.row.part or "bf16"


def _model(row: Measured) -> str:
    """The name of the model that a row is of; empty where it is of none."""
    sizes = [row.row.shape.get(size) for size in ("layers", "width", "vocabulary")]
    return next((name for name, of in MODELS.items() if [of["layers"], of["width"], of["vocabulary"]] == sizes), "")


def _machine(store: Store, slug: str, steps: list[Measured]) -> Mapping[str, Any] | None:
    """A GPU: what it reads in a second, by the run that timed its steps if there is one, and those steps."""
    record = steps[-1].record if steps else store.newest_record(Coordinates(machine=slug))
    if record.machine["kind"] != "gpu" or "read" not in record.ceilings["bandwidth"]:
        return None
    read = record.ceilings["bandwidth"]["read"]["rate"]
    return {"slug": slug, "name": store.machines[slug], "read": read, "points": [_point(row) for row in steps]}


def _point(row: Measured) -> Mapping[str, Any]:
    """A step as the page's other numbers have it, and how far its runs, or the samples of its run, are from that."""
    shape, time = row.row.shape, row.published("time")
    assert time  # each row has one
    return {
        "way": row.variant,
        "dtype": _dtype(row),
        "model": _model(row),
        "batch": shape["batch"],
        "context": shape["context"],
        "seconds": time.value,
        "spread": max(time.high - time.value, time.value - time.low) / time.value,
    }


def _source(rows: list[Measured], page: Evidence) -> str:
    """The machines that timed steps, each with a link to its numbers, and when."""
    names = {row.machine: row.record.machine["name"] for row in rows}
    links = [markup.link(name, page.place.to(machine_page(slug))) for slug, name in names.items()]
    return f"Steps: {', '.join(links)}, {escape(evidence.days(row.record for row in rows))}." if rows else ""
