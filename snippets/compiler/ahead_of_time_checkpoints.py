"""Checkpoints of compiled models: where `_orig_mod.` comes from, what it breaks, and three ways around it.

Run `python -m snippets.compiler.ahead_of_time_checkpoints`. Nothing is compiled: that happens in the first call.
"""

import io
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import Tensor, nn


# --8<-- [start:model]
def make_model() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))


# --8<-- [end:model]


# --8<-- [start:symptom]
def symptom() -> str:
    """What a model says to the checkpoint of its compiled twin."""
    state = torch.compile(make_model()).state_dict()
    try:
        make_model().load_state_dict(state)
    except RuntimeError as error:
        return "\n".join(line.strip() for line in str(error).splitlines())
    return "loaded"


def silenced() -> str:
    """The same with `strict=False`, which looks like a remedy."""
    model = make_model()
    before = [value.clone() for value in model.state_dict().values()]
    found = model.load_state_dict(torch.compile(make_model()).state_dict(), strict=False)
    kept = all(torch.equal(*both) for both in zip(before, model.state_dict().values(), strict=True))
    weights = "as they were" if kept else "new"
    return f"missing {len(found.missing_keys)} of {len(before)}, no error; the weights are {weights}"


# --8<-- [end:symptom]


# --8<-- [start:mends]
def in_place(model: nn.Module) -> nn.Module:
    """Compile the module itself: its `forward` is compiled, and its names stay."""
    model.compile()
    return model


def state_to_save(model: nn.Module) -> dict[str, Tensor]:
    """What to save, whether the model is a compiled one or not: they share their tensors."""
    return getattr(model, "_orig_mod", model).state_dict()


def mended(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """An old checkpoint without the prefix, wherever it stands: parts of a model may be compiled, too."""
    return {name.replace("_orig_mod.", ""): value for name, value in state.items()}


# --8<-- [end:mends]


# --8<-- [start:loading]
def loaded(make: Callable[[], nn.Module], path: str | Path) -> nn.Module:
    """A model whose weights are the file's own tensors, mapped into memory."""
    with torch.device("meta"):
        model = make()
    model.load_state_dict(torch.load(path, mmap=True), assign=True)
    return model


# --8<-- [end:loading]


def names(model: nn.Module) -> str:
    return " ".join(model.state_dict())


def pickled() -> str:
    """Save and load a whole compiled model, not only its state."""
    file = io.BytesIO()
    torch.save(torch.compile(make_model()), file)
    file.seek(0)
    return type(torch.load(file, weights_only=False)).__name__


def main() -> None:
    part = make_model()
    part[0] = torch.compile(part[0])  # type: ignore[call-overload]
    print("==== names")
    for what, model in {
        "model": make_model(),
        "torch.compile(model)": torch.compile(make_model()),
        "model.compile()": in_place(make_model()),
        "model[0] compiled": part,
    }.items():
        print(f"{what:<22}{names(model)}")
    print("==== symptom")
    print(symptom())
    print(f"strict=False: {silenced()}")
    print("==== whole")
    print(f"torch.save(compiled) gives back: {pickled()}")


if __name__ == "__main__":
    main()
