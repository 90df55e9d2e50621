"""Counters are read from what Nsight Compute prints; where it is missing or may not count, that is said."""

import pytest
import torch

from snippets.validation import profiling_counters
from snippets.validation.profiling_counters import COUNTERS, command, lines, main, values

PRINTED = """==PROF== Connected to process 1 (/usr/bin/python3.12)
==PROF== Profiling "_forward_kernel" - 0: 0%....50%....100% - 1 pass
==PROF== Disconnected from process 1
"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Metric Name","Metric Unit","Metric Value"
"0","1","python3.12","127.0.0.1","_forward_kernel","1","7","gpu__time_duration.sum","ns","131,456"
"0","1","python3.12","127.0.0.1","_forward_kernel","1","7","dram__bytes_read.sum","byte","268,500,000"
"0","1","python3.12","127.0.0.1","_forward_kernel","1","7","dram__bytes_write.sum","byte","251000000"
"0","1","python3.12","127.0.0.1","_forward_kernel","1","7","dram__throughput.avg.pct_of_peak_sustained_elapsed","%","85.5"
"0","1","python3.12","127.0.0.1","_forward_kernel","1","7","sm__warps_active.avg.pct_of_peak_sustained_active","%","48.25"
"0","1","python3.12","127.0.0.1","_forward_kernel","1","7","smsp__issue_active.avg.pct_of_peak_sustained_active","%",""
"""


def test_counters_are_read_by_name():
    counted = values(PRINTED)
    assert counted["gpu__time_duration.sum"] == 131456.0
    assert counted["dram__bytes_read.sum"] == 268.5e6
    assert "smsp__issue_active.avg.pct_of_peak_sustained_active" not in counted  # it had no value


def test_each_counter_is_shown_with_what_it_means():
    text = "\n".join(lines(values(PRINTED)))
    assert all(name in text and meaning in text for name, meaning in COUNTERS.items())
    assert "131.5 us" in text and "268.5 MB" in text and "nan %" in text


def test_where_nothing_may_be_counted_the_words_of_ncu_are_the_error():
    refused = "==PROF== Connected\n==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access counters."
    with pytest.raises(ValueError, match="ERR_NVGPUCTRPERM"):
        values(refused)


def test_the_clocks_are_left_as_they_are():
    words = command("ncu", ["python"])
    assert words[words.index("--clock-control") + 1] == "none"
    assert words[-1] == "python" and len(COUNTERS) == 5


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_that_is_said(capsys):
    assert main([]) == 0
    assert "no CUDA GPU; nothing is counted" in capsys.readouterr().out


def test_without_ncu_that_is_said(monkeypatch, capsys):
    monkeypatch.setattr(profiling_counters, "found", lambda: None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert main([]) == 0
    assert "no ncu" in capsys.readouterr().out
