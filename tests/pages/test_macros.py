"""Macros show what a record says, with its evidence; or the build stops and says where, and what was expected."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from types import SimpleNamespace

import pytest
from mkdocs.exceptions import Abort

from docs.publish import units
from docs.publish.errors import PublishError
from docs.publish.macros import captures as capture_blocks
from docs.publish.macros import numbers
from docs.publish.macros.calc import calc
from docs.publish.place import Place
from docs.publish.site import hooks
from tests.benchmarks import source
from tests.benchmarks.runner import discover
from tests.pages import tiny
from tests.pages.tiny import finished, rendered, took

READ = "docs/pages", "snippets/**/*.py", "tests/benchmarks"  # through docs.publish

STALE = "0" * 16
WIDE = {"rows": 8, "columns": 8}
PLACE = Place("kernels/add.md", "kernels/add/")


@pytest.fixture
def root(root: Path) -> Path:
    rows = [
        tiny.row(root),
        tiny.row(root, variant="eager", time=took(2)),
        tiny.row(root, direction="backward", shape=WIDE),
        tiny.row(root, direction="backward", peak_memory_bytes=None),
        tiny.row(root, variant="eager", mode="calls"),
    ]
    tiny.write(root, tiny.record(root, rows))
    tiny.printed(root, {"": "one\n```\nthree\n"}, sources=STALE)
    return root


def only(root: Path, rows: list[dict]) -> None:
    """One record of these rows in the place of all others."""
    for path in (root / "docs/measurements/runs").iterdir():
        path.unlink()
    tiny.write(root, tiny.record(root, rows))


@pytest.mark.parametrize(
    ("macro", "shown"),
    [
        ('gpu("ours", "small")', "1.00 ms"),
        ('bandwidth("ours", "small")', "2.00 TB/s"),
        ('share("ours", "small")', "50.0%"),
        ('gain("ours", over="eager", at="small")', "2.00×"),
        ('launches("ours", "wide backward")', "1"),
        ('memory("ours", "small")', "1.00 MB"),
        ('rate("ours", "small")', "1.00 TFLOP/s"),
        ('peak("ours", "small")', "0.125%"),
        ('error("ours", "small")', "0.00100"),
        ('build("ours", "small")', "2.50 s"),
        ('machine("memory")', "150 GB"),
        ('machine("multiprocessors")', "132"),
        ('machine("floor")', "2.00 µs"),
        ('datasheet("NVIDIA H200", "exponentials")', "16"),
        ('ceiling("copy")', "4.00 TB/s"),
        ('ceiling("bfloat16", "burst", machine="nvidia-h100-80gb-hbm3")', "800 TFLOP/s"),
        ('datasheet("NVIDIA H200", "bandwidth")', "4.8 TB/s"),
        ('datasheet("NVIDIA H200", "bfloat16")', "989.5 TFLOP/s"),
    ],
)
def test_a_number_is_what_the_record_says(macro: str, shown: str, root: Path):
    html, page = rendered(f"It is {{{{ {macro} }}}}.", root)
    assert re.fullmatch(rf'It is <a class="rp-number" href="[^"]+" data-evidence="e1">{re.escape(shown)}</a>\.', html)
    assert page.evidence.entries["e1"]["value"] == shown


@pytest.mark.parametrize(
    ("expression", "unit", "inputs", "shown"),
    [
        ("2 * units", "", {"units": 'machine("multiprocessors")'}, "264"),
        ("2 * n * w / hbm", "us", {"n": 24000000, "w": 2, "hbm": 'datasheet("NVIDIA H200", "bandwidth")'}, "20 µs"),
        ("rows * columns", "", {"rows": 32768, "columns": 4096}, "134,217,728"),
        ("t/b", "%", {"t": 'gpu("ours", "small")', "b": 'build("ours", "small")'}, "0.0400%"),
        ("2 * t", "us", {"t": 'captured("table", "mlp", "fast-2")'}, "2,410 µs"),
    ],
)
def test_arithmetic_over_numbers_is_worked_out(expression: str, unit: str, inputs: dict, shown: str, printed: Path):
    assert calc(PLACE, expression, unit, quantities(printed, inputs)).text == shown


def quantities(root: Path, inputs: dict) -> dict:
    """Macros in the place of inputs as the quantities that they give."""
    known = tiny.macros(root)[0].all()
    return {name: eval(given, known).quantity if isinstance(given, str) else given for name, given in inputs.items()}


@pytest.mark.parametrize(
    ("expression", "unit", "inputs", "said"),
    [
        ("rows * width", "B", {"rows": 2}, "calc: input in 'rows * width': expected one of rows; got 'width'"),
        ("2 * 3", "x", {}, "calc: expected an expression over named inputs, got '2 * 3'"),
        ("share", "%", {"share": 0.93}, "share: expected a whole number or a macro's number, got 0.93"),
        ("rows", "parsec", {"rows": 1}, "calc: unit: expected one of"),
        ("rows.real", "", {"rows": 1}, "calc: expected + - * /"),
        ("1 / rows", "", {"rows": 0}, "division by zero"),
    ],
)
def test_what_is_no_arithmetic_is_refused(expression: str, unit: str, inputs: dict, said: str):
    with pytest.raises(PublishError, match=re.escape(said)):
        calc(PLACE, expression, unit, inputs)


@pytest.mark.parametrize(
    ("value", "unit", "shown"),
    [
        (3e-5, "s", "30.0 µs"), (1.2345e-3, "s", "1.23 ms"), (999.6e-9, "s", "1.00 µs"), (4.056e12, "B/s", "4.06 TB/s"),
        (6.62e8, "B/s", "662 MB/s"), (0.8764, "%", "87.6%"), (2.0, "x", "2.00×"),
    ],
)  # fmt: skip
def test_a_quantity_has_three_digits_and_a_unit_that_fits(value: float, unit: str, shown: str):
    assert units.text(value, unit) == shown


def test_evidence_says_where_a_number_comes_from(root: Path):
    shown, page = rendered('{{ bandwidth("ours", "small") }}', root)
    entry = page.evidence.entries["e1"]
    assert entry["label"] == "Bandwidth: kernels/add ours forward 8×4 bfloat16 device"
    assert entry["command"] == "python -m tests.benchmarks kernels/add"
    assert entry["machine"] == "NVIDIA H100"
    assert entry["software"] == "python 3.12.3, torch 2.11.0"
    assert entry["date"] == "2026-01-01T00:00:00Z"
    assert entry["spread"] == "1.67 TB/s to 2.22 TB/s (p20 to p80 of 100 samples)"
    assert entry["source_url"].endswith(f"/blob/{'c' * 40}/kernels/add.py")
    assert entry["download_url"] == "../../results/nvidia-h100-80gb-hbm3.json"
    assert (
        'href="../../results/machines/nvidia-h100-80gb-hbm3/?rows=kernels-add#kernels-add-ours-forward-8x4-bfloat16-device"'
        in shown
    )
    assert json.loads(re.sub(r"</?script[^>]*>", "", page.evidence.script())) == page.evidence.entries


def test_a_stale_number_has_a_badge_and_so_has_what_is_worked_out_from_it(root: Path):
    for stale in (False, True):
        shown, page = rendered('{{ gpu("ours", "small") }}', root)
        assert ('class="rp-number rp-stale"' in shown and "<small>stale</small></a>" in shown) is stale
        assert page.evidence.stale == [page.evidence.entries["e1"]["label"]] * stale, "a release is told"
        assert page.evidence.entries["e1"].get("stale", "") == "code" * stale
        assert calc(PLACE, "2 * t", "us", quantities(root, {"t": 'gpu("ours", "small")'})).stale == "code" * stale
        (root / tiny.KERNEL).write_text("def add(a, b):\n    return b + a\n")


def test_worked_arithmetic_shows_its_inputs(printed: Path):
    given = {"rows": 1000, "w": 4, "copy": 'ceiling("copy")', "t": 'captured("table", "mlp", "fast-2")'}
    found = calc(PLACE, "t + rows * w / copy", "us", quantities(printed, given))
    assert found.entry["formula"] == "t + rows * w / copy"
    assert [(given["name"], given["value"], given.get("source")) for given in found.entry["inputs"]] == [
        ("rows", "1,000", None),
        ("w", "4", None),
        ("copy", "4.00 TB/s", "Measured ceiling of the traffic mix copy"),
        ("t", "1,205.5 µs", "Number 1 of mlp / fast-2, printed by snippets/kernels/add.py"),
    ]
    assert found.stale, "a capture of other code is stale"


def test_a_number_above_its_ceiling_is_explained(root: Path):
    tiny.write(root, tiny.record(root, [tiny.row(root, bytes_read=3_500_000_000)], day=5))
    entry = rendered('{{ bandwidth("ours", "small") }}', root)[1].evidence.entries["e1"]
    assert entry["value"] == "4.50 TB/s"
    assert entry["note"].startswith("Above the ceiling measured in the same run, at 112% of it.")


MISUSE = [
    (
        'gpu("ours", "small", case="kernels/ad")',
        "case: expected one of kernels/add; got 'kernels/ad'; did you mean kernels/add?",
    ),
    ('gpu("our", "small")', "variant of kernels/add: expected one of ours, eager; got 'our'; did you mean ours?"),
    ('gpu("ours", "calls")', "shape of kernels/add: expected one of 8x4; got '8x8'; did you mean 8x4?"),
    ('wall("ours", "small backward")', "mode of kernels/add: expected one of device; got 'calls'"),
    ('memory("ours", "small backward")', "metric 'memory': expected one that was measured, got none"),
    ('gain("ours", at="small")', "metric 'speedup': expected over=<variant> with the metric 'speedup'"),
    ('gpu("ours", "small", over="eager")', "metric 'time': expected over=... only with 'speedup'"),
    ('gpu("ours", "small", shap="8x4")', "gpu() got an unexpected keyword argument 'shap'"),
    ('table(metric="tme")', "metric: expected one of time, rate and 10 more; got 'tme'; did you mean time?"),
    ('table(metric="time", direction="backward", dtype="float32")', "dtype of kernels/add: expected one of bfloat16"),
    ('table(metric="time")', "mode of kernels/add: expected one of device, calls, got none; say mode=..."),
    ("nothing", "'nothing' is undefined"),
    ('gpuu("ours", "small")', "'gpuu' is undefined"),
    ('gpu("ours", "small"', "unexpected '}', expected ')'"),
    ('ceiling("cpy")', "ceiling: expected one of copy, bfloat16; got 'cpy'; did you mean copy?"),
    ('ceiling("bfloat16")', "ceiling 'bfloat16': mode: expected one of burst, sustained; got 'None'"),
    ('datasheet("NVIDIA H2OO", "bandwidth")', "datasheet: device: expected one of NVIDIA H200, "),
    ('datasheet("NVIDIA H200", "bandwith")', "did you mean bandwidth?"),
    ('output("table")', "output of kernels/add: section: expected one of \"\"; got 'table'; if the script prints it"),
    ('output(lines="2-9")', "lines: expected between 1 and 3, got '2-9'"),
    ('captured("")', "output of kernels/add: expected how the number's line begins, got nothing"),
    ('captured("", "two")', "output of kernels/add: line: expected one of one, ```, three; got"),
    ('captured("", "three", "one")', "line: expected nothing, since there is none; got 'one'"),
    ('captured("", "one")', "'one': expected number 1 to 0, got 1"),
    ('output(of="kernels/ad")', "output of: expected one of kernels/add; got 'kernels/ad'; did you mean kernels/add?"),
    ('output(on="cpu")', "output of: expected nothing, since there is none; got 'kernels/add'"),
    ('output(on="cuda")', "on: expected one of gpu, cpu; got 'cuda'"),
    ('kernel_file("ad")', "kernel_file: expected one of add; got 'ad'; did you mean add?"),
    ('section_lines("ad", "add")', "section_lines: expected one of add; got 'ad'; did you mean add?"),
    ('section_lines("add", "ad")', "section_lines of add: expected one of add; got 'ad'; did you mean add?"),
    ('table(metric="time", direction="sideways")', "direction of kernels/add: expected one of forward, backward"),
    (
        'table(metric="time", direction="backward", shape="9x9")',
        "shape of kernels/add: expected one of 8x8, 8x4; got '9x9'",
    ),
    ('chart(direction=["forward", "backward"], note=["One"])', "note: expected one for each of"),
    ('chart(kind="pie", metric="time")', "chart: kind: expected one of"),
    ('table(metric="time", direction=["forward", "backward"], title="Both")', "title: expected one for each of"),
]


@pytest.mark.parametrize(("macro", "expected"), MISUSE)
def test_misuse_names_page_and_line_and_what_was_expected(macro: str, expected: str, root: Path):
    with pytest.raises(PublishError) as refusal:
        rendered(f"A line.\n\n{{{{ {macro} }}}}\n", root, line=5)
    assert str(refusal.value).startswith("kernels/add.md:7: ")
    assert expected in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.fixture
def printed(root: Path) -> Path:
    """A script printed a table of two parts, each with a line of its own for the same name."""
    content = "mlp\n  fast-2   1,205.5 us  96 MiB   never\n\nnorms\n  fast  3 x\n  fast-2  7.5 s 40%\n"
    content += "Took 8.5 us in 12, all at once.\nThen 8.5 µs.\nOff by 3.0e-04 and 2.3e-03 at most.\n"
    tiny.printed(root, {"table": content}, sources=STALE)
    return root


@pytest.mark.parametrize(
    ("macro", "shown", "value", "unit"),
    [
        ('captured("table", "mlp", "fast-2")', "1,205.5 µs", 1.2055e-3, "s"),
        ('captured("table", "mlp", "fast-2", which=2)', "96 MiB", 96.0 * 2**20, "B"),
        ('captured("table", "norms", "fast")', "3 x", 3.0, "x"),
        ('captured("table", "norms", "fast-2", which=2)', "40 %", 0.4, "%"),
        ('captured("table", "Took")', "8.5 µs", 8.5e-6, "s"),
        ('captured("table", "Took", which=2)', "12", 12.0, ""),
        ('captured("table", "Then")', "8.5 µs", 8.5e-6, "s"),
        ('captured("table", "Off", which=2)', "2.3e-03", 2.3e-3, ""),
    ],
)
def test_a_number_that_a_script_printed_is_found_by_its_line(
    macro: str, shown: str, value: float, unit: str, printed: Path
):
    html, page = rendered(
        f"{{% set n = {macro} %}}{{{{ n }}}} {{{{ n.quantity.value }}}} {{{{ n.quantity.unit }}}}", printed
    )
    entry = page.evidence.entries["e1"]
    assert entry["value"] == shown
    assert entry["command"] == "python -m snippets.kernels.add"
    assert entry["machine"] == "NVIDIA H100"
    assert html.endswith(f"</small></a> {value} {unit}")
    assert page.evidence.stale == [entry["label"]], "its hash is not that of the code"


def test_a_line_that_one_part_lacks_is_not_taken_from_the_next(printed: Path):
    with pytest.raises(PublishError, match=r"line: expected one of fast-2 .*; got 'fast'"):
        rendered('{{ captured("table", "mlp", "fast") }}', printed)


def test_a_number_of_a_timeline_is_named_after_its_lane(root: Path):
    content = '{"lanes": [\n{"name": "CUDA calls", "bars": [[80.1, 8.4, "cuLaunchKernel", "launch"]]}\n]}\n'
    tiny.printed(root, {"timeline": content})
    _, page = rendered("""{{ captured("timeline", '{"name": "CUDA calls",', which=2) }}""", root)
    entry = page.evidence.entries["e1"]
    assert (entry["value"], entry["label"].partition(",")[0]) == ("8.4", "Number 2 of CUDA calls")


def test_an_open_fence_stops_the_build(root: Path):
    with pytest.raises(PublishError, match=r"kernels/add\.md:7: the fenced block that starts here is not closed"):
        rendered("A line.\n\n```python\nx = 1\n", root, line=5)


def test_a_block_needs_a_line_of_its_own(root: Path):
    with pytest.raises(
        PublishError, match=r"kernels/add\.md:1: expected a chart, table, output or kernel_file on a line"
    ):
        rendered("See {{ output() }}", root)


@pytest.mark.parametrize(
    "code",
    [
        "```python\nx = {{1, 2}}\n\ny = f'{{{x}}}' # {% raw %} {# no comment #}\n```\n",
        '    ```sh title="{{ nothing }}"\n    echo {{ 1\n    ```\n',
        "````text\n```\n{{ inner }}\n```\n````\n",
        "Write `{{ gpu(...) }}` or ``{% a ` b %}``.\n",
        "## A title {#anchor}\n",
        "Not closed: `{{ 1 + 1 }}` and then ` alone.\n",
    ],
)
def test_braces_in_code_survive(code: str, root: Path):
    assert rendered(f"Before {{{{ 1 + 1 }}}}.\n\n{code}\nAfter {{{{ 2 + 2 }}}}.\n", root)[0] == (
        f"Before 2.\n\n{code}\nAfter 4.\n"
    )


def test_a_capture_is_a_fence_with_its_provenance_where_it_stands(root: Path):
    text, page = rendered('??? note "Output"\n\n    {{ output(lines="1-2") }}\n', root)
    assert text.startswith(
        '??? note "Output"\n\n    ````text\n    one\n    ```\n    ````\n\n    <p class="rp-provenance">'
    )
    assert f"/blob/{'c' * 40}/snippets/kernels/add.py" in text
    assert "on NVIDIA H100, torch 2.11.0, 2026-01-01" in text
    assert page.evidence.stale == ["output of kernels/add"], "its hash is not that of the code"


def test_the_gpus_output_is_shown_unless_the_page_says_the_cpus(root: Path):
    tiny.printed(root, {"table": "of a GPU\n"})
    tiny.printed(root, {"table": "of a CPU\n", "other": "one more\n"}, device="cpu", sources=None)

    def shown(arguments: str) -> str:
        return rendered(f"{{{{ output({arguments}) }}}}", root)[0].splitlines()[1]

    assert shown('"table"') == shown('"table", on="gpu"') == "of a GPU"
    assert shown('"table", on="cpu"') == "of a CPU" and shown('"other"') == "one more"
    with pytest.raises(PublishError, match=r"on the GPU: section: expected one of table; got 'other'"):
        rendered('{{ output("other", on="gpu") }}', root)


def test_a_section_is_highlighted_as_the_page_says(root: Path):
    tiny.printed(root, {"code": "x = 1\n"})
    assert rendered('{{ output("code", language="python") }}', root)[0].startswith("```python\nx = 1\n```")


def test_a_name_that_overruns_its_column_moves_the_columns_of_all() -> None:
    printed = (
        "kernel      grid  registers\n"
        "short          8         32\n"
        "    a remark  of  it\n"
        "a name that overruns   65536      64\n"
        "the end\n"
    )
    assert capture_blocks.in_columns(printed).splitlines() == [
        "kernel                 grid  registers",
        "short                     8         32",
        "    a remark  of  it",
        "a name that overruns  65536         64",
        "the end",
    ]


def test_a_table_has_the_evidence_of_each_cell(root: Path):
    html = finished('{{ table(metric=["time", "memory"], direction="backward") }}', root)
    assert html.count("<tr>") == 3
    assert html.count("data-evidence=") == 3, "one of the four is not measured"
    assert "ours, 8 × 8" in html


@pytest.mark.parametrize("drawn", ["table({})", "chart({}, kind='bars')"])
def test_directions_stand_side_by_side_each_with_its_title_and_what_was_timed_in_words(drawn: str, root: Path):
    sides = [(name, side) for name in ("forward", "backward") for side in ("ours", "compile")]
    only(root, [tiny.row(root, direction=name, variant=side) for name, side in sides])
    both = 'metric="time", direction=["forward", "backward"], title=["One", "Other"]'
    (pair,) = re.findall(r'<section class="rp-pair">(.*)</section>', finished(f"{{{{ {drawn.format(both)} }}}}", root))
    assert pair.count('<section class="rp-chart') == 2
    assert re.findall(r'rp-chart__title">([^<]*)<', pair) == ["One", "Other"]
    assert re.findall(r"(Forward|Backward), bfloat16", pair) == ["Forward", "Backward"]
    html = finished(
        f"{{{{ {drawn.format('metric=`time`, work=`a training step with AdamW`')} }}}}".replace("`", '"'), root
    )
    assert "A training step with AdamW, bfloat16" in html and "orward, bfloat16" not in html


def test_a_table_says_what_its_speedups_are_over_and_of_nothing_else(root: Path):
    only(root, [tiny.row(root, variant=side) for side in ("ours", "compile")])
    html = finished('{{ table(metric=["time", "speedup", "kernels"], over="compile") }}', root)
    assert "Time, speedup over torch.compile, kernels. Forward" in html


def test_columns_of_tables_side_by_side_have_short_names(root: Path):
    only(root, [tiny.row(root, direction=name, variant="compile", shape=shape) for name in ("forward", "backward")
                for shape in ({"rows": 8, "columns": 4}, WIDE)])  # fmt: skip
    for directions, name in (('["forward", "backward"]', "compile"), ('"forward"', "torch.compile")):
        html = finished(f'{{{{ table(metric="time", direction={directions}) }}}}', root)
        assert set(re.findall(r'<th scope="col">([^<]*)</th>', html)) == {"rows × columns", name}


def test_evidence_says_the_case_in_words_and_how_to_measure_it_again(root: Path):
    _, page = rendered('{{ gpu("ours", "small") }}', root)
    (entry,) = page.evidence.entries.values()
    assert entry["about"] == "ours: forward, 8 × 4, bfloat16, GPU time, cold cache."
    assert entry["again"] == "python -m tests.benchmarks kernels/add"
    assert all(source.question(path) for path in discover().values())


def test_a_table_says_what_was_not_timed(root: Path):
    tiny.write(root, tiny.record(root, day=3, failures=[failed("ImportError: no Liger here", "liger")]))
    html = finished('{{ table(metric="time", shape="8x4", mode="device") }}', root)
    assert re.search(r"Not timed: Liger[^:]*: ImportError: no Liger here\.", html)


def test_a_table_has_a_choice_only_where_its_shapes_have_one(root: Path):
    other = tiny.row(root, mode="calls", shape={"rows": 1, "columns": 1})
    only(root, [tiny.row(root), other])
    rendered('{{ table(metric="time", shape="8x4") }}\n', root)
    with pytest.raises(PublishError, match="mode of kernels/add: expected one of device, calls, got none"):
        rendered('{{ table(metric="time") }}\n', root)


def test_a_machine_without_the_shape_shows_its_own(root: Path):
    mine = [tiny.row(root, mode="calls", dtype="float32", shape={"rows": 2, "columns": 2})]
    tiny.write(root, tiny.record(root, mine, machine=tiny.LAPTOP), "local")
    html = finished('{{ table(metric="time", shape="8x4", mode="device", title="Times") }}', root)
    assert re.findall('data-machine="([^"]+)"', html) == ["nvidia-h100-80gb-hbm3", "laptop"]
    assert "A laptop (this machine)" in html


CELL = re.compile(r'<span class="([^"]+)" style="--part: ([\d.]+)"><a [^>]*>([^<]*)</a>')


def timed(root: Path, shape: dict[str, int] | None = None, **sides: float) -> list[dict]:
    """Rows of these sides, in milliseconds."""
    where = {"shape": shape} if shape else {}
    few = {"bytes_read": 10**6, "bytes_written": 10**6, "flops": 10**6}  # no side exceeds what the GPU can do
    return [tiny.row(root, variant=name, time=took(ms), **where, **few) for name, ms in sides.items()]


def compared(root: Path, metric: str, **sides: float) -> list[tuple[str, ...]]:
    """The marked cells of a table of two shapes, of which the second is ours alone."""
    only(root, timed(root, **sides) + timed(root, {"rows": 1, "columns": 1}, ours=1))
    return CELL.findall(finished(f'{{{{ table(metric="{metric}", mode="device") }}}}', root))


def test_the_best_cell_stands_out_ours_is_tinted_and_bars_compare(root: Path):
    assert compared(root, "time", eager=4, ours=1, liger=2) == [
        ("rp-cell rp-cell--best rp-cell--ours", "0.250", "1.00 ms"),  # ours first: a phone shows the first columns
        ("rp-cell", "1.000", "4.00 ms"),
        ("rp-cell", "0.500", "2.00 ms"),
    ]
    assert compared(root, "bandwidth", eager=4, ours=1)[0][0] == "rp-cell rp-cell--best rp-cell--ours"
    best = "rp-cell rp-cell--best"
    assert [name for name, *_ in compared(root, "time", eager=1.009, ours=1)] == [f"{best} rp-cell--ours", best]
    assert [name for name, *_ in compared(root, "time", eager=1, ours=1.02)] == ["rp-cell rp-cell--ours", best]
    assert not compared(root, "kernels", eager=4, ours=1), "no contest"


def test_no_memory_at_all_does_not_win(root: Path):
    """What a CUDA graph needs was set aside before: its calls ask for none."""
    sizes = {"eager": 4000, "ours": 2000, "graph": 0}
    only(root, [tiny.row(root, variant=name, peak_memory_bytes=size) for name, size in sizes.items()])
    html = finished('{{ table(metric="memory", mode="device") }}', root)
    marked = {value: name for name, _, value in CELL.findall(html)}
    assert marked == {"4.00 KB": "rp-cell", "2.00 KB": "rp-cell rp-cell--best rp-cell--ours"} and "0 B" in html
    said = "Where it is 0 B, a CUDA graph took its memory when it was captured"
    assert said in html
    assert said not in finished('{{ table(metric="memory", variants=["eager", "ours"], mode="device") }}', root)


@pytest.mark.parametrize(
    ("imports", "needs"),
    [
        ("import json", "It needs Python's standard library and nothing else."),
        ("import triton", "It needs Triton and nothing else."),
        ("from torch import nn", "It needs torch 2."),
        ("def profiled():\n    import torch", "It needs torch 2."),
    ],
)
def test_a_file_to_copy_says_what_it_needs(imports: str, needs: str, root: Path):
    file = root / "snippets" / "tool.py"
    file.parent.mkdir(exist_ok=True)
    file.write_text(f'"""A tool; it may know of torch."""\n\n{imports}\n')
    assert needs in rendered('{{ snippet_file("snippets/tool.py") }}\n', root)[0]


# ---- losses ---------------------------------------------------------------------------------------------------------


def lost(root: Path) -> str:
    return finished("{{ losses() }}", root)


def test_losses_lists_each_point_at_which_another_is_faster(root: Path):
    rows = timed(root, ours=1, eager=2, quack=0.98)
    few = {"rows": 1, "columns": 1}
    only(root, [*rows, *timed(root, WIDE, ours=2, eager=1, quack=0.8), tiny.row(root, shape=few, mode="graph")])
    html = lost(root)
    assert "timed beside others at 2 points. At 1 of them, another is more than 3% faster.</p>" in html
    table = html.partition("<details")[0]
    assert table.count("<tr>") == 2 and "8 × 8" in table and "quack" in table and "2.50×" in table
    only(root, rows)
    assert "at 1 point. At none of them is another more than 3% faster." in lost(root) and "<table" not in lost(root)


def test_a_peer_that_was_not_there_is_none_that_lost(root: Path):
    """Whether an import failed, the case left it out, or only an earlier run had it."""
    rows = timed(root, ours=1, eager=2, quack=3)
    only(root, rows)
    assert "at 1 point. At none of them" in lost(root) and "Not timed" not in lost(root)

    tiny.write(root, tiny.record(root, rows[:2], day=4))
    nothing = (
        "At 0 of them, all others have a time, and none is more than 3% faster. At 1 "
        "point, one of the others could not be timed, so the point counts neither way."
    )
    assert nothing in lost(root) and "quack" in lost(root) and "not tried here" in lost(root)

    reasons = {
        "ModuleNotFoundError: No module named 'quack'": "not installed",
        "ImportError: libcuda.so.1": "not installed",
        "LeftOut: slow to build": "slow to build",
    }
    for day, (reason, shown) in enumerate(reasons.items(), 5):
        tiny.write(root, tiny.record(root, rows[:2], day, failures=[failed(reason)]))
        assert nothing in lost(root), reason
        assert "Not timed at some of 1 point: quack at 1" in lost(root) and f"<td>{shown}</td>" in lost(root)
        assert "forward, GPU time, cold cache: 8\N{NO-BREAK SPACE}×\N{NO-BREAK SPACE}4" in lost(root)


def test_beside_a_loss_nothing_is_claimed_of_points_that_lack_a_side(root: Path):
    rows = timed(root, ours=1, eager=2) + timed(root, WIDE, ours=1, eager=2, quack=0.5)
    tiny.write(root, tiny.record(root, rows, day=3))
    said = "At 1 of them, another is more than 3% faster. At 1 point, one of the others could not be timed"
    assert said in lost(root)


def test_a_peer_that_fails_has_no_time_and_the_page_says_why(root: Path):
    rows = timed(root, ours=1, eager=2)
    failures = {
        "RuntimeError: the row is too long": "the row is too long",
        "wrong result, not timed: output: error 1": "wrong result, not timed: output: error 1",
        "device: RuntimeError: waits": "waits",
    }
    only(root, rows)
    for day, (reason, shown) in enumerate(failures.items(), 3):
        tiny.write(root, tiny.record(root, rows, day, failures=[failed(reason)]))
        assert "at 1 point. At none of them" in lost(root), "it was there, and did not compute this"
        assert f"<td>{shown}</td>" in lost(root)
    tiny.write(root, tiny.record(root, rows, day=9, failures=[failed("graph: RuntimeError: of another mode")]))
    assert "not tried here" in lost(root)


def failed(reason: str, variant: str = "quack") -> dict:
    where = {"case": "kernels/add", "direction": "forward", "shape": {"rows": 8, "columns": 4}, "dtype": "bfloat16"}
    return where | {"variant": variant, "reason": reason}


# ---- in a site ------------------------------------------------------------------------------------------------------


def test_a_source_is_a_link_at_the_commit_that_is_built(root: Path):
    place = Place("kernels/add.md", "kernels/add/")
    text, _ = rendered('Copy {{ source("kernels/add.py") }} beside', root)
    assert text == f'Copy <a href="{place.source("kernels/add.py")}"><code>kernels/add.py</code></a> beside'
    with pytest.raises(PublishError, match=r"source: expected one of kernels/add\.py; got 'kernels/ad\.py'"):
        rendered('{{ source("kernels/ad.py") }}', root)


def test_lines_of_a_section_are_counted(root: Path):
    assert rendered('{{ section_lines("add", "add") }} lines', root)[0] == "2 lines"


def test_a_site_shows_numbers_code_and_kernel_files(tmp_path: Path):
    page = (
        "---\ntitle: Add\ncase: kernels/add\n---\n\n# Add\n\n!!! note\n\n"
        '    Ours takes {{ gpu("ours", "small") }}.\n\n'
        '```python\n--8<-- "kernels/add.py:add"\n```\n\n{{ kernel_file("add") }}\n'
    )
    root = tiny.project(tmp_path, page)
    tiny.write(root, tiny.record(root))
    site = tiny.build(root)
    assert 'data-evidence="e1">1.00 ms</a>' in site["index.html"]
    assert '<script type="application/json" id="rp-evidence">{"e1":' in site["index.html"]
    assert site["kernels/add.py"] == tiny.FILES[tiny.KERNEL], "the file to copy is exactly the source"
    assert 'data-copy-url="kernels/add.py"' in site["index.html"]
    assert "https://example.org/tiny/kernels/add.py" in site["index.html"]
    assert "[start:add]" not in site["index.html"]
    assert (
        'id="kernels-add-ours-forward-8x4-bfloat16-device"'
        in site["results/rows/nvidia-h100-80gb-hbm3/kernels-add.html"]
    )


WITHOUT_KERNELS = """import runpy, sys
sys.path.append(ROOT)
from docs.publish.compiled import explorer
explorer.files = lambda *_: iter(())
runpy.run_module("mkdocs", run_name="__main__", alter_sys=True)
"""  # mkdocs without the compiled code of our own kernels, as tiny.build is


def test_misuse_stops_the_build_with_one_line(tmp_path: Path, forked: Callable[..., CompletedProcess[str]]):
    page = '---\ntitle: Add\ncase: kernels/add\n---\n\n# Add\n\nOurs takes {{ gpu("ous", "small") }}.\n'
    root = tiny.project(tmp_path, page)
    tiny.write(root, tiny.record(root))
    (root / "build.py").write_text(WITHOUT_KERNELS.replace("ROOT", repr(str(source.ROOT))))
    done = forked(["build.py", "build", "--quiet"], root)
    assert done.returncode == 1
    printed = done.stdout + done.stderr
    assert "index.md:8: variant of kernels/add: expected one of ours, eager; got 'ous'; did you mean ours?" in printed
    assert "Traceback" not in printed


def test_a_broken_record_stops_the_build(root: Path, caplog: pytest.LogCaptureFixture):
    tiny.write(root, tiny.record(root, schema=9))
    with pytest.raises(Abort):
        tiny.build(root)
    assert "runs/2026-01-01T00-00-00Z-nvidia-h100-80gb-hbm3.json: expected schema version 1, got 9" in caplog.text


def test_an_unknown_level_stops_the_build(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    root = tiny.project(tmp_path, "---\nlevel: easy\n---\n\n# Page\n")
    with pytest.raises(Abort):
        tiny.build(root)
    assert "level: expected one of beginner, intermediate, advanced; got 'easy'" in caplog.text


def test_a_page_can_be_built_alone(root: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture):
    (root / "docs/pages/other.md").write_text(
        '# Other\n\n{{ gpu("ours", "small", case="kernels/add") }} [Home](index.md)\n'
    )
    monkeypatch.setenv("RIDGEPOINT_PAGE", "other")
    site = tiny.build(root)
    assert [path for path in site if path.endswith(".html")] == ["other/index.html"] and not caplog.text
    assert "1.00 ms" in site["other/index.html"] and not [path for path in site if path.startswith("results/")]
    monkeypatch.setenv("RIDGEPOINT_PAGE", "othr")
    with pytest.raises(Abort):
        tiny.build(root)
    assert "page: expected one of index.md, other.md; got 'othr.md'; did you mean other.md?" in caplog.text


@pytest.mark.parametrize(("folder", "page", "writes"), [(source.ROOT, "", 1), (source.ROOT, "index", 0), ("/", "", 0)])
def test_only_a_build_of_all_our_pages_writes_what_is_kept(folder, page, writes, monkeypatch: pytest.MonkeyPatch):
    """What it did not ask for is dropped, and a later build would make it again."""
    written: list[None] = []
    monkeypatch.setattr(hooks.kept, "save", lambda: written.append(None))
    monkeypatch.setattr(hooks, "current", SimpleNamespace(root=Path(folder)), raising=False)
    monkeypatch.setenv("RIDGEPOINT_PAGE", page)
    hooks.on_post_build(SimpleNamespace(plugins={}))
    assert len(written) == writes


def test_a_figure_that_the_datasheet_does_not_state_has_its_own_source():
    assert "nvidia.com/en-us/data-center/h200" in numbers.datasheet("NVIDIA H200", "power").href
    assert "#arithmetic-instructions" in numbers.datasheet("NVIDIA H200", "exponentials").href
