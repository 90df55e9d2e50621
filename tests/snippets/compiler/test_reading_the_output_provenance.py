"""Kernels are led back to lines of source."""

import torch

from snippets.compiler.reading_the_output_provenance import lines_of_kernels, place


def test_frames_of_pytorch_are_left_out_so_a_model_of_its_modules_has_no_lines():
    norm = torch.nn.LayerNorm(64)

    def mine(x: torch.Tensor) -> torch.Tensor:
        return norm(x)

    for module, ends in ((mine, ["return norm(x)"]), (torch.nn.Sequential(norm), [])):
        (graph,) = lines_of_kernels(lambda module=module: torch.compile(module, dynamic=False)(torch.ones(8, 64)))
        (places,) = graph.values()
        assert [line.partition(": ")[2] for line in places] == ends


def test_the_innermost_frame_of_a_trace_counts():
    outer, inner = (
        '  File "/a/model.py", line 3, in f\n    y = g(x)\n',
        '  File "/a/layer.py", line 7, in g\n    return x\n',
    )
    assert place(outer + inner) == "layer.py:7: return x"
