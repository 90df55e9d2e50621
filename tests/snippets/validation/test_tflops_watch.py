"""What is asked of the driver, and what is made of its answers: a script in its place gives them."""

import stat
import time

from snippets.validation.tflops_watch import Watch


def test_clock_and_power_are_the_medians_since_a_moment(monkeypatch, tmp_path):
    smi = tmp_path / "nvidia-smi"
    smi.write_text(
        "#!/bin/sh\nfor i in 1 2 3 4; do printf '1000, 300, 0x1\\n1100, 350.5, 0x5\\n1200, 500, 0x24\\n'; done\n"
    )
    smi.chmod(smi.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    began = time.perf_counter()
    watch = Watch()
    watch.smi.wait()
    while len(watch.readings) < 12:
        time.sleep(0.001)
    assert watch.since(began).split() == ["1100", "MHz", "350", "W", "heat", "power"]
    assert watch.since(time.perf_counter()) == "too short"
