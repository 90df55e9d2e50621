"""What programs printed, for pages to show: `python -m tests.benchmarks.captures [NAME ...]`. See `--help`.

A capture is the output of `python -m MODULE`, or one section of it: from a line "==== SECTION" to the next such line.
It is stored with its provenance as docs/measurements/captures/NAME.json, and a test runs it again.
"""

import argparse
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import torch

from tests.benchmarks import machine
from tests.benchmarks.runner import write_whole
from tests.benchmarks.source import ROOT, digest_texts

SCHEMA = 1
PUBLISHED = ROOT / "docs" / "measurements" / "captures"
SECONDS = 1800  # for one script, on a slow machine that is busy
WIDTH = 112  # columns that a page shows without scrolling sideways
ENVIRONMENT = {  # code is generated anew, not found in a cache
    "cpu": {  # the same text on every machine, however many cores and whatever vector instructions it has
        "ATEN_CPU_CAPABILITY": "default",  # none: what is asked for and not there ends the process
        "CUDA_VISIBLE_DEVICES": "",
        "ONEDNN_MAX_CPU_ISA": "AVX2",  # with AMX, attention in bf16 wants the vectors that are turned off
        "OMP_NUM_THREADS": "2",  # by which Inductor judges which loops to share out
        "OMP_WAIT_POLICY": "passive",  # beside other work, threads that spin double a script's time
        "TORCHINDUCTOR_AUTOGRAD_CACHE": "0",
        "TORCHINDUCTOR_CPP_DYNAMIC_THREADS": "1",  # else it writes the number, unless that is the number of cores
        "TORCHINDUCTOR_FX_GRAPH_CACHE": "0",
        "TORCHINDUCTOR_VEC_ISA_OK": "0",  # vectors are turned off: which of them work need not be tried
        "TRITON_INTERPRET": "1",
    },
    "cuda": {"TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1"},
}
DECIDES = re.compile(r"(?!.*_CACHE_DIR$)(ATEN|MKL|OMP|ONEDNN|PYTORCH|TORCH|TRITON)")  # variables: never inherited
MEASURED = r"\d[\d.,]*(e[+-]?\d+)? ?(ns|us|µs|ms|s|x|%|[GT]B/s|[GT]FLOP/s)(?![\w/])"


@dataclass(frozen=True)
class Output:
    """What `python -m module` prints.

    Attributes:
        name: path of its file below docs/measurements/captures, without the ending.
        module: the script, as `python -m` takes it. Its file is the capture's source.
        section: the part under the line "==== section"; everything if empty.
        language: for highlighting: "text", "python", "cpp" or "json".
        device: "cpu" (a GPU is hidden from the script) or "cuda".
        also: further sources, of what the script imports to show it.
        verbatim: for programs to read: no line is broken and nothing is shortened but paths.
        varies: regular expression of what differs from run to run, beside `MEASURED` quantities with their unit.
        ranked: its lines are in the order of what was measured, and may change places.
    """

    name: str
    module: str
    section: str = ""
    language: str = "text"
    device: str = "cpu"
    varies: str = r"(?!)"
    also: tuple[str, ...] = ()
    verbatim: bool = False
    ranked: bool = False

    @property
    def source(self) -> str:
        return self.module.replace(".", "/") + ".py"

    @property
    def sources(self) -> list[str]:
        return [self.source, *self.also]

    def comparable(self, content: str) -> str:
        """The content without what may differ from run to run: the rest must be equal."""
        text = re.sub(f"{MEASURED}|{self.varies}", "#", content)
        if self.ranked:
            text = "\n".join(sorted(text.splitlines()))
        return re.sub(r"\s*#\s*", " # ", text)


_AHEAD = "snippets.compiler.ahead_of_time"
_ASSISTANT = "snippets.validation.assistant"
_PARTS = ("capture", "findings", "module", "patterns", "profile", "report", "trace", "trials", "validate")
_AREAS = ("fusion", "held_out", "kernels", "memory", "readiness", "seen", "spellings")
_BREAKS = "snippets.compiler.graph_breaks"
_COMPILER = "snippets.compiler.what_compile_does"
_COUNTED = "snippets.patterns.compiler_friendly_counts"
_DEBUGGING = "snippets.compiler.debugging"
_FIRST = "snippets.kernels.first_kernel"
_FINDINGS = "snippets.validation.compiled_code_findings"
_FUSION = "snippets.compiler.fusion"
_FUSED = "snippets.patterns.fusion"
_INTENSITY = "snippets.patterns.compute_intensity"
_INDUCTOR = "snippets.compiler.inductor_code"
_MEMORY = "snippets.validation.memory"
_MODES = "snippets.compiler.modes"
_MIXED = "snippets.patterns.mixed_precision"
_MODULE = "snippets.examples.first_optimized_module"
_LLAMA = "snippets.examples.llama"
_PADDING = "snippets.patterns.attention_padding"
_CANDIDATES = ("snippets/patterns/fusion_candidates.py",)
_PADDED = ("snippets/patterns/attention_padding.py",)
_PITFALLS = "snippets.reference.common_pitfalls"
_PROFILING = "snippets.validation.profiling"
_READING = "snippets.compiler.reading_the_output"
_RECOMPILATION = "snippets.compiler.recompilation"
_SECONDS = "snippets.compiler.compile_time"
_TRAINING = "snippets.compiler.training"
_TIMING = "snippets.validation.timing"
_YOURS = "snippets.validation.timing_your_op"


def _inductor(function: str, direction: str) -> Iterator[Output]:
    """What Inductor made of one graph on a GPU; docs/publish/compiled/inductor.py compiles the kernels again."""
    name = f"compiler/inductor-code/{function.replace('_', '-')}-{direction}"
    also = ("snippets/compiler/what_compile_does.py",)
    for part, language in (("graph", "python"), ("kernels", "python"), ("launches", "json"), ("counts", "json")):
        yield Output(
            f"{name}-{part}",
            _INDUCTOR,
            f"{function} {direction}, {part}",
            language,
            "cuda",
            varies=r'"binary": .*' if part == "launches" else r"(?!)",  # Inductor chooses by measuring
            also=also,
            verbatim=part != "graph",
        )


_KINDS = (
    "branch", "item", "logging", "library", "mutation", "context",
    "generator", "autograd", "hooks", "numpy", "try", "third-party",
)  # fmt: skip
_SYMPTOMS = (
    "skipped", "repeated", "caught", "late hook", "no fake",
    "alias", "unguarded", "disabled", "reordered", "seed",
)  # fmt: skip


_IN_USE = (
    "thrown away", "first call", "other method", "prefix", "late mark",
    "in a loop", "inference", "dropout", "mask", "strides",
)  # fmt: skip


def _breaks() -> Iterator[Output]:
    """What the log of graph breaks says, and how many there are."""
    line = r"\.py:\d+|\.py\", line \d+"  # of our source: it moves with every comment
    found = ("snippets/compiler/graph_breaks.py",)
    for section in ("places", "loop", "explain", "model", "exercise one", "exercise two"):
        yield Output(f"compiler/graph-breaks/{section.replace(' ', '-')}", _BREAKS, section, varies=line)
    for section in ("counts", "causes", *_KINDS):
        yield Output(f"compiler/graph-breaks/{section}", f"{_BREAKS}_mended", section, varies=line, also=found)
    for section in _SYMPTOMS:
        name = f"reference/common-pitfalls/{section.replace(' ', '-')}"
        yield Output(name, _PITFALLS, section, varies=line, also=found)
    for section in _IN_USE:
        name = f"reference/common-pitfalls/{section.replace(' ', '-')}"
        also = (*found, f"{_PITFALLS.replace('.', '/')}.py")
        yield Output(name, f"{_PITFALLS}_in_use", section, varies=line, also=also)


def _recompilation() -> Iterator[Output]:
    """How many graphs are compiled, and why; and the diary, whose counts are those of a GPU on a CPU, too."""
    for section in ("specialised", "mends", "limit", "stances", "marked", "unbacked"):
        yield Output(f"compiler/recompilation/{section}", _RECOMPILATION, section)
    diary = f"{_RECOMPILATION}_diary"
    yield Output("compiler/recompilation/lengths", diary, "lengths")
    yield Output("compiler/recompilation/diary", diary, "diary", device="cuda")
    yield Output("compiler/recompilation/diary-cpu", diary, "diary")
    yield Output("compiler/recompilation/exercises", diary, "exercises", device="cuda")


def _friendly() -> Iterator[Output]:
    """What becomes of ten functions over twelve calls, before and after their rewrites."""
    also = ("compiler/graph_breaks", "compiler/recompilation", "patterns/compiler_friendly")
    for section in ("counts", "reasons", "limit", "alone", "exercise"):
        name = f"patterns/compiler-friendly/{section}"
        yield Output(name, _COUNTED, section, also=tuple(f"snippets/{file}.py" for file in also))


def _layout() -> Iterator[Output]:
    """Copies, strides and what working in place breaks."""
    also = ("compiler/inductor_code", "compiler/what_compile_does", "validation/memory")
    for section in ("shapes", "heads", "layouts", "in place", "refused", "silent", "growing", "kept"):
        name = f"patterns/memory/{section.replace(' ', '-')}"
        yield Output(name, "snippets.patterns.memory", section, also=tuple(f"snippets/{file}.py" for file in also))


def _debugging() -> Iterator[Output]:
    """What the procedure of the page finds, and the error messages of its table."""
    files = [f"{_DEBUGGING.replace('.', '/')}{part}.py" for part in ("", "_bugs", "_crash", "_errors")]
    varies = r"line \d+|\S*Blas\.cpp:\d+|\d+ of 64|held against \w+ +"  # sources, and memory that nobody wrote
    symptoms = (
        "tolerances", "precision", "minifier", "nan", "nan bisected", "index", "slow", "random", "growth", "crash",
    )  # fmt: skip
    bugs = ("healthy", "shape", "mutation", "decomposition", "dtype", "stride", "pass", "lowering", "memory")
    errors = (
        "while Dynamo follows the code", "while it is compiled", "while it runs", "in the backward", "on this machine",
    )  # fmt: skip
    for part, sections, also in (
        ("symptoms", symptoms, files), ("bugs", bugs, files[:1]), ("errors", errors, files[:2]),
    ):  # fmt: skip
        for section in sections:
            name = "unwritten" if section == "memory" else section.replace(" ", "-").lower()
            yield Output(f"compiler/debugging/{name}", f"{_DEBUGGING}_{part}", section, varies=varies, also=tuple(also))
    yield Output("compiler/debugging/at-once", f"{_DEBUGGING}_late", "at once")
    where = r"\w+\.\w+:\d+|0x\w+|tmp\d+|\d+ bytes"  # lines of PyTorch's sources and of generated code, addresses
    for section in (
        "late", "whole message", "asserts", "generated", "unasked", "dead", "too far", "stack", "graph", "memory",
    ):  # fmt: skip
        name = f"compiler/debugging/{section.replace(' ', '-')}"
        yield Output(name, f"{_DEBUGGING}_late", section, device="cuda", varies=where)


def _fusion() -> Iterator[Output]:
    """Inductor's plans for the functions of the page on fusion, and what some of them become on a GPU."""
    also = (_INDUCTOR.replace(".", "/") + ".py",)
    for section in ("steps", "eager", "asked", "opaque", "exercise", "window", "together"):
        yield Output(f"compiler/fusion/{section}", _FUSION, section, also=also)
    for section in ("steps", "asked"):
        yield Output(f"compiler/fusion/{section}-gpu", _FUSION, section, device="cuda", also=also)
    yield Output("compiler/fusion/registers-gpu", _FUSION, "registers", device="cuda", varies=r"\d+", also=also)


def _modes() -> Iterator[Output]:
    """What the modes are, what each costs on a GPU, and what a CUDA graph holds on to."""
    names = "max-autotune(-no-cudagraphs)?|coordinate-descent|reduce-overhead|default|eager"
    found = rf"\d[\d.,]*|never|at once|library|Triton|{names}"  # all of it is measured
    yield Output("compiler/modes/modes", _MODES, "modes")
    yield Output("compiler/modes/options", _MODES, "options")
    for section in ("table", "search", "descent", "start"):
        yield Output(f"compiler/modes/{section}", _MODES, section, device="cuda", varies=found)
    for section in ("launches", "moved", "copied", "overwritten", "kept", "skipped"):
        varies = r"\d+" if section in ("launches", "kept") else r"(?!)"
        also = ("snippets/compiler/modes.py",)
        yield Output(f"compiler/modes/{section}", f"{_MODES}_traps", section, device="cuda", varies=varies, also=also)


def _compile_time() -> Iterator[Output]:
    """Where the seconds of a start go, what the caches answer, and what compile workers change."""
    size = r"[\d.]+ KB"
    for section in ("seconds", "growth", "starts", "graphs", "exercises", "host"):
        varies = rf"{size}|pays from step \d+ on|never pays"
        yield Output(f"compiler/compile-time/{section}", _SECONDS, section, device="cuda", varies=varies)
    cache, workers, also = f"{_SECONDS}_cache", f"{_SECONDS}_workers", ("snippets/compiler/compile_time.py",)
    for section in ("files", "artifacts", "changes", "shipped", "unpacked"):
        yield Output(f"compiler/compile-time/{section}", cache, section, device="cuda", varies=size, also=also)
    for name, section in (("wrong-hit", "wrong hit"), ("changes-cpu", "changes"), ("shipped-cpu", "shipped")):
        yield Output(f"compiler/compile-time/{name}", cache, section, also=also)
    varies = r"\d+ cores|default: \d+|\d+ of \d+"
    yield Output("compiler/compile-time/workers", workers, "workers", device="cuda", varies=varies, also=also)


def _ahead_of_time() -> Iterator[Output]:
    """What is exported, what is in a package, and how a process starts with it."""
    page, also = "compiler/ahead-of-time", ("snippets/compiler/compile_time.py",)
    for section in ("graph", "batch", "refused", "modes", "silent", "elsewhere", "versions"):
        yield Output(f"{page}/{section}", f"{_AHEAD}_export", section)
    varies = r"[\d.]+ KB|paid back after \d+ starts|never paid back|AOTI_\w+: .*|[1-9]\d* programs"
    for section in ("starts", "tried", "exercises", "contents", "without source", "unchecked", "checked", "weights"):
        yield Output(f"{page}/{section.replace(' ', '-')}", _AHEAD, section, varies=varies, also=also)
    for section in ("names", "symptom", "whole"):
        yield Output(f"{page}/checkpoints-{section}", f"{_AHEAD}_checkpoints", section)
    yield Output(f"{page}/linked", f"{_AHEAD}_linked", "linked", varies=r"Error: .*|SIG\w+")  # that is the compiler's


def _memory() -> Iterator[Output]:
    """Who holds memory, predicted without a GPU, and what a GPU's allocator keeps."""
    also: tuple[str, ...] = (_MEMORY.replace(".", "/") + ".py",)
    yield Output("validation/memory/your-model", f"{_MEMORY}_your_model", also=also)
    for section in (
        "graphs alive", "peak", "saved", "saved, SDPA", "remedies", "in place", "summed", "stored", "last step",
    ):  # fmt: skip
        name = section.replace(",", "").replace(" ", "-").lower()
        yield Output(f"validation/memory/{name}", f"{_MEMORY}_remedies", section, also=also)
    also = (*also, f"{_MEMORY.replace('.', '/')}_remedies.py")
    for section in ("reserved", "growing", "holes", "snapshot"):
        yield Output(
            f"validation/memory/{section}",
            f"{_MEMORY}_allocator",
            section,
            device="cuda",
            varies=r"\d[\d,.]*",
            also=also,
        )


def _training() -> Iterator[Output]:
    """The graphs of a training step, what is kept between them, and what each choice changes."""
    for section in ("forward", "backward"):
        yield Output(f"compiler/training/{section}", _TRAINING, section, "python")
    for section in (
        "checkpointing", "order", "budgets", "dropout", "accumulation", "autocast",
        "learning rates", "whole step", "compiled autograd", "exercise",
    ):  # fmt: skip
        yield Output(f"compiler/training/{section.replace(' ', '-')}", _TRAINING, section)


def _reading() -> Iterator[Output]:
    """What each log of a compilation says, and the Triton of a GPU that is not there, with its way back."""
    triton = f"{_READING}_triton"
    also: tuple[str, ...]
    line, also = r"\.py:\d+|line \d+| \d+(?=: )|(?<=runnable\.py) +\d+", (f"{triton.replace('.', '/')}.py",)
    for section in (
        "logs", "graph_breaks", "recompiles", "graph_code", "aot_graphs", "schedule", "decisions", "calls", "folder",
        "kernels", "lines",
    ):  # fmt: skip
        yield Output(
            f"compiler/reading-the-output/{section.replace('_', '-')}", _READING, section, varies=line, also=also
        )
    also = tuple(f"snippets/compiler/{name}.py" for name in ("inductor_code", "what_compile_does"))
    for section, name in (
        ("forward, calls", "triton-forward"), ("backward, calls", "triton-backward"), ("lines", "triton-lines"),
        ("triton_poi_fused_mul_silu_0", "pointwise"), ("triton_red_fused_mul_silu_sum_1", "reduction"),
        ("triton_per_fused__softmax_prepare_softmax_online_1", "persistent"),
        ("triton_poi_fused_mul_silu_silu_backward_3", "fused-backward"),
        ("settings", "settings"), ("candidates", "candidates"),
    ):  # fmt: skip
        language = (
            "python" if name in ("pointwise", "reduction", "persistent", "fused-backward", "settings") else "text"
        )
        yield Output(f"compiler/reading-the-output/{name}", triton, section, language, also=also)
    launched = f"{_READING}_launched"
    also = tuple(f"snippets/compiler/reading_the_output{part}.py" for part in ("", "_triton"))
    chosen = r"[XYR]\d*_?BLOCK \d+,? *|num_\w+ +\d+ *| +[\dx]+(?= )|\*|nvjet\w+…?"  # Inductor chooses by timing
    for section in ("tried", "launched", "profile", "eager"):
        name = f"compiler/reading-the-output/{section}"
        yield Output(name, launched, section, device="cuda", varies=chosen, also=also)


def _diagnosis() -> Iterator[Output]:
    """What the diagnosis says of seven programs on a GPU, before and after."""
    programs = "snippets.validation.diagnosis_programs"
    also = tuple(f"snippets/validation/{name}.py" for name in ("diagnosis", "roofline", "timing"))
    causes = ("launching", "memory", "matrix", "loading", "copying", "waiting", "compiling")
    sections = [f"{cause}{when}" for cause in causes for when in ("", ", mended")]
    for section in (*sections, "gains"):
        name = f"validation/diagnosis/{section.replace(', ', '-')}"
        # how often and how long, and so the order of shares and kernels; not the cause that is found, nor its remedy
        measured = r"\d+ gaps|(?s:(?<=\n) +\d+%  .*?(?=mostly ))"
        if section.startswith("compiling"):  # kernels are tried, too
            measured += r"|\d+ kernels"
        yield Output(name, programs, section, device="cuda", varies=measured, also=also)
    also = ("snippets/validation/diagnosis_programs.py", *also)
    load = "snippets.validation.diagnosis_load"
    yield Output("validation/diagnosis/load", load, device="cuda", varies=r"[\d.]+ (MHz|W)", also=also)


def _timing() -> Iterator[Output]:
    """Two versions of an operation as the page's first lines time them, and what other timers say."""
    for device, ending in (("cpu", ""), ("cuda", "-gpu")):
        yield Output(f"validation/timing-your-op/two-versions{ending}", _YOURS, "two versions", device=device)
        name, also = f"validation/timing-three/three-timers{ending}", (f"{_YOURS.replace('.', '/')}.py",)
        yield Output(name, f"{_TIMING}_three", "three timers", device=device, also=also)


def _profiling() -> Iterator[Output]:
    """A step in five forms as a timeline and read, what a profile costs, and what the GPU counts of three kernels."""
    page, also = "validation/profiling", tuple(f"snippets/validation/{name}.py" for name in ("profiling", "timing"))
    programs = f"{_PROFILING}_programs"
    found = r"ProfilerStep#\d+|gaps: .*|waits: .*|[\d.]+%"  # read from times, as the order of rows is
    rows = r"(?<=\n).*"  # of a table, in the order of their times
    yield Output(f"{page}/first-steps", programs, "first steps", device="cuda", also=also)
    for name in ("eager", "compiled", "graph", "ahead", "waiting"):
        yield Output(f"{page}/{name}", programs, name, device="cuda", varies=found, also=also)
        yield Output(
            f"{page}/timeline-{name}", programs, f"{name}, timeline", "json", "cuda",
            varies=r'(?<="bars": ).*|(?<="arrows": ).*', also=also, verbatim=True,
        )  # fmt: skip
    for name in ("eager", "waiting"):
        yield Output(f"{page}/table-{name}", programs, f"{name}, table", device="cuda", varies=rows, also=also)
    yield Output(f"{page}/full", programs, "full", device="cuda", varies=rows, also=also)
    yield Output(f"{page}/clock", programs, "clock", device="cuda", also=also)
    for name in ("eager", "ahead"):
        yield Output(f"{page}/costs-{name}", programs, f"{name}, costs", device="cuda", varies=r"[\d.]+ MB", also=also)
    yield Output(f"{page}/without-a-gpu", programs, "eager", varies=r"ProfilerStep#\d+|\n  .*", also=also)
    yield Output(f"{page}/inside", programs, "inside", also=also)
    counters = ("snippets/validation/profiling.py", "kernels/rms_norm.py")
    yield Output(
        f"{page}/counters", f"{_PROFILING}_counters", "counters", device="cuda", varies=r"\d[\d.]*", also=counters
    )


def _regressions() -> Iterator[Output]:
    """What varies between runs of the same code, and how often the gate is wrong."""
    also = ("snippets/validation/gate.py",)
    for section in ("spread", "gate", "rates", "usual", "noise"):
        name = f"validation/regressions/{section}"
        verdicts = r"\b[\d.]+%?|not slower|slower|not judged"
        yield Output(name, "snippets.validation.regressions", section, device="cuda", varies=verdicts, also=also)


def _llama() -> Iterator[Output]:
    """What attention is given, which kernels a step of two layers runs, and how the loss falls."""
    also = tuple(f"kernels/{name}.py" for name in ("add_rms_norm", "cross_entropy", "rms_norm", "rope", "swiglu"))
    for section in ("said", "mended"):
        yield Output(f"examples/llama/{section}", _LLAMA, section)
    yield Output("examples/llama/captured", _LLAMA, "captured", device="cuda")
    for section in ("kernels", "names"):
        yield Output(f"examples/llama/{section}", _LLAMA, section, device="cuda", also=also)
    for section in ("curve", "distances"):
        curve = f"{_LLAMA}_curve"
        sources = (f"{_LLAMA.replace('.', '/')}.py", *also)
        yield Output(f"examples/llama/{section}", curve, section, device="cuda", varies=r"\d\.\d{4}", also=sources)


def _first_module() -> Iterator[Output]:
    """What each step of the tutorial leaves to run, and where the time of a call goes on a GPU."""
    also = tuple(f"{_MODULE.replace('.', '/')}_{part}.py" for part in ("draft", "solutions"))
    also = (*also, "snippets/validation/diagnosis.py", "snippets/validation/equivalence.py")
    for section in ("operations", "graphs", "refused", "judged"):
        yield Output(f"examples/first-optimized-module/{section}", _MODULE, section, also=also)
    measured = r"\d+ gaps|(?s:(?<=\n) +\d+%  .*?(?=mostly ))"  # as in the diagnosis of seven programs
    for section in ("profile", "profile, better", "profile, compiled"):
        name = f"examples/first-optimized-module/{section.replace(', ', '-')}"
        yield Output(name, _MODULE, section, device="cuda", varies=measured, also=also)


def _planted() -> Iterator[Output]:
    """How many planted faults the assistant finds."""
    folder = "tests.snippets.validation.planted"
    names = [f"snippets/validation/assistant{part}.py" for part in ("", *(f"_{part}" for part in _PARTS))]
    names += [f"{folder.replace('.', '/')}/{name}.py" for name in _AREAS]
    for section in ("held out", "counted"):
        name = f"validation/assistant/{section.replace(' ', '-')}"
        yield Output(name, f"{folder}.counted", section, varies=r"\.py:\d+", also=tuple(names))


_REPORTED = (  # by the assistant on a GPU: what follows from times, and where lines are broken beside them
    r"(?<=of it\n)(?s:.+?)(?=\n +ceilings)",  # the kernels
    r"(  Kernels far from .*\n(    .*\n)*)+",  # the notes on kernels
    r"\d (of them right and|faster at the price)",  # how many of the changes
    r"(?<=\n  )[+?-](?= )|:\s+(a step is|refused,)(?s:.+?)(?=\n  [+?-] |\Z)",  # what came of each
)


def _assistant() -> Iterator[Output]:
    """What the assistant says about two modules without a GPU."""
    tool = [f"snippets/validation/assistant{part}.py" for part in ("", *(f"_{part}" for part in _PARTS))]
    module, varies = f"{_ASSISTANT}_examples", r"\.py:\d+|torch \d[\w.+]*|0x[0-9a-f]+"
    for section in ("gpt", "forecaster"):
        name = f"validation/assistant/{section}"
        yield Output(name, module, section, varies=varies, also=tuple(tool))
    verdict = r"[\d.]+|faster|slower|as fast"
    yield Output("validation/assistant/validate", module, "validate", varies=verdict, also=tuple(tool))
    llama, measured = (*tool, "snippets/examples/llama.py"), "|".join((varies, *_REPORTED))
    yield Output(
        "validation/assistant/validate-gpu", module, "validate", device="cuda", varies=verdict, also=tuple(tool)
    )
    for name, script, section, also in (
        ("gpt-gpu", module, "gpt", tool), ("forecaster-gpu", module, "forecaster", tool),
        ("llama-findings", f"{_ASSISTANT}_llama", "findings", llama),
        ("llama-trials", f"{_ASSISTANT}_llama", "trials", llama),
    ):  # fmt: skip
        name = f"validation/assistant/{name}"
        yield Output(name, script, section, device="cuda", varies=measured, also=tuple(also), ranked=True)


def _torchscript() -> Iterator[Output]:
    """What TorchScript makes, says, gets wrong and refuses; on a GPU what its executor runs, and its first calls."""
    module, page = "snippets.compiler.torchscript", "compiler/torchscript"
    for section in ("warning", "ir", "traced", "refused"):
        yield Output(f"{page}/{section}", module, section, varies=r"\.py:\d+:\d+")
    for section in ("executed", "first calls"):
        yield Output(
            f"{page}/{section.replace(' ', '-')}", module, section, device="cuda", varies=r"\.py:\d+:\d+|\d+\.\d+"
        )


def _custom() -> Iterator[Output]:
    """What opcheck says of operators, right and wrong; and on a GPU how Inductor types their arguments."""
    module, page = "snippets.compiler.custom_kernels", "compiler/custom-kernels"
    yield Output(f"{page}/opcheck", module, "opcheck", device="cuda")
    yield Output(f"{page}/mistakes", module, "mistakes")
    yield Output(f"{page}/signature", module, "signature", device="cuda")
    also = ("snippets/compiler/custom_kernels.py",)
    yield Output(f"{page}/cpp", f"{module}_cpp", device="cuda", varies=r"[\d.]+e-\d+", also=also)
    yield Output(f"{page}/wall", f"{module}_wall", also=(*also, "snippets/compiler/inductor_code.py"))


def _variables() -> Iterator[Output]:
    """Defaults of variables and options, and what some of them change on a CPU."""
    groups = ("see", "control", "kernels", "caches", "memory", "errors", "triton", "precedence")
    options = (
        "disable", "allow_rnn", "force_non_lazy_backward_lowering", "suppress_errors", "fallback_random",
        "emulate_precision_casts", "nan_asserts", "enable_autograd_cache", "fx_graph_cache", "force_disable_caches",
    )  # fmt: skip
    variables = (
        "TORCH_LOGS", "TORCH_LOGS_OUT", "TORCH_TRACE", "TORCH_COMPILE_DEBUG", "TORCH_SHOW_CPP_STACKTRACES",
        "TORCHDYNAMO_VERBOSE", "TORCHDYNAMO_REPRO_AFTER", "TRITON_INTERPRET", "TRITON_CACHE_DIR",
        "TRITON_ALWAYS_COMPILE", "TRITON_KERNEL_DUMP", "MLIR_ENABLE_DUMP",
    )  # fmt: skip
    for section in (*groups, *options, *variables):
        name = f"reference/environment-variables/{section.replace('_', '-').lower()}"
        yield Output(name, "snippets.reference.environment_variables", section, varies=r"\.py:\d+")


CAPTURES = (
    *_variables(),
    *_llama(),
    *_first_module(),
    *_planted(),
    *_assistant(),
    *_breaks(),
    *_recompilation(),
    *_friendly(),
    *_layout(),
    *_debugging(),
    *_fusion(),
    *_modes(),
    *_compile_time(),
    *_ahead_of_time(),
    *_memory(),
    *_reading(),
    *_training(),
    *_torchscript(),
    *_custom(),
    Output("compiler/what-compile-does/eager", _COMPILER, "eager"),
    Output("compiler/what-compile-does/eager-timed", _COMPILER, "eager, timed", device="cuda"),
    Output("compiler/what-compile-does/dynamo", _COMPILER, "Dynamo", "python"),
    Output("compiler/what-compile-does/guards", _COMPILER, "guards"),
    Output("compiler/what-compile-does/forward", _COMPILER, "AOTAutograd, forward", "python"),
    Output("compiler/what-compile-does/backward", _COMPILER, "AOTAutograd, backward", "python"),
    Output("compiler/what-compile-does/cpp", _COMPILER, "Inductor", "cpp"),
    Output("compiler/what-compile-does/triton", _COMPILER, "Inductor", "python", "cuda"),
    Output("compiler/what-compile-does/triton-wide", _COMPILER, "Inductor, wide rows", "python", "cuda"),
    *_inductor("rms_norm", "forward"),
    *_inductor("rms_norm", "backward"),
    *_inductor("unit_rows", "forward"),
    Output("kernels/first-kernel/first", _FIRST, "first"),
    Output("kernels/first-kernel/odd", _FIRST, "odd"),
    Output("kernels/first-kernel/stages", _FIRST, "stages"),
    Output("kernels/first-kernel/offsets", _FIRST, "offsets"),
    *(
        Output(f"kernels/first-kernel/{section}-gpu", _FIRST, section, device="cuda")
        for section in ("odd", "stages", "offsets", "registers")
    ),
    Output("patterns/attention", "snippets.patterns.attention"),
    Output("patterns/attention-gpu", "snippets.patterns.attention", device="cuda"),
    Output("patterns/attention-padding/proof", _PADDING, "proof"),
    *(Output(f"patterns/fusion/{part}", _FUSED, part) for part in ("counted", "recomputed")),
    Output("patterns/fusion/small", f"{_FUSED}_candidates"),
    *(
        Output(f"patterns/fusion/{part.lower().replace(', ', '-')}", f"{_FUSED}_blocks", part, also=_CANDIDATES)
        for part in ("ResNet, training", "ResNet", "ResNet, folded", "ViT", "U-Net")
    ),
    *(Output(f"patterns/compute-intensity/{part}", _INTENSITY, part) for part in ("map", "redesigns", "decode")),
    *(
        Output(f"patterns/attention-masks/{part}", "snippets.patterns.attention_masks", part)
        for part in ("alignment", "rules", "agreement", "rounding", "refuses")
    ),
    *(Output(f"patterns/mixed-precision/{part}", _MIXED, part) for part in ("rounding", "underflow", "updates")),
    Output("patterns/mixed-precision/autocast", _MIXED, "autocast", device="cuda"),
    Output("patterns/attention-padding/packing", f"{_PADDING}_packing", also=_PADDED),
    Output("patterns/attention-padding/backends", f"{_PADDING}_backends", "backends", device="cuda", also=_PADDED),
    Output("patterns/attention-padding/takes", f"{_PADDING}_backends", "takes", device="cuda", also=_PADDED),
    Output("patterns/attention-padding/making", f"{_PADDING}_backends", "making", device="cuda", also=_PADDED),
    Output(
        "patterns/attention-padding/training", f"{_PADDING}_training", "", device="cuda", varies=r"\d\S*", also=_PADDED
    ),
    Output(
        "patterns/attention-padding/bert",
        f"{_PADDING}_bert",
        "",
        device="cuda",
        varies=r"\d\S*",
        also=(*_PADDED, "snippets/patterns/attention_padding_training.py"),
    ),
    Output("patterns/activations/mistakes", "snippets.patterns.activations_mistakes"),
    Output("patterns/softmax-and-loss/mistakes", "snippets.patterns.softmax_and_loss_mistakes"),
    Output("patterns/normalization/mistakes", "snippets.patterns.normalization_mistakes", varies=r"1e-0[67]"),
    Output("validation/compiled-code/fp64", _FINDINGS, "fp64"),
    Output("validation/compiled-code/narrow", _FINDINGS, "narrow"),
    Output("validation/compiled-code/spill", _FINDINGS, "spill"),
    Output("validation/equivalence", "snippets.validation.equivalence"),
    *_timing(),
    *_diagnosis(),
    *_profiling(),
    *_regressions(),
)


# ---- running --------------------------------------------------------------------------------------------------------


def environment(device: str) -> dict[str, str]:
    """The variables under which a script runs on a device, whatever this process was started under."""
    inherited = {name: value for name, value in os.environ.items() if not DECIDES.match(name)}
    return inherited | ENVIRONMENT[device] | {"PYTHONUTF8": "1"}


def finished(module: str, device: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """`python -m module`, run under the fixed settings of the device."""
    return subprocess.run(
        [sys.executable, "-m", module, *arguments],
        cwd=ROOT,
        env=environment(device),
        capture_output=True,
        encoding="utf-8",
        timeout=SECONDS,
    )


Script = Callable[[str, str], subprocess.CompletedProcess[str]]


def run(module: str, device: str, script: Script = finished) -> str:
    """What `python -m module` writes to its standard output.

    Raises:
        RuntimeError: the script failed; with the last line of its error.
    """
    done = script(module, device)
    if done.returncode:
        raise RuntimeError(f"python -m {module}: {(done.stderr.strip().splitlines() or ['no message'])[-1]}")
    return done.stdout


def contents(captures: Iterable[Output], script: Script = finished) -> Iterator[tuple[Output, str]]:
    """Run what the captures need, each script once, and yield each capture with its content.

    Raises:
        RuntimeError: a script failed, or did not print a section.
    """
    printed: dict[tuple[str, str], str] = {}
    for capture in captures:
        key = capture.module, capture.device
        if key not in printed:
            printed[key] = run(*key, script)
        yield capture, tidy(section_of(printed[key], capture), capture.language, capture.verbatim)


def section_of(printed: str, capture: Output) -> str:
    """The capture's part of what its script printed."""
    if not capture.section:
        return printed
    sections = re.split(r"^==== (.+)\n", printed, flags=re.MULTILINE)
    named = dict(zip(sections[1::2], sections[2::2], strict=True))
    if capture.section not in named:
        raise RuntimeError(f"{capture.name}: expected a section {capture.section!r}, got {sorted(named)}")
    return named[capture.section]


def without_paths(text: str) -> str:
    """Without where this machine keeps Python, its packages and this checkout."""
    text = re.sub(r"/\S*/(site|dist)-packages/", "", text)  # first: an environment may lie below the root
    return text.replace(sys.executable, "python").replace(f"{ROOT}/", "")


def tidy(text: str, language: str, verbatim: bool = False) -> str:
    """Without what belongs to one machine (paths, addresses, hashes), and narrow enough for a page.

    Args:
        verbatim: only without the paths.
    """
    text = re.sub(r"/tmp/\S*/", "/tmp/", without_paths(text))
    if verbatim:
        return text.strip("\n") + "\n"
    text = re.sub(r"\b0x[0-9a-f]{6,}\b", "0x…", text)
    text = re.sub(r"\b[0-9a-f]{32,}\b", "…", text)
    if language == "cpp":  # casts of indices, which are half of each line
        text = re.sub(r"static_cast<int64_t>\(([^()]*)\)", r"\1", text)
        text = re.sub(r"^( +)", lambda spaces: spaces[0][::2], text, flags=re.MULTILINE)
    return "\n".join(line for long in text.strip("\n").splitlines() for line in fit(long.rstrip())) + "\n"


def fit(line: str) -> list[str]:
    """A line broken at spaces where it is wider than `WIDTH`."""
    indent = line[: len(line) - len(line.lstrip())]
    further = f"{indent}    "
    wrapped = textwrap.wrap(line, WIDTH, subsequent_indent=further, break_long_words=False, break_on_hyphens=False)
    return wrapped if len(line) > WIDTH else [line]


# ---- storing --------------------------------------------------------------------------------------------------------


def document(capture: Output, content: str, commit: str | None) -> dict:
    """A capture as it is stored."""
    return {
        "schema": SCHEMA,
        "name": capture.name,
        "language": capture.language,
        "content": content,
        "command": f"python -m {capture.module}",
        "environment": ENVIRONMENT[capture.device],
        "section": capture.section,
        "commit": commit,
        "date": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
        "machine": machine.describe(torch.device(capture.device)),
        "software": machine.software(),
        "sources": {"hash": source_hash(capture.sources), "files": capture.sources},
    }


def source_hash(files: Iterable[str]) -> str:
    """Hash of the syntax trees of a capture's sources."""
    return digest_texts((name, (ROOT / name).read_text()) for name in files)


def is_stale(stored: dict) -> bool:
    """Whether the code that printed a stored capture has changed since."""
    return source_hash(stored["sources"]["files"]) != stored["sources"]["hash"]


def path_of(name: str, folder: Path = PUBLISHED) -> Path:
    """The file of a capture."""
    return folder / f"{name}.json"


def same_software(stored: dict) -> bool:
    """Whether this Python would generate what the stored capture shows: the same torch on the same architecture."""
    installed = machine.software()
    return all(
        stored["software"].get(name, "").partition("+")[0] == installed.get(name, "").partition("+")[0]
        for name in ("torch", "os")
    )


# ---- the command ----------------------------------------------------------------------------------------------------


def main(arguments: list[str]) -> int:
    """Run and store the captures that were asked for; returns the exit status."""
    options = parse(arguments)
    if options.list:
        for capture in CAPTURES:
            print(f"{capture.name:40} {capture.device:5} python -m {capture.module}  {capture.section}")
        return 0
    device = "cuda" if torch.cuda.is_available() else "cpu"
    names = options.names or [capture.name for capture in CAPTURES if capture.device == device]
    by_name = {capture.name: capture for capture in CAPTURES}
    unknown = [name for name in names if name not in by_name]
    if unknown:
        print(f"no such capture: {', '.join(unknown)}; --list shows them", file=sys.stderr)
        return 2
    wanted = [by_name[name] for name in names]
    if device == "cpu" and any(capture.device == "cuda" for capture in wanted):
        print("this PyTorch sees no GPU, and a capture that was asked for needs one", file=sys.stderr)
        return 2
    try:
        commit = options.commit or commit_of(file for capture in wanted for file in capture.sources)
        for capture, content in contents(wanted):
            write_whole(path_of(capture.name, options.out), document(capture, content, commit))
            print(path_of(capture.name, options.out))
    except RuntimeError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m tests.benchmarks.captures", description="Store what scripts print.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="as --list shows them; default: all for this device")
    parser.add_argument("--list", action="store_true", help="show the captures and what prints each, and stop")
    parser.add_argument("--out", type=Path, default=PUBLISHED, help="folder (default: %(default)s)")
    parser.add_argument("--commit", help="the commit that runs, where the folder is no git checkout")
    return parser.parse_args(arguments)


def commit_of(files: Iterable[str]) -> str:
    """The commit of the checkout, whose version of the files is the one that runs.

    Raises:
        RuntimeError: the files have changes that are not committed, or this is no checkout.
    """
    git = ["git", "-C", str(ROOT)]
    try:
        changed = subprocess.run(
            [*git, "status", "--porcelain", "--", *sorted(set(files))], capture_output=True, text=True, check=True
        )
        commit = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise RuntimeError("this is no git checkout: give the commit with --commit") from error
    if changed.stdout:
        raise RuntimeError(f"commit these first, a capture names the code that printed it:\n{changed.stdout.rstrip()}")
    return commit.stdout.strip()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
