"""A package without weights: what it needs, and what load_constants takes."""

import re
import signal
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from snippets.compiler.ahead_of_time_model import DEVICE, Served
from snippets.compiler.ahead_of_time_serve import run_alone
from snippets.compiler.ahead_of_time_wrong import Head


# --8<-- [start:before]
def too_early(package: str) -> None:
    """Call a package without weights before it has any."""
    import torch

    model = torch._inductor.aoti_load_package(package)
    model(torch.ones(1, 16, device=model.get_metadata()["AOTI_DEVICE_KEY"]))


# --8<-- [end:before]
def weights_apart(lost: Path, served: Path, first: Head, model: Served, saved: Path) -> None:
    """What is in the packages, and what `load_constants` takes."""
    x = torch.randn(1, 16, device=DEVICE)
    package = torch._inductor.aoti_load_package(str(lost))
    print(f"needs: {', '.join(sorted(package.get_constant_fqns()))}")
    # --8<-- [start:swap]
    for head in (first, second := Head().to(DEVICE)):
        package.load_constants(head.state_dict(), check_full_update=True)
        torch.testing.assert_close(package(x), head(x))
    # --8<-- [end:swap]
    print("two checkpoints loaded, one after the other: each gives the results of its model")
    state = second.state_dict()
    for what, given in {
        "one is missing": {name: value for name, value in state.items() if name != "linear.bias"},
        "a name too many": {**state, "linear.other": state["linear.bias"]},
    }.items():
        print(f"{what:<22}{constants_error(package, given)}")
    whole = torch._inductor.aoti_load_package(str(served))
    baked = sorted(set(model.state_dict()) - set(whole.get_constant_fqns()))
    print(f"the served package has all but {', '.join(baked)}")
    print(f"{'all of its weights':<22}{constants_error(whole, model.state_dict())}")
    early = run_alone(too_early, str(lost), folder=saved)
    ended = signal.Signals(-early.returncode).name if early.returncode < 0 else f"status {early.returncode}"
    print(f"{'called without any':<22}{ended}")


def constants_error(package: Any, given: dict[str, Tensor]) -> str:
    try:
        package.load_constants(given, check_full_update=True)
    except RuntimeError as error:
        said = re.sub(r".* (API call failed) at .*", r"\1", str(error).splitlines()[0])
        return f"{type(error).__name__}: {said}"
    return "loaded"
