"""Each change is taken back."""

import torch

from snippets.compiler.compile_time_cache_changes import CHANGES


def test_settings_are_back_after_each_scene(tmp_path):
    """Else a row would show the change of the row above it."""

    def state() -> list[object]:
        matmul = torch.backends.cuda.matmul.fp32_precision, torch.backends.mkldnn.matmul.fp32_precision
        return [torch.get_float32_matmul_precision(), *matmul, torch.are_deterministic_algorithms_enabled()]

    before = state()
    for scene in CHANGES.values():
        with scene.setting():
            pass
        assert state() == before
