"""Results are remembered by keys (tests/remembered.py): that of a mutant's test depends on the file that it changes."""

from tests import remembered
from tests.mutants.mutant import ROOT, load


def test_every_mutant_changes_the_key_of_the_test_that_kills_it():
    """Each is a change that its test sees: a key that does not see it would remember a wrong result."""
    missed = {
        mutant.name: f"{mutant.test_file} does not reach {mutant.file}"
        for mutant in load()
        if ROOT / mutant.file not in remembered.reached_by_test(ROOT, ROOT / mutant.test_file)
    }
    assert not missed
