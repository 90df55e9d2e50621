"""The messages of a step hold each element as often as the page says."""

from snippets.examples import multi_gpu_bytes
from snippets.examples.multi_gpu_timeline import Work


def test_what_is_compiled_is_measured_last() -> None:
    names = list(multi_gpu_bytes.STRATEGIES)
    compiled = [name for name in names if "blocks" in name or "whole" in name]
    assert compiled and names[-len(compiled) :] == compiled
    assert names[: len(multi_gpu_bytes.EAGER)] == list(multi_gpu_bytes.EAGER)


SHAPE = multi_gpu_bytes.Shape(layers=[[60, 20], [60, 20]], root=40, tokens=8, width=4)


def sent_by(works: list[Work]) -> dict[str, float]:
    """Bytes of all messages, by operation."""
    messages = [message for work in works for message in (*work.gather, *work.reduce)]
    return {operation: sum(size for name, size in messages if name == operation) for operation, _ in messages}


def test_messages_hold_each_element_as_often_as_the_page_says() -> None:
    """Gathers in bf16, reductions in fp32; the root is gathered once."""
    times = [1.0] * 3
    assert sent_by(multi_gpu_bytes.ddp_works(SHAPE, times, times)) == {"all-reduce": 4 * SHAPE.elements}
    reduced = {"reduce-scatter": 4 * SHAPE.elements}
    assert sent_by(multi_gpu_bytes.sharded_works(SHAPE, times, times)) == reduced | {"all-gather": 2 * (2 * 160 + 40)}
    assert sent_by(multi_gpu_bytes.kept_works(SHAPE, times, times)) == reduced | {"all-gather": 2 * SHAPE.elements}
