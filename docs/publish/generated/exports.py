"""A machine's current numbers as files to download."""

import csv
import io
import json
from typing import Any

from docs.publish.records.measured import Coordinates, Measured
from docs.publish.records.store import Store

METRICS = ("bandwidth", "share", "rate", "rate_share", "registers")


def as_json(store: Store, machine: str) -> str:
    """Runs (machine, software, ceilings), rows that name their run, and what could not be timed."""
    rows = store.select(Coordinates(machine=machine))
    runs = {row.record.id: row.record for row in rows}
    content = {
        "schema": 1,
        "machine": machine,
        "runs": [run.model_dump(mode="json", by_alias=True, exclude={"rows", "failures"}) for run in runs.values()],
        "rows": [{"run": row.record.id, "stale": row.stale} | row.row.model_dump(mode="json") for row in rows],
        "failures": [failure.model_dump(mode="json") for failure in store.failures(machine)],
    }
    return json.dumps(content, indent=1) + "\n"


def as_csv(store: Store, machine: str) -> str:
    """A line for each row, in base units: seconds, bytes, bytes/s, FLOP/s; empty where a row has no such thing."""
    lines = [_flat(row) for row in store.select(Coordinates(machine=machine))]
    text = io.StringIO()
    writer = csv.DictWriter(text, list(lines[0]) if lines else ["case"], lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return text.getvalue()


def _flat(measured: Measured) -> dict[str, Any]:
    row = measured.row
    return {
        "case": row.case,
        "variant": row.variant,
        "direction": row.direction,
        "dimensions": "x".join(row.shape),
        "shape": row.size,
        "dtype": row.dtype,
        "mode": row.mode,
        "p20": row.time.p20,
        "p50": row.time.p50,
        "p80": row.time.p80,
        "samples": row.time.samples,
        "bytes_read": row.bytes_read,
        "bytes_written": row.bytes_written,
        "flops": row.flops,
        "mix": row.mix,
        "peak_memory_bytes": row.peak_memory_bytes,
        "kernels": row.kernels,
        "error": row.error.value,
        "error_bound": row.error.bound,
        "build_seconds": row.build_seconds,
        **{name: measured.metric(name) for name in METRICS},
        "run": row.record.id,
        "commit": row.record.commit,
        "stale": measured.stale,
    }
