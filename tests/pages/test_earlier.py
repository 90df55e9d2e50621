"""What rows of before functions were hashed have measured is what their commits hold."""

from docs.publish.records import earlier
from docs.publish.records.store import Store
from tests.benchmarks.functions import Code
from tests.benchmarks.reviewed import UNREVIEWED, VERSION

READ = "docs/pages", "snippets/**/*.py", "tests/benchmarks"  # through docs.publish


def test_a_hash_that_nobody_knows_is_of_an_unreviewed_method():
    assert (earlier.code("0" * 16), earlier.version("0" * 16)) == ("0" * 16, UNREVIEWED)


def test_published_rows_are_read_through_it(published: Store):
    """Those of the method as it is and of a case that reaches the same code as now, and only those, are not stale."""
    now = Code.of()
    rows = published.select()
    sources = {row.row.sources.code: row.row.sources for row in rows}
    same = {
        code
        for code, each in sources.items()
        if each.version == VERSION and each.files[-1] in now.texts and now.measured(each.files[-1]).hash == code
    }
    assert {row.row.sources.code for row in rows if not row.stale} == same
