"""What a page can call: each macro is a method, in the file that its kind names."""

from typing import Any

from docs.publish.macros import entries
from docs.publish.macros.catalogue.figures import Figures
from docs.publish.macros.catalogue.shared import numbers_of
from docs.publish.macros.catalogue.statements import Statements
from docs.publish.macros.catalogue.texts import Texts
from docs.publish.macros.catalogue.values import Values


class Macros(Values, Statements, Figures, Texts):
    """What a page can call. Arguments by name, apart from the first few."""

    def all(self) -> dict[str, Any]:
        """What a page can use, by name: the macros, with what its front matter names for them, and its rows."""
        said = self._page.said
        return {**entries.known(self._macros(), said, NUMBERS), "rows": said.get("rows", {})}


NUMBERS = numbers_of(Macros)
