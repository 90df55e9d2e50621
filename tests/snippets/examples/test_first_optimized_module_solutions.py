"""Each solution passes its checkpoint (tests/exercises runs them), and a fault of a usual kind does not."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
import torch

from snippets.examples import first_optimized_module_exercises as exercises_file
from snippets.examples import first_optimized_module_solutions as solutions
from tests.exercises import test_first_optimized_module as checkpoints

SOURCE = Path(solutions.__file__).read_text()


def test_the_solutions_have_all_that_the_reader_writes():
    def public(module: ModuleType) -> set[str]:
        return {name for name, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__}

    assert public(exercises_file) <= public(solutions)
    assert exercises_file.AT_MOST == solutions.AT_MOST


def planted(tmp_path: Path, old: str, new: str) -> ModuleType:
    """The solutions with one fault."""
    assert SOURCE.count(old) == 1, old
    path = tmp_path / "faulty.py"
    path.write_text(SOURCE.replace(old, new))
    spec = importlib.util.spec_from_file_location("faulty", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def one(mine: ModuleType, tmp_path: Path) -> None:
    checkpoints.test_one_a_trace_of_warm_calls(mine, torch.device("cpu"), tmp_path)


def two(mine: ModuleType, tmp_path: Path) -> None:
    checkpoints.test_two_the_same_function_in_fewer_operations(mine)


def three(mine: ModuleType, tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        checkpoints.test_three_a_graph_for_all_batch_sizes(mine, patch)


def four(mine: ModuleType, tmp_path: Path) -> None:
    checkpoints.test_four_a_check_that_refuses_what_is_wrong(mine)


EAGER = 'torch.compile(model, backend="eager"'
WHOLE = 'torch.compile(model, fullgraph=True, mode="reduce-overhead")'


@torch.no_grad()
@pytest.mark.parametrize(
    ("checkpoint", "old", "new", "says"),
    (
        pytest.param(one, "warm_up=3", "warm_up=0", "the first call", id="not warm"),
        pytest.param(one, "count // steps", "count", "expected 7 of aten::tanh in a call, got 35", id="of all steps"),
        pytest.param(one, "steps = 5", "steps = 4", "expected five steps", id="four steps"),
        pytest.param(two, "draft = copy.deepcopy(draft)", "draft.memory.add_(1)", "changes the draft", id="in place"),
        pytest.param(two, "(1 - keep) * keep **", "keep **", "not the draft's function", id="not an average"),
        pytest.param(two, "x.shape[1] - 1, -1, -1", "x.shape[1]", "Error", id="ages the other way"),
        pytest.param(two, ".chunk(2, -1)", ".chunk(2, -1)[::-1]", "not the draft's function", id="halves swapped"),
        pytest.param(two, "(h * weights)", "(h * weights).nan_to_num()", "the draft refuses NaN", id="a score for NaN"),
        pytest.param(
            two,
            "h = self.embed",
            "assert not x.isnan().any()\n        h = self.embed",
            "waits for a number",
            id="waits",
        ),
        pytest.param(three, WHOLE, f"{EAGER}, dynamic=False)", "4 graphs for 4 sizes", id="a graph for each size"),
        pytest.param(four, "candidate(x.clone())", "candidate(x)", "", id="candidate has the input"),
        pytest.param(four, "for x in inputs:", "for x in inputs[:1]:", "its first result for ever", id="one input"),
        pytest.param(
            four, "exact(x.double()), draft(x)", "draft(x).double(), draft(x)", "refuses what", id="no float64"
        ),
    ),
)
def test_a_fault_is_found(checkpoint, old, new, says, tmp_path):
    if not says:  # this one is none: the reference is computed before the candidate has the input
        checkpoint(planted(tmp_path, old, new), tmp_path)
        return
    with pytest.raises((AssertionError, TypeError), match=None if says == "Error" else says):
        checkpoint(planted(tmp_path, old, new), tmp_path)
    torch.compiler.reset()


@torch.no_grad()
def test_a_graph_that_breaks_is_found(tmp_path):
    mine = planted(tmp_path, WHOLE, f"{EAGER})")
    mine.Better = lambda draft: draft
    with pytest.raises(AssertionError, match="the graph breaks"):
        three(mine, tmp_path)
    torch.compiler.reset()


def test_a_package_that_fails_elsewhere_is_found(tmp_path):
    (package := tmp_path / "model.pt2").write_bytes(b"no package")
    with pytest.raises(AssertionError, match="the package does not serve"):
        checkpoints.elsewhere(package, [torch.ones(1)])


OWN = '''
class Own(nn.Module):
    """Another module: a convolution for each of eight scales, and the largest response."""

    def __init__(self) -> None:
        super().__init__()
        self.filters = nn.ModuleList(nn.Conv1d(4, 6, 3, padding=1) for _ in range(8))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([F.relu(conv(x)).amax(-1) for conv in self.filters], -1)


class Better(nn.Module):
    def __init__(self, draft: nn.Module):
        super().__init__()
        self.weight = torch.cat([conv.weight for conv in draft.filters])
        self.bias = torch.cat([conv.bias for conv in draft.filters])

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(F.conv1d(x, self.weight, self.bias, padding=1)).amax(-1)


def make_draft() -> nn.Module:
    torch.manual_seed(0)
    return Own().eval().requires_grad_(False)


def make_input(batch: int) -> Tensor:
    return torch.randn(batch, 4, 32)
'''


@torch.no_grad()
def test_the_checkpoints_judge_a_module_of_the_readers_own(tmp_path):
    """As the page says: other functions that make the module and its input, and another class."""
    of_ours = "from snippets.examples.first_optimized_module_draft import make_draft, make_input\n"
    start, end = SOURCE.index("class Better"), SOURCE.index("# --8<-- [end:two]")
    path = tmp_path / "faulty.py"
    path.write_text((SOURCE[:start] + OWN + SOURCE[end:]).replace(of_ours, "").replace(WHOLE, f"{EAGER})"))
    spec = importlib.util.spec_from_file_location("own", path)
    mine = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(mine)
    two(mine, tmp_path)
    three(mine, tmp_path)
    four(mine, tmp_path)
    path.write_text(path.read_text().replace("padding=1)).amax(-1)\n\n\ndef", "padding=0)).amax(-1)\n\n\ndef"))
    spec.loader.exec_module(mine)
    with pytest.raises(AssertionError, match="not the draft's function"):
        two(mine, tmp_path)
