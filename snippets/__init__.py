"""What the pages embed. Each file runs with `python -m snippets.<track>.<name>` from the root."""

import sys
from pathlib import Path

if sys.argv[:1] == ["-m"]:  # a snippet is about to run, not to be imported: first see whether it can
    from tests.benchmarks.environment import require_for_snippet

    require_for_snippet(Path(__file__).parents[1])
