"""What stops a build: one line that says what was expected and what came."""

import difflib
from collections.abc import Iterable


class PublishError(ValueError):
    """Something that may not be published. Its message is one line."""


def unknown(what: str, got: object, known: Iterable[object]) -> PublishError:
    """The error for a name that is not known: those that are (of many the closest), and the one that may be meant."""
    names = list(dict.fromkeys(map(str, known)))
    close = difflib.get_close_matches(str(got), names, n=3, cutoff=0.5)
    shown = names if len(names) <= 8 else close or names[:8]
    more = f" and {len(names) - len(shown)} more" if len(names) > len(shown) else ""
    expected = f"one of {', '.join(shown)}{more}" if names else "nothing, since there is none"
    meant = f"; did you mean {close[0]}?" if close else ""
    return PublishError(f"{what}: expected {expected}; got {str(got)!r}{meant}")
