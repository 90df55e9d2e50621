"""snippets/validation/memory_allocator.py: what its sections say of a GPU; without one it says so."""

import ast
import re
from pathlib import Path

import pytest
import torch

from snippets.validation import memory_allocator
from snippets.validation.memory_allocator import MB, reserved
from tests.benchmarks import captures

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="the allocator of a GPU")


@pytest.mark.skipif(torch.cuda.is_available(), reason="what is said without a GPU")
def test_without_a_gpu_it_says_so(capsys):
    assert memory_allocator.main([]) == 0
    assert re.fullmatch("no CUDA GPU: .*\n", capsys.readouterr().out)


@needs_gpu
def test_what_is_deleted_stays_reserved_until_empty_cache():
    start, made, deleted, emptied, end = (found for _, found, _ in reserved())
    assert made.allocated - start.allocated >= 1000 * MB
    assert deleted.allocated < made.allocated - 900 * MB and deleted.reserved == made.reserved
    assert emptied.reserved < deleted.reserved - 900 * MB and end.reserved <= emptied.reserved


def test_a_reader_finds_the_lines_that_the_published_snapshot_names():
    published = captures.contents("validation/memory_allocator", "cuda")["snapshot"]
    named = re.findall(r"(\w+\.py):(\d+) (\w+)", published)
    assert named
    for file, line, function in named:
        tree = ast.parse(Path(memory_allocator.__file__).with_name(file).read_text())
        there = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == function]
        assert any(node.lineno < int(line) <= (node.end_lineno or 0) for node in there), f"{file}:{line} {function}"
