"""What the vendors state for their GPUs (datasheets.json), each with its source; and no record may claim more."""

import json
from functools import cache
from pathlib import Path
from typing import Any

from docs.publish import units
from docs.publish.errors import PublishError, unknown
from docs.publish.records.schema import Record, describe

FILE = Path(__file__).with_name("datasheets.json")
QUANTISES = "kernels/fp8_matmul.py"  # multiplies in fp8, whatever it gets
UNITS = {
    "bandwidth": "B/s",
    "power": "W",
    "bfloat16": "FLOP/s",
    "float16": "FLOP/s",
    "float8_e4m3fn": "FLOP/s",
    "tfloat32": "FLOP/s",
    "float32": "FLOP/s",
    "lanes": "",  # instructions of 32 bits that a multiprocessor issues in a clock
    "exponentials": "",  # that it computes in a clock, among other special functions
    "registers": "",  # of 32 bits, of a multiprocessor
    "registers of a thread": "",
    "cache of a multiprocessor": "B",  # L1 and shared memory together
}


@cache
def load() -> dict[str, dict[str, Any]]:
    """Datasheets by the name that the driver reports: figures in base units, with "label", "source" and "note".

    A figure that the source does not state has its own, in "sources".
    """
    return json.loads(FILE.read_text(encoding="utf-8"))


def figure(device: str, name: str) -> float:
    """One figure, in base units.

    Raises:
        PublishError: the device or the figure is not known.
    """
    sheets = load()
    if device not in sheets:
        raise unknown("datasheet: device", device, sheets)
    if name not in UNITS or name not in sheets[device]:
        raise unknown(f"datasheet of {device}: figure", name, (key for key in UNITS if key in sheets[device]))
    return sheets[device][name]


def source(device: str, name: str) -> str:
    """Where a figure is stated."""
    sheet = load()[device]
    return sheet.get("sources", {}).get(name, sheet["source"])


def check(record: Record) -> None:
    """Refuse a record that claims more than the hardware can do.

    Raises:
        PublishError: naming the row or ceiling, what it claims and what the datasheet allows.
    """
    sheet = load().get(record.machine["name"])
    if sheet is None:
        return
    for mix, ceiling in record.ceilings["bandwidth"].items():
        _refuse(f"{mix} ceiling", ceiling["rate"], sheet["bandwidth"], "B/s", sheet)
    for dtype, regimes in record.ceilings["matrix"].items():
        for regime, ceiling in regimes.items():
            _refuse(f"{dtype} {regime} ceiling", ceiling["rate"], _peak(sheet, dtype), "FLOP/s", sheet)
    for row in record.rows:
        if row.from_memory:
            cached = min(
                row.bytes_written, record.machine["l2_bytes"] or 0
            )  # the call may end before these are memory's
            _refuse(describe(row), (row.moved - cached) / row.time.p50, sheet["bandwidth"], "B/s", sheet)
        multiplied = "float8_e4m3fn" if QUANTISES in row.sources.files else row.dtype
        _refuse(describe(row), row.flops / row.time.p50, _peak(sheet, multiplied), "FLOP/s", sheet)


def _peak(sheet: dict[str, Any], dtype: str) -> float:
    """The highest rate that the datasheet knows for inputs of a dtype."""
    unlimited = float("inf")
    return max(sheet.get("float32", 0.0), sheet["tfloat32"]) if dtype == "float32" else sheet.get(dtype, unlimited)


def _refuse(what: str, claimed: float, peak: float, unit: str, sheet: dict[str, Any]) -> None:
    if claimed > peak:
        limit = f"at most {show(peak, unit)} ({sheet['label']} datasheet)"
        raise PublishError(f"{what}: expected {limit}, got {units.text(claimed, unit)}")


def show(value: float, unit: str) -> str:
    """A figure with all its digits: "989.5 TFLOP/s"."""
    if unit in units.FIXED:
        return f"{value:g} {unit}".strip()
    scale, name = next(step for step in reversed(units.STEPS[unit]) if value >= step[0])
    return f"{value / scale:g} {name}"
