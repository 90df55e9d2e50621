"""What is refused, in these words, and what is not."""

import pytest

from snippets.compiler.ahead_of_time_export_refused import REFUSED, words

WORDS = {
    "branch": "GuardOnDataDependentSymNode: Could not guard on data-dependent expression Eq(u0, 1)",
    "count": "GuardOnDataDependentSymNode: Could not guard on data-dependent expression u0 > 0",
    "fixed": "UserError: You marked batch as dynamic but your code specialized it to be a constant (4)",
    "one": "ValueError: Received user-specified dim hint Dim.DYNAMIC(min=None, max=None), but export 0/1 specialized",
    "pairs": "UserError: Not all values of batch = L['x'].size()[0] in the specified range batch <= 64 satisfy",
    "equal": "UserError: The values of b = L['y'].size()[0] and a = L['x'].size()[0] must always be equal",
    "container": "ValueError: Unsupported input type <class 'Sample'>",
    "numpy": "RuntimeError: .numpy() is not supported for tensor subclasses",
    "operator": "RuntimeError: There was no fake impl registered for <CustomOpDef(ridgepoint_export::bare)>",
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_is_refused_in_these_words_and_the_mend_is_not(name):
    before, after = REFUSED[name]
    assert words(before).startswith(WORDS[name])
    assert words(after) == "exported"
