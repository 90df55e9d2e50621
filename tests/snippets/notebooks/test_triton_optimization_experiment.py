"""What an experiment compares, and what its file of sources holds."""

import torch
import torch.nn.functional as F

from snippets.notebooks.triton_optimization_experiment import sources_of


def test_each_function_is_written_once_below_the_names_of_its_variants(experiment):
    def double(x):
        return 2 * x

    variants = {"plain": double, "compiled": double, "in C": torch.sigmoid}
    written = sources_of(experiment(variants=variants))
    assert written.startswith("# plain, compiled\ndef double(x):\n    return 2 * x\n")
    assert written.count("def double") == 1 and written.endswith("# in C\nsigmoid  # of torch itself\n")


def test_a_variant_is_plain_compiled_or_ours(experiment):
    found = experiment(variants=dict.fromkeys("abc", F.silu), compiled=("b",), ours=("c",))
    assert [found.role(name) for name in found.variants] == ["plain", "compiled", "ours"]
