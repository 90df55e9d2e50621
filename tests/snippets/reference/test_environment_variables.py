"""Each name exists in the installed version, stands on the page if a page uses it, and does what is said."""

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import triton

from docs.publish.markdown.pages import PAGES
from snippets.reference import environment_variables as snippet
from snippets.reference.environment_variables import INDUCTOR, MODULES, OPTIONS, SETTINGS
from tests.benchmarks import captures
from tests.benchmarks.source import ROOT

READ = "docs/pages"  # through docs.publish

PAGE = PAGES / "reference" / "environment-variables.md"
TEXT = PAGE.read_text(encoding="utf-8")
ENTRIES = [setting for group in SETTINGS.values() for setting in group]
VARIABLES = {setting.variable.partition("=")[0]: setting.where for setting in ENTRIES if setting.variable}
VERSION = tuple(map(int, torch.__version__.split(".")[:2]))
LATER = {  # options, and the first version that has them
    f"{INDUCTOR}.epilogue_fusion_user_defined_triton_kernel": (2, 12),
    f"{INDUCTOR}.epilogue_fusion_with_atomic_add": (2, 13),
}
NAME = re.compile(r"\b(?:INDUCTOR|TORCH(?:DYNAMO|INDUCTOR)?|TRITON|MLIR|CUDA|CUBLAS|PYTORCH)_[A-Z][A-Z0-9_]+\b")
NO_VARIABLES = {"TORCHINDUCTOR_USER", "TORCH_LIBRARY"}  # a part of a path, and a macro of C++
NO_VARIABLES |= {"TORCH_USE_CUDA_DSA", "TORCH_CUDA_ARCH_LIST"}  # for who builds PyTorch, or an extension of it
NO_OPTIONS = {"dynamic_shapes"}  # an argument of torch.export has that name, too
NO_OPTIONS |= {"optimize_ddp"}  # of several ranks, as the variables below: reference/communication has them
NCCL, RECORDER = (
    f"torch/include/torch/csrc/distributed/c10d/{name}.hpp" for name in ("ProcessGroupNCCL", "FlightRecorder")
)
OF_RANKS = {  # variables of several ranks, which their own pages explain, and the file that reads each
    "TORCH_COMPILER_COLLECTIVES": "torch/_dynamo/config.py",
    "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "torch/distributed/elastic/rendezvous/dynamic_rendezvous.py",
    "TORCH_DISTRIBUTED_DEBUG": "torch/include/torch/csrc/distributed/c10d/debug.h",
    "TORCH_FR_BUFFER_SIZE": RECORDER,
    "TORCH_FR_DUMP_TEMP_FILE": "torch/lib/libtorch_cpu.so",
    "TORCH_NCCL_BLOCKING_WAIT": NCCL,
    "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": "torch/lib/libtorch_cpu.so",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": NCCL,
    "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": NCCL,
    "TORCH_NCCL_NAN_CHECK": NCCL,
    "TORCH_NCCL_TRACE_BUFFER_SIZE": RECORDER,
    "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": NCCL,
}

snippet.import_options()


def name_of(path: str) -> str:
    """An option as it is given to torch.compile: "triton.cudagraphs"."""
    return next(path.removeprefix(f"{module}.") for module in MODULES if path.startswith(f"{module}."))


def own(setting: snippet.Setting) -> str:
    """What a setting is called on the page."""
    return setting.variable.partition("=")[0] or name_of(setting.where)


# ---- the installed version ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", OPTIONS)
def test_an_option_exists_in_the_installed_torch(path):
    found = snippet.option(path) != "not in this version"
    assert found == (LATER.get(path, (2, 11)) <= VERSION)


def read(file: str) -> bytes:
    """A file of the installed torch or triton; empty where this build has none."""
    package, _, below = file.partition("/")
    folder = Path({"torch": torch, "triton": triton}[package].__file__).parent
    path = folder / below
    return path.read_bytes() if path.exists() else b""


@pytest.mark.parametrize("variable", VARIABLES | OF_RANKS)
def test_a_variable_is_read_by_the_installed_version(variable):
    where = (VARIABLES | OF_RANKS)[variable]
    if where in OPTIONS:
        module = next(module for module in MODULES if where.startswith(f"{module}."))
        where = module.replace(".", "/") + ".py"
    content = read(where)
    if not content and "cuda" in where and not torch.version.cuda:
        pytest.skip(f"{where} is a part of builds with CUDA")
    assert re.search(rf"\b{variable}\b".encode(), content), f"{where} does not read {variable}"


# ---- the page and the others ----------------------------------------------------------------------------------------


def others(suffixes: tuple[str, ...]) -> Iterator[tuple[Path, str]]:
    """Pages and snippets of the compiler and validation tracks and the reference, without this page and its snippet."""
    for folder in (PAGES, ROOT / "snippets"):
        for path in sorted(folder.rglob("*")):
            ours = path.stem.replace("_", "-") == PAGE.stem or path.name.startswith("questions")
            if path.suffix in suffixes and not ours:
                yield path, path.read_text(encoding="utf-8")


PLAIN = {"freezing"}  # an option that is one word, as few are; words that are many things are not looked for
KNOWN = PLAIN | {
    name for module in MODULES for name in snippet.sys.modules[module]._config if "_" in name or "." in name
}
KNOWN |= {name_of(path) for path in OPTIONS}  # those too that this version lacks


def options_of_code(code: str) -> Iterator[str]:
    """What Python code sets or reads of the compiler's options."""
    for node in ast.walk(ast.parse(code)):
        match node:
            case ast.Call(func=ast.Attribute(attr="patch"), keywords=keywords):
                yield from (keyword.arg for keyword in keywords if keyword.arg)
            case ast.Dict(keys=keys):
                yield from (key.value for key in keys if isinstance(key, ast.Constant) and isinstance(key.value, str))
            case ast.Attribute(attr=name) if "config" in ast.unparse(node.value):
                yield name


def options_of_page(text: str) -> Iterator[str]:
    """What a page names as code."""
    for code in re.findall(r"`([^`\n]+)`", text):
        for name in re.findall(r"[a-z_]+(?:\.[a-z_]+)*", code):
            yield name.rpartition("config.")[2]


@functools.cache
def used() -> set[str]:
    found: set[str] = set()
    for path, text in others((".md", ".py")):
        found |= set(NAME.findall(text))
        options = options_of_code(text) if path.suffix == ".py" else options_of_page(text)
        found |= set(options) & KNOWN
    return found - NO_VARIABLES - NO_OPTIONS - set(OF_RANKS)


def test_what_a_page_or_a_snippet_uses_stands_here():
    here = {own(setting) for setting in ENTRIES} | {name_of(path) for path in OPTIONS}
    assert not (missing := sorted(used() - here)), f"add to snippets/reference/environment_variables.py: {missing}"


def sections() -> dict[tuple[str, ...], str]:
    """The names of each entry on the page, and its text."""
    parts = re.split(r"^### (.+?) \{ #[\w-]+ \}\n", TEXT, flags=re.MULTILINE)[1:]
    return {
        tuple(re.findall(r"`([^`]+)`", head)): text.partition("\n## ")[0]
        for head, text in zip(parts[::2], parts[1::2], strict=True)
    }


def test_the_page_has_each_entry_once():
    names = [name for entry in sections() for name in entry]
    assert sorted(names) == sorted({own(setting) for setting in ENTRIES})


ALONE = {  # neither used by another page nor with a run of its own, and why it stands here
    "TORCH_COMPILE_DEBUG_DIR": "the run above is made with it",
    "TORCHDYNAMO_REPRO_LEVEL": "a part of the entry above",
    "PYTORCH_ALLOC_CONF": "acts on a GPU only",
    "PYTORCH_CUDA_ALLOC_CONF": "acts on a GPU only",
    "PYTORCH_NO_CUDA_MEMORY_CACHING": "acts on a GPU only",
    "CUDA_LAUNCH_BLOCKING": "acts on a GPU only",
    "TRITON_PRINT_AUTOTUNING": "acts on a GPU only",
}


@pytest.mark.parametrize("entry", sections(), ids="-".join)
def test_an_entry_is_used_elsewhere_or_shown_here(entry):
    paths = {name_of(setting.where) for setting in ENTRIES if own(setting) in entry and setting.where in OPTIONS}
    shown = "{{ output(" in sections()[entry]
    assert shown or (set(entry) | paths) & used() or set(entry) <= ALONE.keys()


@pytest.mark.parametrize("entry", sections(), ids="-".join)
def test_an_entry_says_since_when(entry):
    source = r"\[since \d\.\d+\]\(https://github\.com/pytorch/pytorch/blob/v\d"
    assert re.search(
        rf"{source}|since triton \d|older than (torch )?2\.0|tested on torch \d", sections()[entry].lower()
    )


# ---- what is printed ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def printed(script) -> dict[str, str]:
    done = script("snippets.reference.environment_variables")
    assert not done.returncode, done.stderr
    return {section: text.strip() for section, text in captures.sections(done.stdout).items()}


def test_each_variable_changes_its_option(printed):
    lines = [line for group in SETTINGS for line in printed[group].splitlines() if " -> " in line]
    assert len(lines) == sum(bool(each.variable) and each.where in OPTIONS for each in ENTRIES)
    same = [line for line in lines if len({side.strip() for side in line.split(" -> ")}) == 1]
    assert not same


def test_a_forced_variable_wins_over_the_code_and_others_do_not(printed):
    said = [line.rpartition(": ")[2] for line in printed["precedence"].splitlines()]
    assert said == ["False", "False", "False"]


EFFECTS = {
    "disable": ("1 graph compiled", "0 graphs compiled"),
    "allow_rnn": ("0 graphs compiled", "1 graph compiled"),
    "force_non_lazy_backward_lowering": ("1 compiled after forward", "2 compiled after forward"),
    "suppress_errors": ("BackendCompilerFailed", "no error, and the function runs eagerly"),
    "fallback_random": ("other numbers than eager, from the same seed", "eager's numbers"),
    "emulate_precision_casts": ("differs from eager in the last bits", "bit for bit eager's"),
    "nan_asserts": ("no error", "AssertionError"),
    "enable_autograd_cache": ("autograd cache hit, fx cache hit", "fx cache hit"),
    "fx_graph_cache": ("fx cache hit", "no hit"),
    "force_disable_caches": ("autograd cache hit, fx cache hit", "no hit"),
}


@pytest.mark.parametrize("name", EFFECTS)
def test_an_option_has_its_effect(printed, name):
    if name == "emulate_precision_casts" and VERSION < (2, 13):
        pytest.skip("on a CPU only from torch 2.13 on")
    assert tuple(line.partition(": ")[2] for line in printed[name].splitlines()) == EFFECTS[name]


SHOWN = {
    "TORCH_LOGS": "tensor 'x' size mismatch at index 0. expected 2, actual 3",
    "TORCH_LOGS_OUT": "3 lines in the file, 3 on the error output",
    "TORCH_TRACE": "dynamo_output_graph",
    "TORCH_COMPILE_DEBUG": "ir_post_fusion.txt",
    "TORCH_SHOW_CPP_STACKTRACES": "calls of C++ follow",
    "TORCHDYNAMO_REPRO_AFTER": "minifier_launcher.py",
    "TRITON_CACHE_DIR": "double.cubin",
    "TRITON_INTERPRET": "TRITON_INTERPRET=1: tensor([2., 2., 2., 2.])",
    "TRITON_KERNEL_DUMP": "double.ttgir",
    "MLIR_ENABLE_DUMP": "IR Dump Before Inliner",
}


@pytest.mark.parametrize("name", SHOWN)
def test_a_variable_has_its_effect(printed, name):
    assert SHOWN[name] in printed[name]


def test_the_traceback_is_longer_when_verbose(printed):
    usual, verbose = map(int, re.findall(r"(\d+) frames", printed["TORCHDYNAMO_VERBOSE"]))
    assert verbose > usual


def test_triton_compiles_again_when_told(printed):
    lines = printed["TRITON_ALWAYS_COMPILE"].splitlines()
    assert lines[0].endswith("found the first one") and lines[1].endswith("wrote the binary again")
