"""Ten rewrites that let a module compile whole. Run `python -m snippets.patterns.compiler_friendly`."""

import torch

from snippets.patterns.compiler_friendly_control_flow import of_drop, of_loop, of_until
from snippets.patterns.compiler_friendly_pair import Rewrite, outputs
from snippets.patterns.compiler_friendly_shapes import of_cache, of_experts, of_select
from snippets.patterns.compiler_friendly_state import of_state, of_table
from snippets.patterns.compiler_friendly_structures import of_keys, of_positions

TEN = {
    "cache": of_cache,
    "select": of_select,
    "experts": of_experts,
    "until": of_until,
    "loop": of_loop,
    "drop": of_drop,
    "state": of_state,
    "table": of_table,
    "positions": of_positions,
    "keys": of_keys,
}


def rewrite(name: str, rows: int = 8, width: int = 16, device: str = "cpu") -> Rewrite:
    """A pair of the ten, the same at each call."""
    torch.manual_seed(0)
    return TEN[name](rows, width, device)


# --8<-- [start:compare]
def main() -> None:
    """Show that both sides of each pair compute the same."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    for name in TEN:
        both = zip(*outputs(rewrite(name, device=device)), strict=True)
        worst = max(((one - other).abs().max() / one.abs().max()).item() for one, other in both)
        print(f"{name:<10} largest difference: {'none' if worst == 0 else f'{worst:.0e} of the largest value'}")


# --8<-- [end:compare]


if __name__ == "__main__":
    main()
