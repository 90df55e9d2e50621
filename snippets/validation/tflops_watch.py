"""A GPU's clock, its power and what slows it, read while something runs."""

import subprocess
import threading
import time
from statistics import median

# --8<-- [start:watch]
SLOWED_BY = {0x4: "power", 0x20: "heat", 0x40: "heat", 0x8: "hardware", 0x80: "power brake"}  # bits of nvml.h


class Watch:
    """Reads the first GPU's clock (MHz), power (W) and what slows it, every 20 ms from here on."""

    def __init__(self) -> None:
        query = "--query-gpu=clocks.sm,power.draw.instant,clocks_event_reasons.active"
        command = ["nvidia-smi", "--id=0", query, "--format=csv,noheader,nounits", "--loop-ms=20"]
        self.smi = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.readings: list[tuple[float, float, float, int]] = []  # (moment, MHz, W, reasons)
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in self.smi.stdout or ():
            clock, power, reasons = line.split(", ")
            self.readings.append((time.perf_counter(), float(clock), float(power), int(reasons, 16)))

    def since(self, moment: float) -> str:
        """Medians since a moment of time.perf_counter(), and what slowed the GPU in a tenth of the readings or more."""
        found = [reading[1:] for reading in self.readings if reading[0] > moment]
        if len(found) < 10:
            return "too short"
        clocks, powers, reasons = zip(*found, strict=True)
        slowed = {
            name for bit, name in SLOWED_BY.items() if sum(bool(each & bit) for each in reasons) > len(found) / 10
        }
        return f"{median(clocks):.0f} MHz {median(powers):.0f} W {' '.join(sorted(slowed))}"


# --8<-- [end:watch]
