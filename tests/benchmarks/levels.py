"""The cases of components at several levels: the points, and all levels at one of them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

from snippets.patterns import levels as page
from snippets.patterns.levels import in_float64
from tests.benchmarks import wrong as wrongly
from tests.benchmarks.case import Call, Point, Results, Variant, Workload

Wrong = Mapping[str, Mapping[str, page.Function]]  # by component and by what is wrong


def points(device: torch.device, components: Sequence[page.Component], names: Mapping[str, str]) -> Iterator[Point]:
    """Each component at its typical, its large and its small shape, there by the host's clock, too.

    Forward alone and with the backward; at the large shape both only. At the typical shape the code of level 0 is
    compiled as well.

    Args:
        names: how pages call components, or one at a size ("small rotary"), where they have other names there.
    """
    on_a_cpu = ("level-0", "level-1", "level-3")
    for component in components:
        part, own = component.name, tuple(f"level-{level}" for level in component.levels)
        for size in ("typical", "large", "small") if device.type == "cuda" else ("small",):
            shape = dict(zip(component.sizes, component.shapes[size], strict=True))
            called = names.get(f"{size} {part}") or f"{size} {names.get(part, part)}".removeprefix("typical ")
            for direction in ("forward", "both") if component.gradients else ("forward",):
                name = called if direction == "both" else f"{called} forward"
                if device.type == "cpu":
                    yield Point(shape, "float32", direction, ("calls",), on_a_cpu, part)
                elif size == "small":
                    modes = ("calls", "device") if direction == "forward" else ("device", "calls")
                    yield Point(shape, "bfloat16", direction, modes, own, part, name)
                elif size == "typical" or direction == "both" or not component.gradients:
                    variants = (*own, "level-0-compiled") if size == "typical" else own
                    yield Point(shape, "bfloat16", direction, variants=variants, part=part, name=name)


def prepare(
    point: Point,
    device: torch.device,
    components: Sequence[page.Component],
    wrong: Wrong,
    flops: Callable[[str, int], int] = lambda name, elements: 10 * elements,
) -> Workload:
    """All levels of a component at a point.

    Args:
        wrong: functions that the check must refuse, beside one that is 5% off.
        flops: of a forward, from the component's name and the number of elements of its first output.
    """
    sizes, training = point.shape.values(), point.direction == "both"
    component = named_part(components, point)
    torch._dynamo.reset()  # code that is compiled for one point is not looked through at the next
    inputs = component.inputs(tuple(sizes), getattr(torch, point.dtype), device)
    gradients = component.gradients if training else ()
    outputs = page.forward(component.reference, inputs)
    incoming = tuple(torch.randn_like(y) for y in outputs) if training else ()

    def call(function: page.Function) -> Call:
        return partial(page.step, function, page.trained(inputs, gradients), gradients, incoming)

    def results(returned: Any) -> Results:
        return page.named(returned, gradients)

    @cache
    def reference() -> Results:
        wide = tuple(t.double() for t in incoming)
        return results(page.step(component.reference, page.trained(in_float64(inputs), gradients), gradients, wide))

    def spoilt(function: page.Function) -> Callable[[Results], Results]:
        return lambda baseline: results(call(function)())

    makers = {f"level-{level}": make for level, make in component.levels.items()}
    makers["level-0-compiled"] = lambda: page.compiled(component.levels[0]())

    def with_a_wrong_gradient(baseline: Results) -> Results:
        return {**baseline, f"{gradients[-1]}.grad": 1.05 * baseline[f"{gradients[-1]}.grad"]}

    functions = {"5% too large": wrongly.scaled(component.reference), **wrong[component.name]}
    not_right = {what: spoilt(function) for what, function in functions.items()}
    if training:
        not_right["the last gradient 5% too large"] = with_a_wrong_gradient
    read = sum(t.nbytes for t in inputs.values() if isinstance(t, Tensor))
    written, grads = sum(t.nbytes for t in outputs), sum(inputs[name].nbytes for name in gradients)
    return Workload(
        variants={name: Variant(partial(_built, call, make), results) for name, make in makers.items()},
        baseline=f"level-{component.yardstick}",
        reference=reference,
        bytes_read=2 * read + written if training else read,
        bytes_written=written + grads,
        flops=flops(component.name, outputs[0].numel()) * (3 if training else 1),
        mix="triad" if training else "copy",
        largest_summands=page.largest_summands(reference(), inputs),
        wrong=not_right,
    )


def named_part(components: Sequence[page.Component], point: Point) -> page.Component:
    """The component that runs at a point."""
    return next(component for component in components if component.name == point.part)


def _built(call: Callable[[page.Function], Call], make: Callable[[], page.Function]) -> Call:
    """The call, after three: TorchScript watches the first ones, and generates code after them."""
    ready = call(make())
    for _ in range(3):
        ready()
    return ready
