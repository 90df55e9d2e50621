"""A reduction hides behind later work, a gather runs one unit ahead, and a bucket closes when it is full."""

from snippets.examples import multi_gpu_timeline

LINK = {operation: {1: 1.0, 10**9: 1.0} for operation in ("all-reduce", "all-gather")}  # a second for any message


def test_a_reduction_hides_behind_later_work_only() -> None:
    work, send = multi_gpu_timeline.Work, [("all-reduce", 1000)]
    assert multi_gpu_timeline.timeline([work(5, reduce=send), work(5)], LINK) == 0
    assert multi_gpu_timeline.timeline([work(5), work(5, reduce=send)], LINK) == 1
    assert multi_gpu_timeline.timeline([work(5, reduce=send * 7), work(5, reduce=send)], LINK) == 3
    assert multi_gpu_timeline.timeline([work(5, reduce=send), work(5)], LINK, overlap=False) == 1


def test_a_gather_runs_one_unit_ahead() -> None:
    work, get = multi_gpu_timeline.Work, [("all-gather", 1000)]
    assert multi_gpu_timeline.timeline([work(5, gather=get), work(5, gather=get)], LINK) == 1
    assert multi_gpu_timeline.timeline([work(2, gather=get), work(5, gather=get * 4)], LINK) == 1 + 2


def test_a_bucket_closes_when_it_is_full() -> None:
    assert multi_gpu_timeline.buckets([[3, 3], [3, 1]], cap=5) == [[("all-reduce", 6)], [("all-reduce", 4)]]
    assert multi_gpu_timeline.buckets([[3], [9], [1]], cap=5) == [[], [("all-reduce", 12)], [("all-reduce", 1)]]
