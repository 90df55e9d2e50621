"""A machine's current numbers as files to download, and all records."""

import csv
import io
import json
import zipfile
from pathlib import Path
from typing import Any

from docs.publish.records.measured import Coordinates, Measured
from docs.publish.records.schema import Yardstick
from docs.publish.records.store import Store

YARDSTICKS = tuple(Yardstick.__annotations__)
METRICS = ("bandwidth", "share", "rate", "rate_share", "registers")


def as_json(store: Store, machine: str) -> str:
    """Runs (machine, software, ceilings), rows that name their run, and what could not be timed."""
    rows = store.select(Coordinates(machine=machine))
    runs = {row.record.id: row.record for row in rows}
    content = {
        "schema": 1,
        "machine": machine,
        "runs": [run.model_dump(mode="json", by_alias=True, exclude={"rows", "failures"}) for run in runs.values()],
        "rows": [_described(row) for row in rows],
        "failures": [failure.model_dump(mode="json") for failure in store.failures(machine)],
    }
    lines = (f"{json.dumps(name)}: {json.dumps(part)}" for name, part in content.items())  # `indent` takes far longer
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _described(row: Measured) -> dict[str, Any]:
    """A row with its run, and the range over machines where there is one."""
    return {"run": row.record.id, "stale": bool(row.stale), **_range(row)} | row.row.model_dump(mode="json")


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
        "case": row.case, "variant": row.variant, "direction": row.direction, "part": row.part,
        "dimensions": "x".join(row.shape), "shape": "x".join(map(str, row.shape.values())), "dtype": row.dtype,
        "mode": row.mode, "p20": row.time.p20, "p50": row.time.p50, "p80": row.time.p80, "samples": row.time.samples,
        "calls": row.calls, "refreshed": row.refreshed, "bytes_read": row.bytes_read,
        "bytes_written": row.bytes_written, "flops": row.flops, "mix": row.mix,
        "peak_memory_bytes": row.peak_memory_bytes, "kernels": row.kernels, "error": row.error.value,
        "error_bound": row.error.bound, "build_seconds": row.build_seconds, "built_cold": row.built_cold,
        **{name: dict(row.host or row.record.host or {}).get(name) for name in YARDSTICKS},
        "machines": len(measured.again),
        **{name: measured.metric(name) for name in METRICS}, **_range(measured), "run": row.record.id,
        "commit": row.record.commit, "boot": row.record.machine.get("boot"),
        "processor": row.record.machine.get("processor"), "stale": bool(measured.stale), "busy": row.busy,
    }  # fmt: skip


def _range(row: Measured) -> dict[str, float | None]:
    """The times on separately started machines, lowest and highest, where they are published as a range."""
    published = row.published("time")
    if published is None or not published.runs:
        return {"lowest": None, "highest": None}
    return {"lowest": published.low, "highest": published.high}


def archive(root: Path) -> bytes:
    """All committed records in one file, the same for the same records: a zip's default date is 1980."""
    packed, folder = io.BytesIO(), root / "docs" / "measurements"
    with zipfile.ZipFile(packed, "w") as file:
        for path in sorted(path for kind in ("runs", "sweeps", "captures") for path in (folder / kind).rglob("*.json")):
            name = zipfile.ZipInfo(path.relative_to(folder).as_posix())
            file.writestr(name, path.read_bytes(), zipfile.ZIP_DEFLATED, 3)  # 6 takes thrice as long
    return packed.getvalue()
