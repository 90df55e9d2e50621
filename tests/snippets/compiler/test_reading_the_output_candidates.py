"""The grid covers every element."""

from snippets.compiler.reading_the_output_candidates import candidates
from tests.snippets.compiler.test_reading_the_output_triton import generated


def test_the_grid_covers_every_element():
    for graph in generated():
        for name, source in graph.kernels.items():
            rule, configurations = candidates(source)
            assert rule == "Grid1D" and configurations
            assert len(configurations) == (2 if "_poi_" in name else 1)
