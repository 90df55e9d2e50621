"""snippets/notebooks/triton_optimization.py: a folder for each experiment, and only what is right is timed."""

import json

import pytest
import torch
import torch.nn.functional as F

from snippets.notebooks.triton_optimization import run

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def test_the_folder_holds_what_was_generated_and_what_was_measured(tmp_path, experiment):
    report = run(experiment(compiled=("written out, compiled",)), tmp_path)
    assert report.folder == tmp_path / "silu"
    (generated,) = (report.folder / "generated").iterdir()
    assert generated.name == "written-out-compiled.py"
    assert ("@triton.jit" if DEVICE.type == "cuda" else 'extern "C"') in generated.read_text()
    assert report.code("written out, compiled").startswith("@triton.jit" if DEVICE.type == "cuda" else 'extern "C"')
    assert "lambda x: x * torch.sigmoid(x)" in (report.folder / "experiment.py").read_text()
    metadata = json.loads((report.folder / "metadata.json").read_text())
    environment = json.loads((report.folder / "environment.json").read_text())
    assert metadata["inputs"] == {"x": {"shape": [64, 64], "dtype": "float32"}}
    assert environment["versions"]["torch"] == torch.__version__ and environment["device"] == DEVICE.type
    assert metadata["seconds"].keys() == metadata["errors"].keys() == {"plain", "written out, compiled"}
    assert all(0 < times["p20"] <= times["p50"] <= times["p80"] for times in metadata["seconds"].values())


def test_running_again_replaces_the_folder_and_leaves_nothing_beside_it(tmp_path, experiment):
    run(experiment(), tmp_path)
    (tmp_path / "silu" / "left over").touch()
    run(experiment(variants={"plain": F.silu}), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["silu"]
    left = {path.name for path in (tmp_path / "silu").iterdir()}
    assert left == {"environment.json", "experiment.py", "metadata.json"}


def test_a_wrong_variant_is_named_and_the_last_folder_stays(tmp_path, experiment):
    run(experiment(), tmp_path)
    before = (tmp_path / "silu" / "metadata.json").read_text()
    with pytest.raises(AssertionError, match=r"silu, wrong: largest error .*, expected at most"):
        run(experiment(variants={"plain": F.silu, "wrong": torch.sigmoid}), tmp_path)
    assert (tmp_path / "silu" / "metadata.json").read_text() == before
    assert [path.name for path in tmp_path.iterdir()] == ["silu"]


def test_random_results_are_judged_by_the_experiments_check(tmp_path, experiment):
    def is_dropped(result, inputs):
        assert ((result == 0) | (result == 2 * inputs["x"])).all(), "neither dropped nor doubled"

    variants = {"plain": lambda x: F.dropout(x, 0.5), "wrong": lambda x: F.dropout(x, 0.4)}
    assert run(experiment(variants={"plain": variants["plain"]}, check=is_dropped), tmp_path).agreements == {}
    with pytest.raises(AssertionError, match="silu, wrong: neither dropped nor doubled"):
        run(experiment(variants=variants, check=is_dropped), tmp_path)


@pytest.mark.skipif(DEVICE.type == "cuda", reason="what a CPU does not time")
def test_interpreted_kernels_are_checked_and_not_timed(tmp_path, experiment):
    report = run(experiment(ours=("written out, compiled",)), tmp_path)
    assert report.timings.keys() == {"plain"} and report.agreements.keys() == {"plain", "written out, compiled"}
    assert json.loads((report.folder / "metadata.json").read_text())["not_timed"] == ["written out, compiled"]


def test_generated_code_without_a_kernel_is_refused(tmp_path, experiment):
    returned = experiment(variants={"plain": lambda x: x.view(-1)}, compiled=("plain",))
    with pytest.raises(ValueError, match="silu, plain: expected a Triton or a C\\+\\+ kernel in what was generated"):
        run(returned, tmp_path)
    assert list(tmp_path.iterdir()) == []
