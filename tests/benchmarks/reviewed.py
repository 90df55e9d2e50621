"""The version of the method: how variants are built, checked and timed (functions.METHOD and all that it reaches).

A row names the version that it was measured by, and a row of another version is stale. The method changes rarely and
every row depends on it, so a person decides what a change means: a test fails until the new hash stands here, with the
same number where every row would come out as before, and with the next number where not.
"""

from tests.benchmarks.functions import Code

REVIEWED = {
    "dbba99066a5b93af": 1,
    "e86490093533b442": 1,
    "fe2299f6f37a413b": 2,
    "ddbfdd94237288d9": 3,
    "1796cb284b62e6e5": 3,  # half as many samples
    "5fa279059a35e141": 3,  # compared in parts; calls of 0.2 s and more get five samples
    "3526b0c9d98a9abb": 3,  # one that waits for the GPU no longer makes the spins of all others long
}  # by the hash of the method's functions
VERSION = max(REVIEWED.values())
UNREVIEWED = 0  # what such code measures is stale, and is not published


def version(code: Code) -> int:
    """The version of the method in some code. Raises as `Code.measured`."""
    return REVIEWED.get(code.method().hash, UNREVIEWED)
