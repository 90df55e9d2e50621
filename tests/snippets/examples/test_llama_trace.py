"""Each kernel's time counts in the first class whose word its name contains."""

from types import SimpleNamespace

import pytest
import torch

from snippets.examples.llama_trace import milliseconds


def event(name: str, us: float, device: str = "CUDA") -> SimpleNamespace:
    return SimpleNamespace(
        name=name, device_type=SimpleNamespace(name=device), time_range=SimpleNamespace(elapsed_us=lambda: us)
    )


EVENTS = [
    event("triton_poi_fused_scaled_dot_product_attention_0", 1000),
    event("cudnn_generated_fort_native_sdpa_sm90_flash_fprop", 2000),
    event("nvjet_tst_128x256", 4000),
    event("multi_tensor_apply_kernel", 500),
    event("aten::mm", 9000, "CPU"),
]


class Profiled:
    """In place of torch.profiler.profile, on machines without a GPU."""

    def __init__(self, **_: object):
        pass

    def __enter__(self) -> "Profiled":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def events(self) -> list[SimpleNamespace]:
        return EVENTS


def test_each_kernel_counts_in_the_first_class_that_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.profiler, "profile", Profiled)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    times, names = milliseconds(lambda: None)
    assert times == {"everything else": 1, "attention": 2, "optimizer": 0.5, "products": 4}
    assert names["attention"] == {"cudnn_generated_fort_native_sdpa_sm90_flash_fprop"}
