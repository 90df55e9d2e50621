"""Logs in PyTorch's form and a folder in tlparse's, made by hand; test_reads.py has real ones."""

import json

from snippets.validation.assistant.reads import read_all


def test_a_folder_of_tlparse_is_read_without_its_log(tmp_path):
    """Its layout, by hand: https://github.com/meta-pytorch/tlparse."""
    compilation = tmp_path / "-_0_1_0"
    compilation.mkdir()
    (tmp_path / "compile_directory.json").write_text("{}")
    (tmp_path / "chromium_events.json").write_text(json.dumps({"traceEvents": []}))
    reason = "Graph break in user code at /a/train.py:7\nGraph Break Reason: Data-dependent branching\n"
    (compilation / "dynamo_graph_break_reason_1.txt").write_text(reason)
    failed = (
        '0/0: self.n == 0  # self.n += 1\nUser stack trace:\n  File "/a/train.py", line 5, in forward\n    self.n += 1'
    )
    (compilation / "recompile_reasons_2.json").write_text(json.dumps([failed]))
    losses = read_all([tmp_path]).losses
    assert [(loss.cause, str(loss.line)) for loss in losses] == [
        ("graph-break", "/a/train.py:7"),
        ("recompilation", "/a/train.py:5"),
    ]


def test_skipped_graphs_and_the_limit_are_found_in_a_log(tmp_path):
    head = "V1127 04:43:14.254000 18156 torch/_inductor/x.py:5] [0/0] [__cudagraphs]"
    rows = [
        f"{head} skipping cudagraphs due to cpu device (x)",
        f"{head} skipping cudagraphs due to cpu device (x)",
        f"{head} skipping cudagraphs due to mutated inputs (1 instances). Found from : ",
        f'{head}    File "/a/train.py", line 9, in forward',
        "W1127 04:43:15.0 1 torch/_dynamo/convert_frame.py:1] [0/8] torch._dynamo hit config.recompile_limit (8)",
        "W1127 04:43:15.0 1 torch/_dynamo/convert_frame.py:1] [0/8]    function: 'step' (/a/train.py:3)",
        "W1127 04:43:15.0 1 torch/_dynamo/convert_frame.py:1] [0/8]    last reason: 0/7: n == 7",
    ]
    log = tmp_path / "log"
    log.write_text("\n".join(rows))
    *_, skipped = found = [loss for loss in read_all([log]).losses if loss.cause == "cuda-graph"]
    assert [loss.times for loss in found] == [2, 1]  # messages that follow one another are two
    losses = {loss.cause: loss for loss in read_all([log]).losses} | {"cuda-graph": skipped}
    assert str(losses["cuda-graph"].line) == "/a/train.py:9" and "mutated inputs" in losses["cuda-graph"].detail
    assert str(losses["limit"].line) == "/a/train.py:3" and "n == 7" in losses["limit"].detail
