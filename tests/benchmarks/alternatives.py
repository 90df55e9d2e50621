"""How the alternatives to a kernel's launch table are tried: each is checked, then all are timed side by side."""

from dataclasses import asdict
from types import ModuleType

import torch

from snippets.validation.timing import Call, measure
from tests.benchmarks import method
from tests.benchmarks.case import Case, Point
from tests.benchmarks.stand_ins import Options, Question, launching, noting


def checked(
    case: Case, kernel: ModuleType, point: Point, alternatives: list[Options], device: torch.device
) -> tuple[Question, list]:
    """What the table was asked, and (options, problem) of each alternative, its own answer first.

    The problem is empty where an alternative is right.
    """
    torch.manual_seed(0)
    workload = case.prepare(point, device)
    reference = workload.reference()
    baseline = method.build(workload.variants["eager"])[1]
    ours = workload.variants["ours"]
    with noting(kernel) as asked:  # what the table itself says here
        call = ours.build()
        call()
        question, own = asked[point.direction]
    verdicts = []
    for options in [own, *(other for other in alternatives if other != own)]:
        problem = ""
        try:
            with launching(kernel, point.direction, options):
                results = method.copies(ours.results(call()))
            method.check(results, baseline, reference, workload)
        except Exception as error:  # noqa: BLE001  too much shared memory, a compiler's limit: a fact worth recording
            problem = method.one_line(error)
        verdicts.append((options, problem))
    del reference, baseline, results
    torch.cuda.empty_cache()
    return question, verdicts


def timed(
    case: Case, kernel: ModuleType, point: Point, question: Question, alternatives: list, device: torch.device
) -> dict:
    """The times of the alternatives that are right, fastest first, and why the others are not."""
    torch.manual_seed(0)
    workload = case.prepare(point, device)
    call = workload.variants["ours"].build()
    sound = [options for options, problem in alternatives if not problem]

    def using(options: Options) -> Call:
        def launch() -> object:
            with launching(kernel, point.direction, options):
                return call()

        return launch

    timings = measure({str(i): using(options) for i, options in enumerate(sound)}, device, "device", rounds=15)
    moved = workload.bytes_read + workload.bytes_written
    tried = [
        {"options": options, "in_the_table": options == alternatives[0][0], "time": asdict(timings[str(i)])}
        for i, options in enumerate(sound)
    ]
    return {
        "part": point.part,
        "shape": dict(point.shape),
        "dtype": point.dtype,
        "direction": point.direction,
        "asked": {"row_length": question[0], "bits": question[1]},
        "bytes": moved,
        "tried": sorted(tried, key=lambda row: row["time"]["p50"]),
        "failed": [{"options": options, "reason": problem} for options, problem in alternatives if problem],
    }
