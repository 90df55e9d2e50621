"""What the caches of graphs answer after each change, and that what was saved is found again elsewhere."""

import re
from types import SimpleNamespace

import pytest
import torch
from torch._inductor.codecache import FxGraphCache
from torch._inductor.custom_graph_pass import CustomGraphPass
from torch.compiler._cache import CacheArtifactManager

from snippets.compiler import compile_time_cache, compile_time_cache_changes
from snippets.compiler.compile_time_cache import kinds, line, of_operator
from snippets.compiler.compile_time_cache_changes import BASE, CHANGES
from snippets.compiler.compile_time_cache_outcome import outcome, said
from snippets.compiler.compile_time_cache_ship import compiled_anew, unpack, warm_up
from tests.benchmarks.captures import contents

MODULE = "snippets.compiler.compile_time_cache"
HIT, MISS = ("hit", "hit"), ("miss", "miss")
ANSWERS = {  # of AOTAutograd's cache and of Inductor's
    "(the first call of all)": MISS,
    "nothing": HIT,
    "other values in the weights": HIT,
    "a comment, other line numbers": HIT,
    "the file stands elsewhere": HIT,
    "the cache folder is a copy": HIT,
    "the number of compile workers": HIT,
    "a local variable is renamed": ("miss", "hit"),
    "the function is renamed": HIT,
    "a constant in the source": MISS,
    "another number of rows": MISS,
    "another dtype": MISS,
    "gradients are wanted": MISS,
    "an option of Inductor": MISS,
    "matmul precision 'high'": MISS,
    "'highest', which is the default": MISS,
    "deterministic algorithms": MISS,
    "another GPU (its name)": MISS,
    "another PyTorch (its key)": MISS,
    "a pass of one's own": ("bypass", "bypass"),
    "nothing, after all of these": HIT,
    "unpacked into an empty folder": HIT,
    "the same, under another PyTorch": MISS,
}


@pytest.fixture(autouse=True)
def nothing_in_memory(tmp_path, monkeypatch):
    """Nor on disk."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    torch.compiler.reset()
    torch._dynamo.utils.counters.clear()


def test_each_change_gets_the_answer_that_the_page_shows(script):
    done = script(MODULE)
    assert done.returncode == 0, done.stderr
    rows = re.findall(r"^(.+?) +(hit|miss|bypass|not asked) +(hit|miss|bypass|not asked) +[\d.]+ s$", done.stdout, re.M)
    assert {what: (autograd, inductor) for what, autograd, inductor in rows} == ANSWERS
    assert set(CHANGES) < set(ANSWERS)


def test_cublas_may_be_deterministic_from_its_first_product_on(monkeypatch):
    """Asked for later, it is not: on a GPU the scene would end in an error."""
    told: dict[str, str] = {}
    process = SimpleNamespace(returncode=0)
    monkeypatch.setattr(compile_time_cache.subprocess, "run", lambda command, env, **other: told.update(env) or process)
    with pytest.raises(SystemExit):
        compile_time_cache.main()
    assert told["CUBLAS_WORKSPACE_CONFIG"] in (":4096:8", ":16:8")


def product(x: torch.Tensor) -> torch.Tensor:
    return x @ x


def in_an_empty_folder(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "elsewhere"))
    torch.compiler.reset()
    torch._dynamo.utils.counters.clear()


def test_what_was_saved_is_found_where_it_is_unpacked(tmp_path, monkeypatch):
    file, x = tmp_path / "artifacts", torch.randn(8, 8)
    warm_up(product, x, to=file)
    assert compiled_anew() == 1
    in_an_empty_folder(tmp_path, monkeypatch)
    unpack(file)
    torch.compile(product)(x)
    assert compiled_anew() == 0


def test_what_a_warm_process_saves_is_what_it_used(tmp_path, monkeypatch):
    """What it found counts as much as what it compiled; what it only loaded does not."""
    file, x = tmp_path / "artifacts", torch.randn(8, 8)
    torch.compile(product)(torch.randn(9, 9))
    torch.compiler.reset()
    warm_up(product, x, to=file)
    in_an_empty_folder(tmp_path, monkeypatch)
    with CacheArtifactManager.with_fresh_cache():  # as in a new process
        unpack(file)
        assert torch.compiler.save_cache_artifacts() is None
        torch.compile(product)(x)
        assert compiled_anew() == 0
        _, saved = torch.compiler.save_cache_artifacts()
    assert {kind: len(keys) for kind, keys in saved.artifacts.items()} == {"aot_autograd": 1, "inductor": 1}


def test_another_version_unpacks_without_a_word_and_compiles(tmp_path, monkeypatch, recwarn):
    file, x = tmp_path / "artifacts", torch.randn(8, 8)
    warm_up(product, x, to=file)
    in_an_empty_folder(tmp_path, monkeypatch)
    with compile_time_cache_changes.other_torch():
        unpack(file)
        torch.compile(product)(x)
    assert compiled_anew() == 1 and not [one for one in recwarn if "cache" in str(one.message)]


def test_the_folder_is_counted_by_what_is_in_it(tmp_path):
    for name, size in {"fxgraph/ab/fx/one": 3, "fxgraph/cd/fy/two": 4, "ab/cab.py": 5}.items():
        path = tmp_path / "top" / name
        path.parent.mkdir(parents=True)
        path.write_bytes(b"x" * size)
    assert kinds(tmp_path / "top") == {"generated py": (1, 5), "fxgraph": (2, 7)}


def test_a_row_says_what_was_answered(tmp_path):
    first = outcome(BASE, tmp_path, "cpu")
    assert (first.autograd, first.inductor) == MISS
    assert re.fullmatch(r"first +miss +miss +\d+\.\d\d s", line("first", first))


def test_a_custom_operators_new_gradient_is_not_in_the_key():
    """A mended mistake goes on; another tag finds nothing in the cache, and is right."""
    assert of_operator(False, "", "cpu") == ("miss", True)
    assert of_operator(True, "", "cpu") == ("hit", False)
    assert of_operator(True, "2", "cpu") == ("miss", True)


def answers(*rows: int, **options: object) -> list[str]:
    """Of AOTAutograd's cache, to one product after another, each as after a restart."""
    found = []
    for count in rows:
        torch.compiler.reset()
        torch._dynamo.utils.counters.clear()
        torch.compile(lambda x, weight: x @ weight, **options)(torch.randn(count, 64), torch.randn(64, 32))
        found.append(said(torch._dynamo.utils.counters["aot_autograd"], "autograd_cache"))
    return found


def test_with_a_symbol_one_entry_serves_other_sizes_but_not_one_that_equals_another():
    assert answers(80, 96, dynamic=False) == ["miss", "miss"]
    assert answers(81, 97, 64, dynamic=True) == ["miss", "hit", "miss"]


def test_with_gradients_an_entry_is_written_by_backward_alone():
    """So a server that forgets `no_grad` has a cache that never fills."""
    found = []
    for trained in (False, False, True, True):
        torch.compiler.reset()
        torch._dynamo.utils.counters.clear()
        result = torch.compile(product)(torch.randn(16, 16, requires_grad=True))
        if trained:
            result.sum().backward()
        counters = torch._dynamo.utils.counters
        found.append((said(counters["aot_autograd"], "autograd_cache"), counters["inductor"]["fxgraph_cache_hit"]))
    assert found == [("miss", 0), ("miss", 1), ("miss", 1), ("hit", 2)]


def test_a_pass_that_says_which_it_is_leaves_the_caches_on():
    class Named(CustomGraphPass):
        def __init__(self, name: str) -> None:
            self.name = name

        def __call__(self, graph: torch.fx.Graph) -> None:
            pass

        def uuid(self) -> str:
            return self.name

    found = []
    for name in ("1", "1", "2"):
        with torch._inductor.config.patch(post_grad_custom_pre_pass=Named(name)):
            found += answers(80)
    assert found == ["miss", "hit", "miss"]


def test_the_version_decides_when_kernels_are_taken_out_of_an_entry():
    """There are none on a CPU, so the class has to say."""
    known = {"2.11": False, "2.13": True}
    while_unpacking = hasattr(FxGraphCache, "_emit_triton_bundle")
    assert while_unpacking == known.get(torch.__version__[:4], while_unpacking)


def test_the_stored_artifacts_have_kernels_in_them():
    after = contents("compiler/compile_time_cache", "cuda")["unpacked"].partition("after the first call")[2]
    assert re.search(r"^triton +[1-9]", after, re.M)
