"""What torch.export captures, what it refuses, and what it makes a constant without a word.

Run `python -m snippets.compiler.ahead_of_time_export`. Nothing is compiled.
"""

import json
import random
import tempfile
import time
import warnings
import zipfile
from pathlib import Path

import torch
from torch import Tensor, nn

from snippets.compiler.ahead_of_time_export_batch import ASKED, Asked, X, became, first, sizes
from snippets.compiler.ahead_of_time_export_refused import BATCH, REFUSED, Calls, twice, words
from snippets.compiler.ahead_of_time_export_saved import CHANGES, doctored, load, loaded_elsewhere
from snippets.compiler.ahead_of_time_export_silent import Buffer, Counter, Dropped, left_behind, three_calls
from snippets.compiler.ahead_of_time_export_sizes import AnyHeads, Heads
from snippets.compiler.ahead_of_time_export_values import Branch, NumPy


# --8<-- [start:modes]
class Drawn(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * random.random()


class Timed(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * time.time()


class Configured(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * json.loads('{"scale": 2}')["scale"]


class Tried(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        try:
            return x.view(3, 3)
        except RuntimeError:
            return x


MODES = {
    "random.random()": Drawn(),
    "time.time()": Timed(),
    "json.loads(text)": Configured(),
    "try: x.view(3, 3)": Tried(),
    "x.numpy()": NumPy(),
    "if x.sum() > 0": Branch(),
}
# --8<-- [end:modes]


def show() -> None:
    print("==== graph")
    program = first()
    print(program.graph_module.code.strip())
    print(f"\n{program.graph_signature.user_inputs[0]}: batch {sizes(program)[0]}")

    print("==== batch")
    print(f"{'asked for, in the first dimension':<34}{'of 4 rows':>12}{'of 1 row':>12}{'4 in the code':>16}")
    for asked, (shapes, prepared) in ASKED.items():
        plain = [became(AnyHeads(), prepared(x), shapes) for x in (X, X[:1])]
        print(f"{asked:<34}{plain[0]:>12}{plain[1]:>12}{became(Heads(), prepared(X), shapes):>16}")

    print("==== refused")
    for name, (before, after) in REFUSED.items():
        print(f"{name:<10} {words(before)}")
        assert words(after) == "exported", name

    print("==== modes")
    for what, module in MODES.items():
        print(what)
        for strict in (False, True):
            print(f"    strict={strict!s:<6} {words(Asked(module, strict=strict))}")

    print("==== silent")
    torch.manual_seed(0)
    random.seed(0)
    print(f"{'three calls':<22}{'the module':<20} its program")
    for what, silent in {
        "self.calls += 1": Counter(),
        "the same, a buffer": Buffer(),
        "random.random()": Drawn(),
        "dropout, not .eval()": Dropped(),
        "dropout, .eval()": Dropped().eval(),
    }.items():
        print(f"{what:<22}{three_calls(silent)}")
    print(f"self.last = x leaves behind: {left_behind()}")

    print("==== elsewhere")
    with tempfile.TemporaryDirectory() as folder:
        print(f"{'operations of PyTorch':<24} {loaded_elsewhere(first(), Path(folder))}")
        calls = Asked(Calls(twice), shapes=BATCH).export()
        print(f"{'an operator of ours':<24} {loaded_elsewhere(calls, Path(folder))}")
        print("==== versions")
        torch.export.save(first(), path := Path(folder) / "program.pt2")
        text = json.loads(zipfile.ZipFile(path).read("program/models/model.json"))
        print(f"written as schema {text['schema_version']['major']}.{text['schema_version']['minor']}")
        for what, change in CHANGES.items():
            print(f"{what:<24} {load(doctored(path, change))}")


def main() -> None:
    warnings.simplefilter("ignore")
    show()


if __name__ == "__main__":
    main()
