"""Launches and trials are noted."""

from types import SimpleNamespace

from torch._inductor.runtime.triton_heuristics import CachingAutotuner

from snippets.compiler.reading_the_output_noted import Configuration, noted

SMALL = Configuration((("XBLOCK", 512),), 8, 1)
LARGE = Configuration((("XBLOCK", 1024),), 4, 1)


def launcher(chosen: Configuration) -> SimpleNamespace:
    config = SimpleNamespace(kwargs=dict(chosen.sizes), num_warps=chosen.warps, num_stages=chosen.stages)
    return SimpleNamespace(config=config)


def test_launches_and_trials_are_noted_and_the_class_is_as_it_was(monkeypatch):
    both = [launcher(LARGE), launcher(SMALL)]
    timings = {id(both[0]): 0.25, id(both[1]): 0.125}

    def time_all(kernel):
        return SimpleNamespace(items=lambda: [(each, timings[id(each)]) for each in both])

    monkeypatch.setattr(CachingAutotuner, "run", lambda kernel, *inputs, stream: (*inputs, stream))
    monkeypatch.setattr(CachingAutotuner, "benchmark_all_configs", time_all)
    run = CachingAutotuner.run
    kernel = SimpleNamespace(inductor_meta={"kernel_name": "triton_poi_fused_mul_0"}, launchers=both[1:])
    with noted() as (launches, tried):
        CachingAutotuner.benchmark_all_configs(kernel)
        assert CachingAutotuner.run(kernel, 1, 2, stream=3) == (1, 2, 3)
    assert launches == [("triton_poi_fused_mul_0", SMALL)]
    assert tried == {"triton_poi_fused_mul_0": {LARGE: 0.25e-3, SMALL: 0.125e-3}}
    assert CachingAutotuner.run is run
