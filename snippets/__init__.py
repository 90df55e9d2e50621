"""What the pages embed. Each file runs with `python -m snippets.<track>.<name>` from the root."""

import sys
from pathlib import Path

if sys.argv[:1] == ["-m"] and "snippets.environment" not in sys.orig_argv:  # a snippet is about to run: can it?
    from snippets.environment import require_for_snippet

    require_for_snippet(Path(__file__).parents[1])
