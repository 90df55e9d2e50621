"""What each mode of torch.compile is in this version; the workloads; and how the table comes about."""

import subprocess
import sys
import threading

from snippets.compiler import modes
from snippets.compiler.modes import Fresh, jobs
from snippets.compiler.modes_options import MODES, OPTIONS
from snippets.compiler.modes_workloads import WORKLOADS
from tests.benchmarks import captures


def test_every_mode_at_every_workload_and_an_option_where_it_does_something():
    asked = list(jobs(list(WORKLOADS)))
    assert len(asked) == len(set(asked)) == len(WORKLOADS) * len(MODES) + len(OPTIONS)
    assert {workload for workload, mode in asked if mode == "freezing"} == {"convolution"}
    assert next(jobs(["block"])) == ("block", "max-autotune"), "what takes longest comes first"


POPEN = subprocess.Popen


def child(monkeypatch, script: str) -> Fresh:
    """A child that runs a few lines instead of the snippet."""
    monkeypatch.setattr(
        modes.subprocess, "Popen", lambda command, **settings: POPEN([sys.executable, "-c", script], **settings)
    )
    return Fresh("mlp", "default", "3", 4)


def test_a_child_has_a_cold_cache_of_its_own_and_waits_for_its_turn(monkeypatch):
    fresh = child(
        monkeypatch,
        "import os, json; input(); folder = os.environ['TORCHINDUCTOR_CACHE_DIR'];"
        "print(json.dumps([os.environ['CUDA_VISIBLE_DEVICES'], folder, os.listdir(folder)]))",
    )
    assert fresh.process.poll() is None
    gpu, folder, found = fresh.row()  # type: ignore[misc]
    assert (gpu, folder, found) == ("3", fresh.folder.name, [])


def test_a_child_that_fails_says_why(monkeypatch):
    failed = child(monkeypatch, "input(); raise SystemExit('out of memory')").row()
    assert failed == {"workload": "mlp", "mode": "default", "failed": "out of memory"}
    assert child(monkeypatch, "import time; time.sleep(60)").row(0.1)["failed"] == "not done after 0 s"


def test_gpus_share_the_work_and_each_measures_one_at_a_time(monkeypatch):
    busy: dict[str, int] = {}
    lock = threading.Lock()

    class Counted:
        def __init__(self, workload: str, mode: str, gpu: str, cores: int):
            self.job, self.gpu = (workload, mode), gpu

        def row(self) -> dict:
            with lock:
                busy[self.gpu] = busy.get(self.gpu, 0) + 1
                assert busy[self.gpu] == 1
            with lock:
                busy[self.gpu] -= 1
            return dict(zip(("workload", "mode"), self.job, strict=True))

    monkeypatch.setattr(modes, "Fresh", Counted)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,5")
    rows = modes.collected(["mlp", "decode"])
    assert sorted((row["workload"], row["mode"]) for row in rows) == sorted(jobs(["mlp", "decode"]))
    assert set(busy) <= {"0", "5"}


def test_the_script_shows_a_mode_on_a_cpu(script):
    printed = captures.sections(script("snippets.compiler.modes", "cpu").stdout)
    assert "reduce-overhead is the default here" in printed["table"] and "modes" in printed
