"""The cases of all areas, and what findings are computed from."""

import functools
import re
from collections.abc import Callable

import torch
from torch.utils._pytree import tree_map

from snippets.validation.assistant.factories import subject_of
from snippets.validation.assistant.graphs import Captured, capture
from snippets.validation.assistant.subject import Subject, other_sizes
from snippets.validation.assistant.trace import traced
from tests.snippets.validation.planted import fusion, kernels, memory, readiness, spellings

Pair = tuple[Callable[[], tuple], Callable[[], tuple]]  # what make a module with a fault, and without, with its inputs

AREAS = (readiness, fusion, memory, kernels, spellings)
CASES: dict[str, Pair] = {name: pair for area in AREAS for name, pair in area.CASES.items()}
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def made(factory) -> Subject:
    """What a factory gives, on the device of the tests."""
    torch.manual_seed(0)
    subject = subject_of(factory(), "a case")
    inputs, named = tree_map(
        lambda one: one.to(DEVICE) if isinstance(one, torch.Tensor) else one, (subject.inputs, subject.named)
    )
    return Subject(subject.module.to(DEVICE), inputs, named)


def evidence(factory, sizes: bool = True):
    """What findings are computed from, with inputs of other sizes or, to be quick, without."""
    subject = made(factory)
    captured = capture(subject, other_sizes(subject) if sizes else ())
    known = "0-dimensional|making fake tensor call"  # np.percentile under NumPy 2.4, quantile under torch 2.11
    assert not captured.error or re.search(known, captured.error), captured.error
    return traced(subject), captured


def recorded(factory):
    """The same without graphs, which take longest: for what shows in the calls of one step alone."""
    return traced(made(factory)), Captured()


@functools.cache
def with_fault(name: str):
    """The evidence of a case's module with its fault, in other sizes where the fault may lie in a graph."""
    return evidence(CASES[name][0], sizes=name in readiness.CASES)


@functools.cache
def twin(name: str):
    """The evidence of the module without it; several cases share one."""
    subject = made(CASES[name][1])
    return of_twin(type(subject.module), tuple(one.shape for one in subject.inputs), name)


_TWINS: dict = {}


def of_twin(kind: type, shapes: tuple, name: str):
    if (kind, shapes) not in _TWINS:
        _TWINS[kind, shapes] = evidence(CASES[name][1])
    return _TWINS[kind, shapes]


def faults(found):
    """The findings that are alarms, and not notes."""
    return [one for one in found if one.weight == "finding"]


def hits(found):
    """The findings whose lines hold the mark of their own kind."""
    return [one for one in faults(found) if any(line.text.endswith(f"# fault: {one.kind}") for line in one.lines)]
