"""Only the lines that matter are shown, and the flight recorder's files are read."""

import pickle
from pathlib import Path

import pytest

from snippets.examples import multi_gpu_failures


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("> begins 12.5\n> RuntimeError: [/a/b.cc:7] Timed out\nmore", ["rank 0: RuntimeError: Timed out"]),
        ("".join(f"Watchdog caught collective operation timeout: W(1) ran for {ms} milliseconds before timing out.\n"
                 for ms in (9, 10)),
         ["rank 0: Watchdog caught collective operation timeout: W(1) ran for 9 milliseconds before timing",
          "    out"]),
        ("noise\n> rank 0: own", ["rank 0: own"]),
    ],
)  # fmt: skip
def test_only_lines_that_matter_are_shown(text: str, expected: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    multi_gpu_failures.shown([text])
    assert capsys.readouterr().out.splitlines() == expected


def test_flight_recorders_last_collectives_are_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    entries = [
        {"profiling_name": "nccl:all_reduce", "input_sizes": [[size]], "state": "completed", "collective_seq_id": size}
        for size in (1, 2, 3)
    ]
    (tmp_path / "flight_1").write_bytes(pickle.dumps({"entries": entries}))
    multi_gpu_failures.flight(tmp_path)
    assert capsys.readouterr().out.splitlines() == [
        f"flight recorder, rank 1: collective {size}, nccl:all_reduce [[{size}]] completed" for size in (2, 3)
    ]
