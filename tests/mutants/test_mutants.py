"""The list of mutants fits the tree."""

from collections import Counter

from tests.mutants.mutant import KINDS, ROOT, load


def test_every_entry_fits_the_tree():
    assert not {mutant.name: mutant.trouble(ROOT) for mutant in load() if mutant.trouble(ROOT)}


def test_every_kind_has_an_entry_that_needs_no_gpu():
    assert {mutant.kind for mutant in load() if not mutant.needs} == set(KINDS)


def test_every_kernel_has_a_file_of_three_entries_that_need_no_gpu():
    kernels = [path.stem for path in (ROOT / "kernels").glob("[!_]*.py")]
    own = Counter(mutant.area for mutant in load() if mutant.file == f"kernels/{mutant.area}.py" and not mutant.needs)
    few = [f"tests/mutants/{name}.toml has {own[name]}" for name in kernels if own[name] < 3]
    assert not few, f"expected three faults at least of each kernel: {few}"
    strays = [
        mutant.name for mutant in load() if mutant.file in (f"kernels/{k}.py" for k in kernels if k != mutant.area)
    ]
    assert not strays, f"expected the faults of a kernel in its file, got elsewhere: {strays}"
