"""The checkpoints of docs/pages/examples/first-optimized-module.md, for the module of the page or for one of yours:

python -m pytest tests/exercises/test_first_optimized_module.py --mine my_module.py

None looks at a clock: a checkpoint counts operations, graphs and files, and compares results.
"""

import copy
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch._inductor.cudagraph_trees  # a reset that has to import it goes on in a dictionary that has changed
from torch import Tensor, nn

from snippets.examples import first_optimized_module as page
from snippets.examples.first_optimized_module import graphs, operations, waits
from snippets.examples.first_optimized_module_faults import faults
from snippets.validation.diagnosis import diagnose, read
from snippets.validation.equivalence import compare


@pytest.fixture(autouse=True)
def inference():
    with torch.no_grad():
        yield
    torch.compiler.reset()


def same(result: Tensor, draft: nn.Module, x: Tensor) -> None:
    """As exact as the draft is, against float64."""
    agreement = compare(result, draft(x), copy.deepcopy(draft).double()(x.double()))
    assert agreement.holds, f"not the draft's function at batch {len(x)}: {agreement}"


class Seven(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        for _ in range(7):
            x = x.tanh()
        return x


def test_one_a_trace_of_warm_calls(mine, device, tmp_path):
    x = torch.ones(3, device=device)
    counted = mine.profile(torch.compile(Seven(), backend="eager"), x, tmp_path / "trace.json")
    assert (tmp_path / "trace.json").is_file(), "there is no trace"
    found = diagnose(read(tmp_path / "trace.json"))
    assert found.steps == 5, f"expected five steps in the trace, got {found.steps}"
    assert found.shares["compiling"] == 0, "the trace shows the first call, which compiles"
    assert counted.get("aten::tanh") == 7, f"expected 7 of aten::tanh in a call, got {counted.get('aten::tanh')}"


def test_two_the_same_function_in_fewer_operations(mine):
    draft = mine.make_draft()
    before = {name: tensor.clone() for name, tensor in draft.state_dict().items()}
    better, x = mine.Better(draft), mine.make_input(64)
    most = mine.AT_MOST * len(operations(draft, x))
    names = operations(better, x)
    assert len(names) <= most, f"expected at most {most:.0f} operations, got {len(names)}"
    assert not waits(names), "the host waits for a number"
    for batch in (1, 5, 64):
        x = mine.make_input(batch)
        same(better(x), draft, x)
    assert all(torch.equal(tensor, before[name]) for name, tensor in draft.state_dict().items()), "changes the draft"
    for weight in draft.parameters():
        weight.mul_(1.1)
    same(mine.Better(draft)(x), draft, x)
    no_score_where_the_draft_gives_none(better, draft, x)


def no_score_where_the_draft_gives_none(better: nn.Module, draft: nn.Module, x: Tensor) -> None:
    x.view(-1)[0] = float("nan")
    try:
        draft(x)
    except ValueError:
        assert not better(x)[0].isfinite().any(), "the draft refuses NaN; yours returns a number for it"


def test_three_a_graph_for_all_batch_sizes(mine, monkeypatch):
    monkeypatch.setattr(page, "make_input", mine.make_input)
    draft = mine.make_draft()
    call = mine.compiled(mine.Better(draft))
    found, causes = graphs(call)
    assert found, "nothing was compiled"
    assert not causes, f"the graph breaks: {causes}"
    assert found < len(page.BATCHES), f"compiled anew for each batch size: {found} graphs for {len(page.BATCHES)} sizes"
    x = mine.make_input(5)
    same(call(x), draft, x)


def test_four_a_check_that_refuses_what_is_wrong(mine):
    draft = mine.make_draft()
    exact = copy.deepcopy(draft).double()
    inputs = [mine.make_input(8), mine.make_input(8)]
    right = {"the draft": draft, "the draft in float64, rounded": lambda x: exact(x.double()).to(x.dtype)}
    refused = [name for name, candidate in right.items() if not mine.judge(candidate, draft, inputs)]
    assert not refused, f"refuses what is right: {refused}"
    passed = [name for name, candidate in faults(draft).items() if mine.judge(candidate, draft, inputs)]
    assert not passed, f"lets pass what is wrong: {passed}"


# In a process that has PyTorch and the package, and cannot import the model.
SERVER = """
import sys
import torch
import torch._inductor.package

model = torch._inductor.aoti_load_package(sys.argv[1])
given = torch.load(sys.argv[2])
torch.save([model(x) for x in given], sys.argv[3])
"""


def elsewhere(package: Path, inputs: list[Tensor]) -> list[Tensor]:
    given, returned = package.with_name("given.pt"), package.with_name("returned.pt")
    torch.save(inputs, given)
    command = [sys.executable, "-I", "-c", SERVER, str(package), str(given), str(returned)]
    done = subprocess.run(command, cwd=package.parent, capture_output=True, text=True, check=False)
    said = (done.stderr.strip() or "no message").splitlines()[-1]
    if done.returncode < 0:
        said = f"ended by {signal.Signals(-done.returncode).name}; which C++ library is it linked with?"
    assert done.returncode == 0, f"the package does not serve: {said}"
    return torch.load(returned)


def test_five_a_package_that_needs_no_source(mine, tmp_path):
    draft, package = mine.make_draft(), tmp_path / "model.pt2"
    mine.ship(mine.Better(draft), package)
    assert package.is_file(), "there is no package"
    inputs = [mine.make_input(batch) for batch in (1, 2, 64)]
    for x, result in zip(inputs, elsewhere(package, inputs), strict=True):
        same(result, draft, x)
