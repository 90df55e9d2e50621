"""snippets/validation/memory_allocator.py: what its sections say of a GPU; without one it says so."""

import ast
import re
from pathlib import Path

import pytest
import torch

from snippets.validation import memory_allocator
from snippets.validation.memory_allocator import EXPANDABLE, MB, in_a_process, reserved
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


def both(program: str) -> tuple[list[int], list[int]]:
    """What a program's tensors ask for, what is reserved, and what after empty_cache: by default and expandable."""
    lines = (in_a_process(program, settings).split() for settings in ("", EXPANDABLE))
    plain, expandable = ([int(number.replace(",", "")) for number in line] for line in lines)
    assert plain[0] == expandable[0], "the same tensors"
    return plain, expandable


@needs_gpu
def test_expandable_segments_grow_with_the_longest_step():
    plain, expandable = both("growing")
    assert expandable[1] < 1.15 * expandable[0] < plain[1] and plain[2] == expandable[2] == 0


@needs_gpu
def test_only_expandable_segments_give_back_what_is_free_inside():
    plain, expandable = both("holes")
    assert plain[2] == plain[1] and expandable[2] < 0.8 * plain[2]


def test_a_reader_finds_the_lines_that_the_published_snapshot_names():
    published = captures.contents("validation/memory_allocator", "cuda")["snapshot"]
    named = re.findall(r"(\w+\.py):(\d+) (\w+)", published)
    assert named
    for file, line, function in named:
        tree = ast.parse(Path(memory_allocator.__file__).with_name(file).read_text())
        there = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == function]
        assert any(node.lineno < int(line) <= (node.end_lineno or 0) for node in there), f"{file}:{line} {function}"
