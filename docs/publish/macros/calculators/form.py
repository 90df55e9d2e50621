"""What all calculators share: a form of choices and numbers, a line for each result, and the data to compute with.

The form is hidden until docs/theme/scripts/calculators/form.js shows it: without scripts the page has its words alone.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from docs.publish import markup


@dataclass(frozen=True)
class Field:
    """A choice among some values, each with its text; or a number, where there are no choices.

    Attributes:
        value: at the start; none is the first choice, or an empty field.
        least, most, step: of a number; 1 is the usual step, "any" allows fractions.
        when: another field and its value: the form asks only then.
    """

    name: str
    label: str
    choices: Mapping[str, str] = field(default_factory=dict)
    value: str | float | None = None
    least: float = 1
    most: float | None = None
    step: str | None = None
    required: bool = True
    when: tuple[str, str] | None = None


def render(name: str, fields: Iterable[Field], rows: Mapping[str, str], data: Mapping[str, Any], source: str) -> str:
    """A form as HTML.

    Args:
        name: of its script.
        rows: the labels of the results, by the names that the script gives them.
        source: HTML that says where the data comes from.
    """
    packed = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
    template = markup.TEMPLATES.get_template("calculator.html.j2")
    return template.render(name=name, fields=fields, rows=rows, data=packed, source=source)
