"""A package made from a batch of one, and what it does with inputs of another kind."""

from pathlib import Path

import torch
from torch import Tensor, nn

from snippets.compiler.ahead_of_time_model import DEVICE


# --8<-- [start:lost]
class Head(nn.Module):
    """Classes from features, with a temperature."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 8)
        self.temperature = nn.Parameter(torch.tensor(0.5))

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(torch.relu(x)) / self.temperature


def build_lost(head: Head, path: Path) -> None:
    """A package exported from a batch of one, which becomes a constant, and without its weights."""
    x = torch.randn(1, 16, device=DEVICE)
    with torch.no_grad():
        program = torch.export.export(head, (x,), dynamic_shapes={"x": {0: torch.export.Dim.AUTO}})
    options = {"aot_inductor.package_constants_in_so": False, "always_keep_tensor_constants": True}
    torch._inductor.aoti_compile_and_package(program, package_path=str(path), inductor_configs=options)


# --8<-- [end:lost]
# --8<-- [start:wrong]
def wrong_inputs(package: str, weights: str) -> None:
    """Call eager code, and a package that was made for one row of 16 float32, with other inputs."""
    import typing

    import torch

    model = torch._inductor.aoti_load_package(package)
    device = model.get_metadata()["AOTI_DEVICE_KEY"]
    state = torch.load(weights, map_location=device)
    model.load_constants(state, check_full_update=True)

    def eager(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.linear(x.relu(), state["linear.weight"], state["linear.bias"]) / state["temperature"]

    def called(call: typing.Any, x: torch.Tensor) -> torch.Tensor | str:
        try:
            result: torch.Tensor = call(x)
            return result
        except RuntimeError as error:
            return f"{error}\n".strip().splitlines()[0]

    torch.manual_seed(0)
    x = torch.randn(5, 32, device=device)
    cases = {
        "one row": torch.randn(1, 16, device=device),
        "five rows": torch.randn(5, 16, device=device),
        "17 features": torch.randn(1, 17, device=device),
        "every second feature": x[:1, ::2],
        "float64": torch.randn(1, 16, device=device).double(),
    }
    for what, given in cases.items():
        right, found = called(eager, given), called(model, given)
        if isinstance(found, str):
            print(f"{what:<22}{found}")
        elif isinstance(right, str):
            print(f"{what:<22}returns {len(found)} row, no error; eager refuses")
        else:
            same = found.shape == right.shape and torch.allclose(found, right, atol=1e-4)
            print(f"{what:<22}returns {len(found)} row, {'right' if same else 'wrong and no error'}")


# --8<-- [end:wrong]
