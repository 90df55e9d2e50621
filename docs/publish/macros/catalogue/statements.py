"""Statements that hold only while the records bear them out: see docs.publish.macros.claims."""

import contextlib
import itertools
from collections.abc import Sequence
from dataclasses import replace

from docs.publish.errors import PublishError
from docs.publish.macros import claims, points, sweeps
from docs.publish.macros.catalogue.shared import Names, Shared, listed
from docs.publish.macros.claims import EVERY, Side
from docs.publish.macros.shown import Shown, plain
from docs.publish.records.measured import Coordinates


class Statements(Shared):
    """Of a case's points, and of a kernel's sweep."""

    def holds(
        self, statement: str, at: str = "", case: str = "", clock: str = "", by: float | None = None, **sides: Shown
    ) -> str:
        """Nothing, or a stop of the build where the records contradict: see docs.publish.macros.claims.

        Where this machine's own records contradict, the page says so.

        holds("compile, graph faster than eager", at="decode, norms"), holds("a less than b", a=gpu(...), b=wall(...))
        """
        page, case = self._page, case or self._page.case
        ones, relation, others = claims.parsed(statement)
        numbers = {name: plain(side) for name, side in sides.items()}
        rest = [numbers.get(other, other) for other in others]
        places = points.several(self._root, case, at, clock) if at else [Coordinates(case)]
        found = [
            self._verdict(where, numbers.get(one, one), relation, rest, [where.shape or EVERY], by)
            for one, where in itertools.product(ones, places)
        ]
        against = [line for verdict in found for line in verdict.against]
        note = "" if sides else self._not_here(ones, relation, others, places, by)
        stale = any(verdict.stale for verdict in found)
        return page.put_claim(f"holds {statement!r}, at {at!r}", "", against, stale) + note

    def _not_here(
        self, ones: list[str], relation: str, others: list[str], places: list[Coordinates], by: float | None
    ) -> str:
        """A note where what holds on the published machine does not hold on this one, at points that both measured."""
        for one, where, slug in itertools.product(ones, places, self._store.here):
            here = replace(where, machine=slug)
            with contextlib.suppress(PublishError):
                if claims.verdict(self._store, here, one, relation, others, [where.shape or EVERY], by).against:
                    return ' <small class="rp-badge">not so on this machine</small>'
        return ""

    def claim(
        self,
        side: Side | Shown,
        relation: str,
        *others: Side | Shown,
        text: str = "",
        case: str | None = None,
        shape: Names = (),
        margin: float | None = None,
        **where: str,
    ) -> str:
        """Words that hold only while the records bear them out: see docs.publish.macros.claims.

        claim("ours", "faster", "all", case="kernels/softmax", shape="every", direction="backward", text="ahead of all")
        """
        one, *rest = map(plain, (side, *others))
        at = Coordinates(case, **where)
        found = self._verdict(at, one, relation, rest, listed(shape), margin)
        return self._page.put_claim(claims.words(one, relation, rest, at, text), text, found.against, found.stale)

    def tried(
        self,
        kernel: str,
        options: claims.Options,
        relation: str,
        *others: claims.Options,
        direction: str,
        shape: Names,
        dtype: str = "bfloat16",
        margin: float | None = None,
        text: str = "",
    ) -> str:
        """Words that hold only while a kernel's newest sweep bears them out: see docs.publish.macros.claims.

        tried("softmax", {"PARTS": 1}, "slower", direction="forward", shape="1024x131072", text="lost")
        """
        what = claims.words(options, relation, others, Coordinates(kernel, direction=direction), text)
        try:
            sweep, points, stale = sweeps.points(self._root, kernel, direction, listed(shape), dtype)
            found = claims.verdict_of_sweep(sweep, points, stale, options, relation, others, margin)
        except PublishError as error:
            found = claims.Verdict([str(error)])
        return self._page.put_claim(what, text, found.against, found.stale)

    def _verdict(
        self,
        at: Coordinates,
        side: Side,
        relation: str,
        others: Sequence[Side],
        shapes: Sequence[str],
        margin: float | None,
    ) -> claims.Verdict:
        """What cannot be compared is as wrong as what does not hold, and stands in the same list."""
        try:
            return claims.verdict(self._store, at, side, relation, others, shapes, margin)
        except PublishError as error:
            return claims.Verdict([str(error)])
