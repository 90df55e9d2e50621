"""A process that serves finds nothing of ours, wherever it starts."""

import subprocess
import sys

from snippets.compiler.ahead_of_time_serve import alone, reports_no_source
from snippets.compiler.ahead_of_time_starts import ROOT


def test_alone_it_imports_nothing_of_ours_not_even_from_the_root():
    done = subprocess.run(alone(reports_no_source), cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "nothing of ours\n"
    command = [sys.executable, "-c", alone(reports_no_source)[3]]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "snippets\n"  # and it would say so
