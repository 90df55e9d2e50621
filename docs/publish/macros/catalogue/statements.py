"""Statements that hold only while the records bear them out: see docs.publish.macros.claims."""

import contextlib
import itertools
from collections.abc import Sequence
from dataclasses import replace

from docs.publish.errors import PublishError
from docs.publish.evidence import Shown, plain
from docs.publish.macros import claims, points, sweeps
from docs.publish.macros.catalogue.shared import Names, Shared, listed
from docs.publish.macros.claims import Side
from docs.publish.records.measured import Coordinates


class Statements(Shared):
    """Of a case's points, and of a kernel's sweep."""

    def holds(
        self,
        statement: str,
        at: str = "",
        case: str = "",
        clock: str = "",
        by: float | None = None,
        machine: str = "",
        **sides: Shown,
    ) -> str:
        """Nothing, or a stop of the build where the records contradict: see docs.publish.macros.claims.

        Where this machine's own records contradict, the page says so.

        holds("compile, graph faster than eager", at="decode, norms"), holds("a less than b", a=gpu(...), b=wall(...))
        """
        page, case = self._page, case or self._page.case
        ones, relation, others = claims.parsed(statement)
        if unnamed := sides.keys() - {*ones, *others}:
            raise PublishError(f"holds: expected sides that {statement!r} names, got {', '.join(sorted(unnamed))}")
        numbers = {name: plain(side) for name, side in sides.items()}
        rest = [numbers.get(other, other) for other in others]
        named = [points.at(self._root, case, name.strip(), clock) for name in at.split(",") if at]
        places = [replace(place, machine=machine or None) for place in named or [Coordinates(case)]]
        found = [
            self._verdict(where, numbers.get(one, one), relation, rest, by)
            for one, where in itertools.product(ones, places)
        ]
        note = "" if sides or machine else self._not_here(ones, relation, others, places, by)
        return page.put_statement(f"holds {statement!r}, at {at!r}", found) + note

    def _not_here(
        self, ones: list[str], relation: str, others: list[str], places: list[Coordinates], by: float | None
    ) -> str:
        """A note where what holds on the published machine does not hold on this one, at points that both measured."""
        for one, where, slug in itertools.product(ones, places, self._store.here):
            here = replace(where, machine=slug)
            with contextlib.suppress(PublishError):
                if claims.verdict(self._store, here, one, relation, others, by).against:
                    return ' <small class="rp-badge">not so on this machine</small>'
        return ""

    def tried(
        self,
        kernel: str,
        options: claims.Options,
        relation: str,
        *others: claims.Options,
        direction: str,
        shape: Names,
        margin: float | None = None,
    ) -> str:
        """As `holds`, of what a kernel's newest sweep tried: see docs.publish.macros.claims.

        tried("softmax", {"PARTS": 1}, "slower", direction="forward", shape="1024x131072")
        """
        try:
            sweep, points, stale = sweeps.points(self._root, kernel, direction, listed(shape))
            found = claims.verdict_of_sweep(sweep, points, stale, options, relation, others, margin)
        except PublishError as error:
            found = claims.Verdict([str(error)])
        return self._page.put_statement(f"tried {options} {relation}, {kernel} {direction}", [found])

    def _verdict(
        self, at: Coordinates, side: Side, relation: str, others: Sequence[Side], margin: float | None
    ) -> claims.Verdict:
        """What cannot be compared is as wrong as what does not hold, and stands in the same list."""
        try:
            return claims.verdict(self._store, at, side, relation, others, margin)
        except PublishError as error:
            return claims.Verdict([str(error)])
