"""A mutant: one line of the project made wrong, and the test that must fail because of it.

The TOML files beside this one list them: a file for each file of kernels/, with the same name, and one for each other
area of the project. The interpreter must not read or write outside of a tensor because of a fault in a kernel: what it
does then is no failed assertion.
"""

import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDER = Path("tests/mutants")
KINDS = ("sign", "mask", "scale", "edge", "synchronisation", "stride", "eps", "unit", "badge", "rule")


@dataclass(frozen=True)
class Mutant:
    """One entry.

    Attributes:
        name: its table's name in the TOML file.
        area: the TOML file's name: "rms_norm", "runner".
        kind: of KINDS; "rule" is a rule that no longer holds, which none of the others names.
        fault: what is wrong then, in words.
        file: from the root.
        old: text that stands in the file exactly once.
        new: what is planted in the place of `old`.
        test: what must fail: a test file from the root, or the id of a test or a class in it.
        needs: "gpu" where only a GPU shows the fault; "" otherwise.
    """

    name: str
    area: str
    kind: str
    fault: str
    file: str
    old: str
    new: str
    test: str
    needs: str = ""

    @property
    def test_file(self) -> str:
        return self.test.partition("::")[0]

    def plant(self, tree: Path) -> None:
        """Write the fault into a copy of the tree."""
        path = tree / self.file
        path.write_text(path.read_text().replace(self.old, self.new))

    def trouble(self, root: Path) -> str:
        """Why this entry does not fit the tree; "" where it does."""
        if not (root / self.file).is_file():
            return f"stale entry: there is no {self.file}"
        if (found := (root / self.file).read_text().count(self.old)) != 1:
            return f"stale entry: expected the old text once in {self.file}, found it {found} times"
        if not (root / self.test_file).is_file():
            return f"stale entry: there is no {self.test_file}"
        if self.old == self.new:
            return "the new text is the old one"
        return "" if self.kind in KINDS else f"expected a kind of {', '.join(KINDS)}, got {self.kind}"


def load(root: Path = ROOT) -> list[Mutant]:
    """The entries of all TOML files, in their order.

    Raises:
        TypeError: an entry lacks a field, or has one that there is not.
        ValueError: two files have an entry of the same name.
    """
    mutants = [
        Mutant(name=name, area=path.stem, **entry)
        for path in sorted((root / FOLDER).glob("*.toml"))
        for name, entry in tomllib.loads(path.read_text()).items()
    ]
    names = [mutant.name for mutant in mutants]
    if twice := {name for name in names if names.count(name) > 1}:
        raise ValueError(f"expected every name once, got twice: {', '.join(sorted(twice))}")
    return mutants
