"""One program for each symptom, and what the procedure of the page says of it.

Run `python -m snippets.compiler.debugging_symptoms`.
"""

import contextlib
import gc
import logging
import os
import re
import runpy
import sys
import tempfile
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._dynamo.eval_frame import _debug_get_cache_entry_list
from torch._inductor import config
from torch.autograd.function import BackwardCFunction

from snippets.compiler import debugging_bugs  # as a whole: what registers an operator's parts has no name
from snippets.compiler.debugging import bisect
from snippets.compiler.debugging_crash import crashed
from snippets.compiler.debugging_errors import said


def compiled(function: Callable, *inputs: object, backend: str = "inductor", **options: object) -> Tensor:
    """What the function returns when it is compiled anew, under these options of Inductor."""
    torch.compiler.reset()
    with config.patch(fx_graph_cache=False, **options), torch._functorch.config.patch(enable_autograd_cache=False):
        return torch.compile(function, backend=backend)(*inputs)


# ---- wrong results --------------------------------------------------------------------------------------------------


# --8<-- [start:precision]
def gate(x: Tensor) -> Tensor:
    """Six steps, and eager rounds each of them to the dtype of x."""
    return (x * 1.1 - x * x) * F.relu(x) * x


def precision(dtype: torch.dtype) -> str:
    """Errors against float64: of eager, compiled, and compiled so that it rounds where eager does."""
    x = torch.linspace(-2, 2, 4096).to(dtype)
    exact, eager, fused = gate(x.double()), gate(x), compiled(gate, x)
    rounding = compiled(gate, x, emulate_precision_casts=True)
    errors = [f"{(result - exact).abs().max():>10.0e}" for result in (eager, fused, rounding)]
    close = "close" if torch.allclose(fused, eager) else "not close"
    same = "eager's bits" if torch.equal(rounding, eager) else "other bits"
    return f"{str(dtype)[6:]:<10}{''.join(errors)}  {close:<11}{same}"


# --8<-- [end:precision]


def tolerances() -> Iterator[str]:
    """What `torch.testing.assert_close` allows, beside the step of the dtype."""
    yield f"{'dtype':<10}{'eps':>10}{'rtol':>10}{'atol':>10}"
    for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16):
        rtol, atol = torch.testing._comparison.default_tolerances(dtype)
        yield f"{str(dtype)[6:]:<10}{torch.finfo(dtype).eps:>10.1e}{rtol:>10.1e}{atol:>10.1e}"


# --8<-- [start:minifier]
def model(x: Tensor, weight: Tensor) -> Tensor:
    """The planted lowering among operations that are right."""
    hidden = (x @ weight).tanh()
    return (debugging_bugs.shifted(hidden) * hidden.cos()).exp() - x.mean()


def minified(function: Callable, *inputs: Tensor) -> str:
    """How the program ends, and the graph that the accuracy minifier is left with. It works with files."""
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder), quietly():
        settings = {"repro_after": "aot", "repro_level": 4, "debug_dir_root": folder}
        with torch._dynamo.config.patch(settings):
            ended = attempt(lambda: compiled(function, *inputs))
        (launcher,) = Path(folder).rglob("minifier_launcher.py")
        with mock.patch.object(sys, "argv", [str(launcher), "minify", "--no-isolate"]):
            runpy.run_path(str(launcher), run_name="__main__")
        repro = Path("repro.py").read_text()
    graph = re.search(r"    def forward\(.*?\n(?=\n?def load_args)", repro, re.DOTALL)
    return f"{ended}\n\n{graph[0].rstrip() if graph else 'no graph'}"


# --8<-- [end:minifier]


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Without what is printed and logged on the way."""
    logging.disable(logging.ERROR)
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
        yield
    logging.disable(logging.NOTSET)


# ---- NaN ------------------------------------------------------------------------------------------------------------


# --8<-- [start:nan]
def angle(a: Tensor, b: Tensor) -> Tensor:
    """Between vectors."""
    cosine = (a * b).sum(-1) / (a.norm(dim=-1) * b.norm(dim=-1))
    return cosine.acos()


def angle_clamped(a: Tensor, b: Tensor) -> Tensor:
    cosine = (a * b).sum(-1) / (a.norm(dim=-1) * b.norm(dim=-1))
    return cosine.clamp(-1, 1).acos()


# --8<-- [end:nan]


# --8<-- [start:first]
def first_not_finite(function: Callable, *inputs: Tensor) -> str:
    """The first operation of the graph whose result is not finite, and its line: operation by operation, eagerly."""
    found: list[str] = []

    class Watch(torch.fx.Interpreter):
        def run_node(self, node: torch.fx.Node) -> object:
            result = super().run_node(node)
            if isinstance(result, Tensor) and not result.isfinite().all() and not found:
                lines = [line.strip() for line in (node.stack_trace or "").splitlines() if line.strip(" ^~")]
                found.append(f"{node.name}, in the line: {lines[-1] if lines else 'unknown'}")
            return result

    def backend(graph: torch.fx.GraphModule, example_inputs: list[Tensor]) -> Callable:
        return lambda *arguments: Watch(graph).run(*arguments)

    torch.compiler.reset()
    torch.compile(function, backend=backend)(*inputs)
    return found[0] if found else "all are finite"


# --8<-- [end:first]


def parallel() -> tuple[Tensor, Tensor]:
    """Vectors that point the same way: the angle is 0."""
    a = torch.tensor([[0.0, 1, 1], [2, 2, 0], [3, 3, 4], [1, 2, 2]], dtype=torch.bfloat16)
    return a, 3 * a


# ---- slow, growing, not the same twice ------------------------------------------------------------------------------


# --8<-- [start:vitals]
def vitals(function: Callable, *batches: tuple) -> str:
    """Call it twice with each batch, compile nothing, and count: what is to be looked at where it is slow."""
    captured, ran, late = 0, 0, 0

    def backend(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable:
        nonlocal captured
        captured += 1

        def run(*arguments: Tensor) -> object:
            nonlocal ran
            ran += 1
            return graph(*arguments)

        return run

    torch.compiler.reset()
    watched = torch.compile(function, backend=backend)
    for batch in batches:
        before = captured
        watched(*batch)
        late += captured > before
    ran = 0
    for batch in batches:
        watched(*batch)
    return (
        f"{captured} graphs; {late} of {len(batches)} batches had to be compiled; {ran / len(batches):g} graphs a call"
    )


# --8<-- [end:vitals]


# --8<-- [start:slow]
def one_graph(x: Tensor, step: int) -> Tensor:
    return x.sin().cos()


def broken(x: Tensor, step: int) -> Tensor:
    x = x.sin()
    print(end="")
    return x.cos()


def broken_in_a_loop(x: Tensor, step: int) -> Tensor:
    for _ in range(2):
        x = x.sin()
        print(end="")
    return x


def step_by_name(x: Tensor, name: str) -> Tensor:
    return x + len(name)


# --8<-- [end:slow]


# --8<-- [start:random]
def dropped(x: Tensor) -> Tensor:
    return F.dropout(x, 0.5)


def seeded(run: Callable[[], Tensor]) -> Tensor:
    torch.manual_seed(0)
    return run()


def same_masks() -> Iterator[str]:
    """Which runs from one seed drop the same elements."""
    x = torch.ones(64)
    eager, once, again = (seeded(run) for run in (lambda: dropped(x), *[lambda: compiled(dropped, x)] * 2))
    yield f"compiled twice: {same(once, again)}"
    yield f"eager and compiled: {same(eager, once)}"
    fallback = seeded(lambda: compiled(dropped, x, fallback_random=True))
    yield f"eager and compiled with fallback_random: {same(eager, fallback)}"


# --8<-- [end:random]


# --8<-- [start:growth]
def growth() -> Iterator[str]:
    """What is kept: graphs by a function's code, weights by nothing, and the graph of a backward by each loss."""
    torch.compiler.reset()
    watched = torch.compile(one_graph, backend="aot_eager", dynamic=False)
    for length in range(2, 14):
        watched(torch.ones(length), 0)
        if length in (2, 9, 13):
            yield f"after {length - 1} lengths: {entries(one_graph)} graphs kept"
    del watched
    yield f"the compiled function deleted: {entries(one_graph)} graphs kept"
    torch.compiler.reset()
    yield f"torch.compiler.reset(): {entries(one_graph)} graphs kept"

    model = debugging_bugs.Block()
    weight = weakref.ref(model.up.weight)
    run = torch.compile(model, backend="aot_eager")
    losses = [run(torch.ones(2, 16)).sum() for _ in range(4)]
    yield f"4 losses in a list: {alive(BackwardCFunction)} graphs for a backward kept"
    losses = [loss.item() for loss in losses]
    yield f"4 numbers in a list: {alive(BackwardCFunction)} graphs for a backward kept"
    del model, run
    gc.collect()
    yield f"the model deleted: its weights are {'kept' if weight() is not None else 'gone'}"


def entries(function: Callable) -> int:
    return len(_debug_get_cache_entry_list(function.__code__))


def alive(kind: type) -> int:
    gc.collect()
    return sum(issubclass(type(found), kind) for found in gc.get_objects())


# --8<-- [end:growth]


def same(one: Tensor, other: Tensor) -> str:
    return "the same" if torch.equal(one, other) else "not the same"


# --8<-- [start:index]
def last(x: Tensor, index: Tensor) -> Tensor:
    return x.index_select(0, index)


# --8<-- [end:index]


def attempt(run: Callable[[], object]) -> str:
    """What a call returns, or what it raises."""
    try:
        return str(run())
    except Exception as error:  # noqa: BLE001  # whatever it raises is what is shown
        return f"{type(error).__name__}: {said(error)}"


def main() -> None:
    """Every symptom of the page."""
    print("==== tolerances")
    print("\n".join(tolerances()))

    print("==== precision")
    print(f"{'dtype':<10}{'eager':>10}{'compiled':>10}{'rounding':>10}  {'allclose':<11}rounding as eager")
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        print(precision(dtype))

    print("==== minifier")
    torch.manual_seed(0)
    print(minified(model, torch.randn(4, 4), torch.randn(4, 4)))

    print("==== nan")
    a, b = parallel()
    for name, run in (
        ("eager, bf16", lambda: angle(a, b)),
        ("compiled, bf16", lambda: compiled(angle, a, b)),
        ("eager, fp32", lambda: angle(a.float(), b.float())),
        ("eager, fp64", lambda: angle(a.double(), b.double())),
        ("compiled, rounding as eager", lambda: compiled(angle, a, b, emulate_precision_casts=True)),
        ("clamped, compiled, bf16", lambda: compiled(angle_clamped, a, b)),
    ):
        print(f"{name:<28}{run().isnan().sum()} of {len(a)} are NaN")
    print("eager in fp32, first not finite:", first_not_finite(angle, a.float(), b.float()))

    print("==== nan bisected")
    print(bisect(angle, a, b))

    print("==== index")
    x, index = torch.arange(4.0), torch.tensor([-1])
    print("eager:   ", attempt(lambda: last(x, index)))
    print("compiled:", attempt(lambda: compiled(last, x, index)))

    print("==== slow")
    x = torch.ones(4)
    for function, batches in (
        (one_graph, [(x, i) for i in range(6)]),
        (broken, [(x, i) for i in range(6)]),
        (broken_in_a_loop, [(x, i) for i in range(6)]),
        (step_by_name, [(x, "x" * i) for i in range(6)]),
    ):
        print(f"{function.__name__:<18}{vitals(function, *batches)}")

    print("==== random")
    print("\n".join(same_masks()))

    print("==== growth")
    print("\n".join(growth()))

    print("==== crash")
    print(crashed())


if __name__ == "__main__":
    main()
