"""All that a call leaves behind: outputs, what it wrote to, gradients, and the state of the random generators."""

import dataclasses
import pickle
import random
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from .calls import named_leaves, tensors_of
from .subject import fresh_inputs, original

Results = dict[str, Tensor]
AFTER, SECOND, RANDOM = " after the call", " of a second call", "random numbers of "


def numbered(value: Any, name: str) -> dict[str, Any]:
    """The leaves of what a module takes or gives: "output 0", "output 1.loss"."""
    if not isinstance(value, (list, tuple)) and not (hasattr(value, "to_tuple") or dataclasses.is_dataclass(value)):
        value = [value]
    found = dict(named_leaves(value, ""))
    return {f"{name} {place.lstrip('.')}": leaf for place, leaf in found.items()}


def as_tensor(leaf: Any, floating: torch.dtype) -> Tensor:
    """A result to compare. A number of Python counts as precise as the module's; a word, as its letters."""
    if isinstance(leaf, Tensor):
        leaf = leaf.detach()
        return leaf.to_dense() if leaf.layout != torch.strided or leaf.is_mkldnn else leaf
    if isinstance(leaf, (bool, int)):
        return torch.tensor(leaf) if abs(leaf) < 2**63 else as_tensor(str(leaf), floating)
    if isinstance(leaf, float):
        return torch.tensor(leaf, dtype=floating)
    if isinstance(leaf, complex):
        return torch.tensor(leaf, dtype=torch.complex128 if floating == torch.float64 else torch.complex64)
    if hasattr(leaf, "__array__"):
        return torch.as_tensor(leaf)
    text = repr(leaf) if isinstance(leaf, (str, bytes)) or leaf is None else type(leaf).__name__
    return torch.tensor(list(text.encode()), dtype=torch.uint8)


def coarsest(module: nn.Module, inputs: Any) -> torch.dtype:
    """The dtype of a module's numbers: the coarsest of its parameters and inputs."""
    tensors = (*module.parameters(), *module.buffers(), *tensors_of(inputs))
    dtypes = {one.dtype.to_real() for one in tensors if one.is_floating_point() or one.is_complex()}
    return max(dtypes, key=lambda dtype: torch.finfo(dtype).eps, default=torch.get_default_dtype())


def results_of(
    module: nn.Module,
    inputs: tuple,
    named: dict,
    again: bool | None = False,
    during: Callable[[], AbstractContextManager] = nullcontext,
) -> Results:
    """Outputs, gradients, buffers, parameters and inputs that were written to, and generators that were drawn from.

    The loss is a sum with weights that every version shares. What a module remembers in other ways shows in the
    outputs of a second call.

    Args:
        again: whether to call twice; None where the module remembers anything and can be called twice.
        during: what the calls run under.
    """
    own, floating = original(module), coarsest(module, (inputs, named))
    given, later = numbered((*inputs, named) if named else inputs, "input"), fresh_inputs(inputs, named)
    before = written_to(own, given, floating), generators(), versions(own)
    counts = {name: version(one) for name, one in own.named_parameters()}
    with during():
        returned = numbered(module(*inputs, **named), "output")
    results = {name: as_tensor(leaf, floating) for name, leaf in returned.items()}
    after = written_to(own, numbered((*inputs, named) if named else inputs, "input"), floating)
    results |= changes(before[0], after, AFTER) | changes(before[1], generators(), "")
    written = {name: one for name, one in own.named_parameters() if version(one) != counts.get(name)}
    results |= {f"parameter {name}{AFTER}": one.detach() for name, one in written.items()}
    results |= gradients(returned, own, given)
    if again or (again is None and versions(own) != before[2]):
        results = {name: result.clone() for name, result in results.items()}  # the second may write to them
        try:
            with during():
                returned = numbered(module(*later[0], **later[1]), "output")
            results |= {f"{name}{SECOND}": as_tensor(leaf, floating) for name, leaf in returned.items()}
        except Exception:  # a module may raise anything, and this one cannot be called twice
            if again:
                raise
    return results


def gradients(returned: dict[str, Any], module: nn.Module, given: dict[str, Any]) -> Results:
    """By name, of each parameter and input that wants one; no gradient is a gradient of zero."""
    tensors = [one for one in returned.values() if isinstance(one, Tensor)]
    outputs = [one for one in tensors if one.is_floating_point() or one.is_complex()]
    wanted = dict(module.named_parameters()) | {name: one for name, one in given.items() if isinstance(one, Tensor)}
    wanted = {name: one for name, one in wanted.items() if one.requires_grad}
    pairs = [(one, weight_for(one, number)) for number, one in enumerate(outputs) if one.requires_grad]
    if not pairs or not wanted:
        return {}
    found = torch.autograd.grad(
        [one for one, _ in pairs], list(wanted.values()), [weight for _, weight in pairs], allow_unused=True
    )
    return {
        f"gradient of {name}": torch.zeros_like(of) if one is None else as_tensor(one, of.dtype)
        for (name, of), one in zip(wanted.items(), found, strict=True)
    }


def weight_for(output: Tensor, number: int) -> Tensor:
    """What multiplies an output before the sum: the same in every dtype, and no constant, which norms would cancel."""
    generator = torch.Generator().manual_seed(number)
    shape = (*output.shape, 2) if output.is_complex() else output.shape
    weights = torch.randn(shape, generator=generator, dtype=torch.float32).bfloat16().float()
    weights = torch.view_as_complex(weights) if output.is_complex() else weights
    return weights.to(output.device, output.dtype)


def written_to(module: nn.Module, given: dict[str, Any], floating: torch.dtype) -> Results:
    """Copies of what a call may write to, but for parameters, which are large."""
    leaves = given | {f"buffer {name}": buffer for name, buffer in module.named_buffers()}
    return {name: as_tensor(leaf, floating).clone() for name, leaf in leaves.items()}


def changes(before: Results, after: Results, ending: str) -> Results:
    """What is another than before, or is no more."""
    gone = {name: torch.zeros(0, dtype=torch.bool) for name in before if name not in after}
    other = {name: one for name, one in after.items() if name not in before or not identical(one, before[name])}
    return {f"{name}{ending}": one.detach() for name, one in (other | gone).items()}


def identical(one: Tensor, other: Tensor) -> bool:
    """Bit by bit but for the sign of a zero; NaN is itself."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    return bool(((one == other) | (one.isnan() & other.isnan())).all())


def version(tensor: Tensor) -> int:
    """How often a tensor was written to, as far as PyTorch counts."""
    return 0 if tensor.is_inference() else tensor._version


def versions(module: nn.Module) -> list[tuple]:
    """What a module remembers from call to call: values, and of tensors which, and how often they were written to."""
    found = []
    for place, part in module.named_modules():
        own = {key: value for key, value in vars(part).items() if not key.startswith("_") and key != "training"}
        for name, leaf in named_leaves({**own, **part._buffers}, place):
            value = leaf if isinstance(leaf, (int, float, str)) else type(leaf)
            found.append((name, Held(leaf) if isinstance(leaf, Tensor) else value))
    return found


class Held:
    """A tensor by which it is and how often it was written to; held, so that no other gets its place."""

    def __init__(self, tensor: Tensor):
        self.tensor, self.version = tensor, version(tensor)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Held) and self.tensor is other.tensor and self.version == other.version

    __hash__ = None  # type: ignore[assignment]


def generators() -> Results:
    """The state of each generator of random numbers; of a GPU's, which kernels move by strides, whether it was used."""
    states = {"torch": torch.get_rng_state(), "Python": of_bytes(pickle.dumps(random.getstate()))}
    if numpy := sys.modules.get("numpy"):
        states["NumPy"] = of_bytes(pickle.dumps(numpy.random.get_state()))
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        states["the GPU"] = torch.tensor([generator.get_offset() > 0 for generator in torch.cuda.default_generators])
    return {f"{RANDOM}{name}": state for name, state in states.items()}


def of_bytes(content: bytes) -> Tensor:
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)
