"""What a process printed is read, error by error."""

import re

from snippets.compiler.debugging_late_read import asserted, line, raised, sanitized, shown


def told(section: str) -> dict[str, list[tuple[str, str]]]:
    """What was raised by each run of a section, and where."""
    runs = re.findall(r"^(\S.*)\n((?:  .*\n(?:      .*\n)*  at  .*\n)+)", section, re.MULTILINE)
    return {name: re.findall(r"  (.*)\n  at  (.*)\n", said) for name, said in runs}


TEXT = """\
Traceback (most recent call last):
  File "/tmp/snippets/compiler/debugging_late.py", line 70, in lookup
    result = call(rows, index)
             ^^^^^^^^^^^^^^^^^
  File "/tmp/cache/ab/{hash}.py", line 81, in call
    triton_poi_fused_embedding_0.run(arg0_1, buf0)
  File "/lib/python/triton/runtime.py", line 3, in run
    launch()
torch.AcceleratorError: CUDA error: device-side assert triggered
Search for `cudaErrorAssert' somewhere.
/tmp/cache/ab/{hash}.py:22: unknown: block: [0,0,0], thread: [3,0,0] Assertion `index: 0 <= tmp4 < 8` failed.
""".replace("{hash}", "c" + "a7" * 25 + "z")
REPORT = """\
========= COMPUTE-SANITIZER
========= Invalid __global__ write of size 4 bytes
=========     at stray+0x170 in debugging_late.py:40
=========     by thread (0,0,0) in block (0,0,0)
=========     Access at 0x7f1 is out of bounds
=========     and is 481 bytes after the nearest allocation at 0x7f0 of size 32 bytes
no error, and no other tensor has changed
========= ERROR SUMMARY: 1 error
"""


def test_what_a_process_printed_is_read():
    assert raised(TEXT) == ["AcceleratorError: CUDA error: device-side assert triggered"]
    assert line(TEXT) == "triton_poi_fused_embedding_0.run(arg0_1, buf0)"
    assert asserted(TEXT) == "c….py:22: unknown: Assertion `index: 0 <= tmp4 < 8` failed."
    assert (raised(""), line(""), asserted("")) == ([], "no line", "no assertion")
    assert sanitized(REPORT)[:2] == ["Invalid __global__ write of size 4 bytes", "at stray"]
    assert sanitized("========= ERROR SUMMARY: 0 errors\n") == ["ERROR SUMMARY: 0 errors"]


def test_an_error_on_the_way_out_of_another_stands_behind_it():
    first = TEXT.replace("device-side assert triggered", "the first")
    text = f"{first}\nDuring handling of the above exception, another exception occurred:\n\n{TEXT}"
    where = "triton_poi_fused_embedding_0.run(arg0_1, buf0)"
    second = "AcceleratorError: CUDA error: device-side assert triggered"
    assert told(shown("both", text) + "\n") == {
        "both": [("AcceleratorError: CUDA error: the first", where), (second, where)]
    }
