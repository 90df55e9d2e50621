"""Who holds memory at the peak: counted, read from an allocator's snapshot, saved by autograd, kept by a graph."""

import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils.checkpoint import checkpoint

from snippets.validation import memory
from snippets.validation.memory import (
    Arena,
    Block,
    History,
    Ledger,
    Saved,
    arena,
    graphs_alive,
    held_by,
    main,
    peak_of,
    read,
    record,
    recorded,
    report,
    saved,
    table,
)

KB = 1000


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))


# ---- the peak of a history ------------------------------------------------------------------------------


def test_the_peak_is_where_most_is_alive_and_names_its_holders():
    events = [
        (1, Block(50, "a")),
        (2, Block(30, "b")),
        (1, None),
        (3, Block(60, "a")),
        (3, None),
        (4, Block(1, "c")),
    ]
    peak = peak_of(History({0: Block(10, "before")}, events))
    assert (peak.nbytes, peak.by, peak.held) == (100, "a", {"a": 60, "b": 30, "before": 10})


def test_an_address_that_is_used_again_is_another_block():
    events = [(1, Block(50, "a")), (1, None), (1, Block(70, "b")), (1, None)]
    assert peak_of(History({}, events)).held == {"b": 70}


def test_where_nothing_comes_the_peak_is_what_was_there():
    peak = peak_of(History({0: Block(10, "before")}, [(0, None)]))
    assert (peak.nbytes, peak.by) == (10, "")


# ---- counted --------------------------------------------------------------------------------------------


def test_a_ledger_counts_storages_not_views_and_sees_them_go():
    with Ledger() as ledger:
        x = torch.ones(1000)
        views = x[:10], x.view(10, 100)
        assert ledger.alive == 4000
        y = x + 1
        assert ledger.alive == 8000
        del x
        assert ledger.alive == 8000  # its views hold it
        del views
        assert ledger.alive == 4000
        del y
    assert ledger.alive == 0


def test_the_peak_of_a_step_is_named_by_kind(model):
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    x = torch.randn(32, 8)

    def step() -> None:
        model(x).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    step()
    history = record(step, model, optimizer)
    held = peak_of(history).held
    parameters = sum(p.nbytes for p in model.parameters())
    assert held["parameters"] == parameters
    assert held["optimizer state"] == 2 * parameters + 4 * len(list(model.parameters()))  # and each one's step
    kinds = {block.who for _, block in history.events if block}
    assert {"gradients", "optimizer, temporary", "backward, temporary", "forward of 1"} <= kinds
    gradients = sum(block.nbytes for _, block in history.events if block and block.who == "gradients")
    assert gradients == parameters


def test_recording_leaves_no_hook_even_if_the_step_raises(model):
    def hooks() -> list[int]:
        return [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()] + [
            len(p._post_accumulate_grad_hooks or ()) for p in model.parameters()
        ]

    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        record(lambda: model(torch.ones(1, 9)), model)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        saved(model, lambda: model(torch.ones(1, 9)))
    assert not any(hooks())


# ---- saved ----------------------------------------------------------------------------------------------


def test_saved_tensors_stand_with_their_layer_and_count_once(model):
    x = torch.randn(32, 8)
    kept = saved(model, lambda: model(x).sum())
    assert [(tensor.module, tensor.shape) for tensor in kept] == [
        ("0", (32, 8)),  # a linear layer keeps its input
        ("1", (32, 16)),  # tanh its output, which is the next one's input
    ]
    assert sum(tensor.nbytes for tensor in kept) == 4 * 32 * (8 + 16)


def test_what_was_counted_is_freed():
    """An operation that keeps its own result holds what the hook returns for it."""
    results = []

    def forward():
        result = torch.ones(8, requires_grad=True).exp()
        results.append(result.untyped_storage()._weak_ref())
        return result

    assert memory.saved(nn.Identity(), forward)
    assert torch.UntypedStorage._expired(results[0])


def test_layers_of_one_kind_stand_in_one_line():
    model = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(3)))
    text = table(saved(model, lambda: model(torch.randn(4, 8)).sum()))
    (line,) = [line for line in text.splitlines() if "*.1" in line]
    assert line.split()[1:] == ["3", "*.1", "float32", "4", "×", "8"]
    blocks = [Saved(str(number), "float32", (5,), 20) for number in range(3)]  # what a block itself keeps
    assert table(blocks).splitlines()[1].split()[1:] == ["3", "*", "float32", "5"]


def test_lines_that_are_not_listed_are_added_up():
    kept = [Saved(f"layer {n}", "float32", (n,), n * 1000 * KB) for n in (1, 1, 6, 3)]
    _, listed, others, last = table(kept, most=1).splitlines()
    assert listed.split()[:2] == ["6.0", "1"]
    assert others.split() == ["5.0", "3", "2", "other", "lines"]
    assert last.split() == ["11.0", "4", "in", "all"]
    assert "other" not in table(kept, most=3)


# ---- graphs that live on --------------------------------------------------------------------------------


def test_a_graph_holds_what_backward_has_not_freed(model):
    x = torch.randn(32, 8)
    loss = model(x).square().mean()
    expected = 4 * 32 * (8 + 16 + 4)  # the inputs of the layers, and of the square
    assert held_by(loss) == expected
    assert held_by(loss.detach()) == 0
    loss.backward()
    assert held_by(loss) == 0


def test_the_ends_of_the_graphs_that_are_alive_are_found(model):
    others = graphs_alive()  # of tests before this one; held, so that none of them ends meanwhile
    kept = model(torch.randn(32, 8)).square().mean()
    new = [(size, tensor) for size, tensor in graphs_alive() if all(tensor is not other for _, other in others)]
    assert [size for size, _ in new] == [held_by(kept)]  # the tensors inside are not listed
    assert new[0][1] is kept


def test_what_a_compiler_has_traced_is_no_graph_that_holds_memory():
    mode = FakeTensorMode(shape_env=ShapeEnv())
    x = mode.from_tensor(torch.ones(5, 3, requires_grad=True))
    with mode:
        traced = [(x * 2).exp(), (x[:4] * 3).exp()]
    assert not isinstance(held_by(traced[0]), int)
    others = graphs_alive()
    assert not [tensor for _, tensor in others if any(tensor is one for one in traced)]


# ---- snapshots ------------------------------------------------------------------------------------------


def frame(filename: str, line: int, name: str) -> dict:
    return {"filename": filename, "line": line, "name": name}


def alloc(address: int, size: int, *frames: dict, **more: object) -> dict:
    return {"action": "alloc", "addr": address, "size": size, "stream": 0, "frames": list(frames), **more}


def free(address: int, size: int) -> list[dict]:
    both = "free_requested", "free_completed"
    return [{"action": action, "addr": address, "size": size, "stream": 0, "frames": []} for action in both]


MINE = frame("/home/me/train.py", 12, "forward")
INSIDE = frame("/usr/lib/python3/site-packages/torch/nn/functional.py", 2000, "linear")


@pytest.fixture
def snapshot() -> dict:
    """Two segments: one half used by what was there before, one idle at the end. A step of three tensors."""
    return {
        "segments": [
            {
                "device": 0,
                "address": 1000 * KB,
                "total_size": 20 * KB,
                "blocks": [
                    {"size": 8 * KB, "requested_size": 8 * KB, "state": "active_allocated", "frames": []},
                    {"size": 12 * KB, "state": "inactive", "frames": []},
                ],
            },
            {
                "device": 0,
                "address": 2000 * KB,
                "total_size": 40 * KB,
                "blocks": [{"size": 40 * KB, "state": "inactive", "frames": []}],
            },
        ],
        "device_traces": [
            [
                *free(1010 * KB, 2 * KB),  # of something older than the recording
                {"action": "segment_alloc", "addr": 2000 * KB, "size": 40 * KB, "stream": 0, "frames": []},
                alloc(2000 * KB, 10 * KB, INSIDE, MINE),
                alloc(2010 * KB, 30 * KB),
                *free(2000 * KB, 10 * KB),
                *free(2010 * KB, 30 * KB),
                alloc(2000 * KB, 5 * KB, MINE),
                *free(2000 * KB, 5 * KB),
            ]
        ],
    }


def test_a_snapshot_is_read_with_what_was_there_before(snapshot):
    history = read(snapshot)
    assert {block.nbytes for block in history.before.values()} == {8 * KB, 2 * KB}
    peak = peak_of(history)
    assert peak.nbytes == 48 * KB  # the two kilobytes were freed before
    assert peak.held == {
        "no Python on the stack: backward": 30 * KB,
        "train.py:12 forward": 10 * KB,  # the innermost line that is not PyTorch's
        "before the recording": 8 * KB,
    }


def test_the_device_with_a_history_is_taken(snapshot):
    snapshot["device_traces"].insert(0, [])
    for segment in snapshot["segments"]:
        segment["device"] = 1
    assert peak_of(read(snapshot)).nbytes == 48 * KB


def test_of_backward_the_forward_line_is_named_where_it_is_known(snapshot):
    snapshot["device_traces"][0][4]["forward_frames"] = [INSIDE, MINE]
    assert peak_of(read(snapshot)).held["backward of train.py:12 forward"] == 30 * KB


def test_what_the_allocator_has_is_told_apart(snapshot):
    assert arena(snapshot) == Arena(60 * KB, 8 * KB, 12 * KB, 40 * KB, 40 * KB)


def test_what_is_no_snapshot_is_refused(snapshot):
    with pytest.raises(ValueError, match="expected a snapshot with device_traces"):
        read({"traceEvents": []})
    with pytest.raises(ValueError, match="no history: call"):
        read(snapshot | {"device_traces": [[]]})


def test_the_command_reports_on_a_snapshot(snapshot, tmp_path, capsys):
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps(snapshot))
    assert main([str(path)]) == 0
    printed = capsys.readouterr().out
    assert "train.py:12 forward" in printed and "reserved" in printed


@pytest.mark.parametrize("content", [b"", b"no pickle", pickle.dumps([1, 2])])
def test_the_command_says_what_is_wrong_with_a_file(content, tmp_path, capsys):
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(content)
    assert main([str(path)]) == 2
    assert str(path) in capsys.readouterr().err


def test_copied_alone_it_works(tmp_path):
    (tmp_path / "memory.py").write_text(Path(memory.__file__).read_text())
    done = subprocess.run([sys.executable, "memory.py", "nothing.pickle"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2 and "nothing.pickle" in done.stderr


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_recording_says_what_to_use():
    with pytest.raises(RuntimeError, match=r"record\(\) counts tensors on any device"):
        recorded(lambda: None)


def test_a_step_that_runs_out_of_memory_leaves_its_history(monkeypatch, capsys):
    on = []
    monkeypatch.setattr(torch.cuda.memory, "_record_memory_history", lambda **options: on.append(options))
    monkeypatch.setattr(torch.cuda.memory, "_snapshot", lambda: {"history": len(on)})
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)

    def step() -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.")

    assert recorded(step) == {"history": 1}, "taken while the recording is on"
    assert on[-1] == {"enabled": None}
    assert capsys.readouterr().err.endswith("its history ends there. CUDA out of memory. Tried to allocate 2 GiB.\n")


def test_while_a_step_is_recorded_no_checkpoint_ends_early(monkeypatch):
    """By an exception, that is, which recording can lose; and afterwards it does again, even if the step fails."""
    ran = []

    def part(x: torch.Tensor) -> torch.Tensor:
        y = x.exp()
        ran.append("exp")
        z = y + 1  # nothing is saved from here on
        ran.append("end")
        return z

    def step() -> None:
        x = torch.ones(3, requires_grad=True)
        checkpoint(part, x, use_reentrant=False).sum().backward()

    step()
    assert ran == ["exp", "end"], "the second forward ends within exp"
    for name in ("_record_memory_history", "_snapshot"):
        monkeypatch.setattr(torch.cuda.memory, name, lambda **options: {})
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    ran.clear()
    recorded(step)
    assert ran == ["exp", "end"] * 2
    with pytest.raises(ZeroDivisionError):
        recorded(lambda: 1 / 0)
    ran.clear()
    step()
    assert ran == ["exp", "end"]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs the allocator of a GPU")
def test_a_checkpointed_step_can_be_recorded():
    layer = nn.Linear(64, 64, device="cuda")
    recorded(lambda: checkpoint(layer, torch.ones(8, 64, device="cuda"), use_reentrant=False).sum().backward())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs the allocator of a GPU")
def test_on_a_gpu_the_history_has_the_allocators_peak():
    kept = torch.zeros(1000, 1000, device="cuda")

    def step() -> None:
        other = kept + 1
        (other * 2).sum()

    step()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    peak = peak_of(read(recorded(step)))
    assert peak.nbytes == pytest.approx(torch.cuda.max_memory_allocated(), rel=0.01)
    assert any("test_memory.py" in who for who in peak.held)
    assert torch.cuda.memory._snapshot()["device_traces"] is not None
    assert "test_memory.py" in report(read(recorded(step)))
