"""All that is wrong with a module, by functions that each find one kind of fault in the records of one step."""

from dataclasses import replace

from .finders.again import repeated
from .finders.attention import causal_masks, explicit_attention, separate_projections
from .finders.bins import compared
from .finders.complex import complex_numbers
from .finders.constants import constants, same_rows, weights_alone
from .finders.decoding import without_cache
from .finders.dense import unrouted
from .finders.derivatives import cycles, one_by_one, saved_again
from .finders.distributions import distributions
from .finders.experts import experts
from .finders.fusion import chains, dropout_after_softmax, gated, large_vocabulary, rotary, written_out
from .finders.kernels import (
    fp32_products,
    odd_sizes,
    optimizers,
    promoted,
    synchronisations,
    upcast_products,
)
from .finders.loops import small_kernels, tables
from .finders.memory import (
    LEAK,
    cached,
    growing,
    kept_graphs,
    layout_copies,
    one_hot_products,
    outsized,
    repeats,
    saved_activations,
    similarities,
)
from .finders.norms import norm_and_activation, written_out_norms
from .finders.pieces import summed, windows
from .finders.readiness import graph_breaks, made_on_host, recompilations, written_inputs
from .finders.recurrence import ONE_INDEX
from .finders.shifts import shifted
from .finders.wasted import (
    copied_weights,
    cut_off,
    dropped_in_eval,
    gathered_first,
    multiplied_out,
    picked_late,
    sorted_to_pick,
)
from .findings import Finding, merged
from .graphs import Captured
from .lines import Line
from .names import words
from .trace import Trace

FINDERS = (
    graph_breaks, recompilations, made_on_host, written_inputs,
    layout_copies, repeats, outsized, one_hot_products, without_cache, growing, cached, kept_graphs, saved_activations,
    synchronisations, upcast_products, fp32_products, odd_sizes, small_kernels, tables, experts, unrouted, optimizers,
    constants, complex_numbers, repeated, promoted, similarities,
    picked_late, sorted_to_pick, gathered_first, copied_weights, cut_off, dropped_in_eval,
    summed, windows, compared, shifted, distributions,
    multiplied_out, weights_alone, same_rows, one_by_one, cycles, saved_again,
    explicit_attention, causal_masks, separate_projections,
    gated, written_out_norms, norm_and_activation, dropout_after_softmax, large_vocabulary, rotary, written_out, chains,
)  # fmt: skip


# --8<-- [start:find]
def find(trace: Trace, captured: Captured) -> list[Finding]:
    """Every finding, the largest gain first, then the notes."""
    found = [finding for finder in FINDERS for finding in finder(trace, captured)]
    if captured.error:  # torch.compile is no way out yet
        once = "once torch.compile can capture the module, it makes"
        found = [replace(one, change=one.change.replace("torch.compile makes", once)) for one in found]
    return worth_a_word(trace, merged(as_one(without_explained(found))))


# --8<-- [end:find]


LITTLE = 1e-3, 1e-2  # of the bytes that the forward moves, and of its kernels
COUNTED = words(  # kinds of findings that say how many bytes or kernels they save; others have another reason
    "attention projections norm norm-activation gated-mlp rotary softmax-dropout written-out chain copy temporary "
    "growing constant again small-kernels odd-size"
)


def worth_a_word(trace: Trace, findings: list[Finding]) -> list[Finding]:
    """Without those that would save next to nothing of what the forward moves, and of its kernels."""
    least = LITTLE[0] * sum(call.moved for call in trace.eager), LITTLE[1] * trace.kernels
    return [one for one in findings if one.kind not in COUNTED or one.saves >= least[0] or one.kernels >= least[1]]


def as_one(findings: list[Finding]) -> list[Finding]:
    """What is said of a module's complex numbers, once."""
    every = [one for one in findings if one.kind == "complex" and one.weight == "note"]
    if len({one.line for one in every}) < 2:
        return findings
    lines = tuple(dict.fromkeys(line for one in every for line in one.lines))
    evidence = (
        f"{len({(one.file, one.number) for one in lines})} lines compute {every[0].evidence.partition('computes ')[2]}"
    )
    joined = replace(every[0], lines=lines, evidence=evidence)
    return [*(one for one in findings if one not in every), joined]


COVERED = {  # by kinds of findings that say all that is to be done at their lines: the kinds that would say less
    "experts": "sync small-kernels graph-break recompilation copy temporary chain growing",
    "decoding": "growing small-kernels recompilation chain",
    "optimizer": "small-kernels chain sync",
    "mask cuda-graph small-kernels growing wasted": "constant",
    "rotary": "complex",
}


def lines_of(findings: list[Finding], kinds: str) -> set[Line]:
    return {line for one in findings if one.kind in words(kinds) and one.weight == "finding" for line in one.lines}


def without_explained(findings: list[Finding]) -> list[Finding]:
    """A chain, a copy or a temporary is not told again where a larger pattern already holds its lines."""
    larger = {
        line
        for one in findings
        if one.kind not in ("chain", "copy", "temporary", "saved", "written-out", "precision")
        and one.weight == "finding"
        for line in one.lines
    }
    covered = [(words(those), lines_of(findings, kinds)) for kinds, those in COVERED.items()]
    gated_lines = {line for one in findings if one.kind == "gated-mlp" for line in one.lines}
    attention_lines = {line for one in findings if one.kind == "attention" for line in one.lines}
    placed = {line for one in findings if ONE_INDEX in one.change for line in one.lines}
    leaking = {line for one in findings if one.title == LEAK for line in one.lines}
    rewritten_lines = {line for one in findings if one.kind == "written-out" for line in one.lines}

    def explained(one: Finding) -> bool:
        if any(one.kind in kinds and set(one.lines) & held for kinds, held in covered):
            return True
        if one.kind == "cuda-graph" and one.line in placed:  # what the loop makes of a list, turn by turn
            return True
        if one.weight == "note" and one.kind == "complex" and one.line in lines_of(findings, "complex"):
            return True
        if one.kind == "recompilation" and set(one.lines) <= leaking:  # the list is longer at each call
            return True
        if one.kind == "chain" and set(one.lines) <= rewritten_lines:
            return True
        if one.kind == "written-out":
            return bool(set(one.lines) & (gated_lines | attention_lines))
        own = [line for line in one.lines if line not in larger]
        return (
            one.kind in ("chain", "temporary") and 2 * len(own) < len(one.lines) + 1 and bool(set(one.lines) & larger)
        )

    return [one for one in findings if not explained(one)]
