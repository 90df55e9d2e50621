"""Somebody's module with the inputs of one call: run on copies only, or refused with one clear line."""

import collections
import contextlib
import copy
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from . import clock
from .calls import leaves_of, stored, tensors_of
from .lines import Line, is_library
from .settings import nothing_changed, quiet


class Refused(ValueError):
    """What was asked for cannot be done; the message says what was expected and what came."""


@dataclass
class Runs:
    """How often somebody's forward ran, and how often of that only since its calls leave more and more behind."""

    count: int = 0
    more: int = 0


@dataclass(frozen=True, eq=False)  # tensors do not compare to one truth
class Subject:
    """A module and the inputs of one call of it.

    Attributes:
        runs: counted for the module and all of its copies together.
        before: called before each run.
    """

    module: nn.Module
    inputs: tuple
    named: dict[str, Any]
    runs: Runs = field(default_factory=Runs)
    before: Callable[[], object] = clock.nothing

    @property
    def device(self) -> torch.device:
        tensors = (*self.module.parameters(), *self.module.buffers(), *tensors_of((self.inputs, self.named)))
        return tensors[0].device if tensors else torch.device("cpu")

    @property
    def name(self) -> str:
        return type(original(self.module)).__name__

    def __call__(self) -> Any:
        """Runs the module as it is."""
        self.runs.count += 1
        self.before()
        return self.module(*self.inputs, **self.named)

    @property
    def differentiated(self) -> list[Tensor]:
        """The parameters and inputs that want a gradient."""
        every = (*self.module.parameters(), *tensors_of((self.inputs, self.named)))
        return [one for one in every if one.requires_grad]

    def fresh(self) -> "Subject":
        """A copy to run once: the caller's module, its buffers, its attributes and the inputs stay as they are."""
        return Subject(copied(self.module), *fresh_inputs(self.inputs, self.named), self.runs)

    def again(self) -> "Subject":
        """A copy that can run many times: what it remembers of a call is forgotten before the next."""
        twin = self.fresh()
        return replace(twin, before=forgetting(twin.module))


def forgetting(module: nn.Module) -> Callable[[], None]:
    """What puts back, from the second call on, whatever the first has bound, put into a container, or given a graph."""
    kept = [(own, dict(own), {key: held(value) for key, value in own.items()}) for own in states(module)]
    changed: list[tuple[dict, str, dict, dict]] = []
    calls = 0

    def forget() -> None:
        nonlocal calls
        calls += 1
        for own, before, contents in kept if calls == 2 else ():
            for key in {*own, *before}:
                if not key.startswith("_") and not unchanged(own, key, before, contents):
                    changed.append((own, key, before, contents))
        for own, key, before, contents in changed if calls > 1 else ():
            if key not in before:
                own.pop(key, None)
                continue
            own[key] = copy.copy(contents[key]) if isinstance(contents[key], CONTAINERS) else before[key]
            if isinstance(own[key], Tensor) and own[key].grad_fn is not None:
                own[key].detach_()

    return forget


CONTAINERS = (list, dict, set, collections.deque)


def states(module: nn.Module) -> list[dict]:
    """Where a module and its parts hold what they remember."""
    return [own for part in original(module).modules() for own in (vars(part), part._buffers)]


def held(value: Any) -> Any:
    return copy.copy(value) if isinstance(value, CONTAINERS) else value


def unchanged(own: dict, key: str, before: dict, contents: dict) -> bool:
    """Whether an attribute is the same object, with the same in it."""
    value = own.get(key)
    if key not in own or key not in before or value is not before[key]:
        return False
    if isinstance(value, CONTAINERS):
        pairs = [list(one.items()) if isinstance(one, dict) else list(one) for one in (value, contents[key])]
        flat = [[each for pair in one for each in (pair if isinstance(pair, tuple) else (pair,))] for one in pairs]
        return len(flat[0]) == len(flat[1]) and all(one is other for one, other in zip(*flat, strict=True))
    return not (isinstance(value, Tensor) and value.grad_fn is not None)


def original(module: nn.Module) -> nn.Module:
    """The module that `torch.compile` wrapped, or the module itself."""
    return getattr(module, "_orig_mod", module)


def copied(module: nn.Module) -> nn.Module:
    """A deep copy, without the gradients.

    Raises:
        Refused: the module does not let itself be copied.
    """
    kept = [stored(value) for part in original(module).modules() for value in vars(part).values()]
    try:
        twin = deep(original(module), kept)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # noqa: BLE001  # attributes of any kind raise anything
        raise Refused(
            f"{type(module).__name__} cannot be copied, and the tool runs copies only: {one_line(error)}"
        ) from None
    for parameter in twin.parameters():
        parameter.grad = None
    return twin


def deep(value: Any, holds: Any) -> Any:
    """A deep copy, with results of earlier calls, which do not copy themselves, cut off from their graphs."""
    tensors = [one for one in tensors_of(holds) if one.grad_fn is not None]
    memo: dict[int, Any] = {id(one): one.detach().clone() for one in tensors}
    with torch.no_grad():
        return copy.deepcopy(value, memo)


def fresh_inputs(inputs: tuple, named: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
    """Copies of the tensors and of all else that lets itself be copied."""

    def fresh(leaf: Any) -> Any:
        if isinstance(leaf, Tensor):
            return leaf.detach().clone().requires_grad_(leaf.requires_grad)
        try:
            return deep(leaf, leaves_of(leaf))
        except Exception:  # noqa: BLE001  # an object may refuse in any way, and is then passed as it is
            return leaf

    return tree_map(fresh, (tuple(inputs), dict(named)))


def check(subject: Subject) -> None:
    """Raise a Refused for what cannot be analysed: no module, or none that could run on its inputs."""
    if not isinstance(subject.module, nn.Module):
        raise Refused(f"expected a torch.nn.Module, got {type(subject.module).__name__}")
    with refusing(type(subject.module).__name__):
        check_kind(subject)
        check_devices(subject)


def same(first: list[Tensor], second: list[Tensor]) -> bool:
    return len(first) == len(second) and all(map(alike, first, second))


def check_same(subject: Subject, first: list[Tensor], second: list[Tensor]) -> None:
    """Raise a Refused if two runs with the same seed and the same inputs differ."""
    if not same(first, second):
        raise Refused(
            f"{subject.name} is not deterministic: two runs with the same seed and inputs differ, "
            "so nothing that is tried could be checked. Does it read a clock, memory that was never written, or "
            "a generator of its own?"
        )


def check_kind(subject: Subject) -> None:
    """Raise a Refused for a module in which there is nothing to run line by line."""
    if isinstance(original(subject.module), torch.jit.ScriptModule):
        raise Refused(f"{subject.name} is TorchScript, which has no lines of Python: give the module it was made from")
    if any(nn.parameter.is_lazy(one) for one in subject.module.parameters()):
        raise Refused(f"{subject.name} has parameters without a shape yet: call it once before")
    if subject.device.type == "meta":
        raise Refused(f"{subject.name} is on meta, where nothing is computed: put it and its inputs on a CPU or a GPU")


def check_devices(subject: Subject) -> None:
    """Raise a Refused if the tensors are not all on one device (tensors of one number may be on the CPU)."""
    home = subject.device
    places = {f"input {number}": tensor for number, tensor in enumerate(tensors_of((subject.inputs, subject.named)))}
    places |= dict(subject.module.named_parameters())
    for name, tensor in places.items():
        if tensor.device != home and tensor.dim():
            raise Refused(f"{name} is on {tensor.device}, and the module is on {home}: put both on one device")


def outputs(subject: Subject) -> list[Tensor]:
    """The tensors that one call gives, from copies and a fixed seed."""
    with nothing_changed(), quiet(), refusing(subject.name):
        return detached(subject.fresh()())


def detached(output: Any) -> list[Tensor]:
    return [one.detach() for one in tensors_of(leaves_of(output))]


@contextlib.contextmanager
def refusing(name: str) -> Iterator[None]:
    """One clear message where somebody's module raises or memory ends."""
    try:
        yield
    except Refused:
        raise
    except (Exception, SystemExit) as error:  # noqa: BLE001  # a module may raise anything
        if isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in one_line(error):  # the second: a CPU
            raise Refused(f"out of memory while {name} ran: take smaller inputs. {one_line(error)}") from None
        raise Refused(f"{name} raises {type(error).__name__}{where(error)}: {one_line(error)}") from None


def alike(one: Tensor, other: Tensor) -> bool:
    """Whether two results are the same but for rounding: sums on a GPU may come in any order."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if not (one.is_floating_point() or one.is_complex()):
        return bool((one == other).all())
    scale = one.abs().nan_to_num(0, 0, 0).max().item() if one.numel() else 0.0
    return torch.allclose(one, other, rtol=1e-2, atol=1e-3 * scale + 1e-12, equal_nan=True)


def where(error: BaseException) -> str:
    """The author's line that raised: " at model.py:12"."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not is_library(frame.filename)]
    return f" at {Line(frames[-1].filename, frames[-1].lineno or 0)}" if frames else ""


def one_line(error: object) -> str:
    try:
        text = str(error).strip()
    except Exception:  # noqa: BLE001  # somebody's error may be unable to say itself
        text = ""
    return text.splitlines()[0][:300] if text else "no message"


def loss_of(output: Any) -> Tensor | None:
    """One number to differentiate: the output's `loss` where there is one, else the mean of every floating result."""
    loss = output.get("loss") if isinstance(output, dict) else getattr(output, "loss", None)
    if isinstance(loss, Tensor):
        return loss.sum()
    floats = [leaf for leaf in tensors_of(leaves_of(output)) if leaf.requires_grad and leaf.is_floating_point()]
    return (
        sum((leaf.float().mean() for leaf in floats), start=torch.zeros((), device=floats[0].device))
        if floats
        else None
    )


def differentiate(twin: Subject, loss: Tensor | None) -> bool:
    """Backward from a loss, where it has a gradient and something wants one. Returns whether it ran."""
    wanted = twin.differentiated
    if loss is None or not loss.requires_grad or not wanted:
        return False
    torch.autograd.grad(loss, wanted, allow_unused=True)
    return True


Way = tuple[tuple[int, ...], int, tuple[int, int]]  # dimensions, their size, and two others


def other_sizes(subject: Subject) -> list[tuple[Subject, Subject]]:
    """The same call with other sizes: changed, and changed again. First all that vary at once, then one of them.

    A dimension that several inputs share is changed in all of them; the numbers are those of the inputs, repeated.
    Whether the module takes them shows when it runs.
    """
    tensors = [tensor for tensor in tensors_of((subject.inputs, subject.named)) if tensor.dim()]
    built = lengths_of(subject.module)
    ways = ways_of_graph(tensors) or [way for way in ways_of_batch(tensors) if way[0] != (1,) or way[1] not in built]

    def changed(which: list[Way], turn: int) -> Subject:
        found = subject
        for dims, size, others in which:
            for dim in dims:
                found = with_size(found, dim, size, others[turn])
        return found

    together = [ways] if len(ways) > 1 else []
    return [(changed(which, 0), changed(which, 1)) for which in [*together, *([way] for way in ways)]]


def lengths_of(module: nn.Module) -> set[int]:
    """How many there are of what a module holds as a list, such as its heads: no call has more or fewer of them."""
    parts = [*original(module).modules()]
    lists = (one for part in parts for name, one in vars(part).items() if not name.startswith("_"))
    held = (one for part in parts for one in part.children() if isinstance(one, HOLDERS))
    return {len(one) for one in (*(one for one in lists if isinstance(one, (list, tuple))), *held)}


HOLDERS = (nn.ModuleList, nn.ModuleDict, nn.ParameterList, nn.ParameterDict)


def ways_of_batch(tensors: list[Tensor]) -> list[Way]:
    """Batch, length, height and width."""
    ways: list[Way] = []
    for dim in (0, 1, 2, 3):
        sizes = [tensor.shape[dim] for tensor in tensors if is_size(tensor, dim)]
        size = max(set(sizes), key=sizes.count, default=0)
        # Fewer where there are some to spare: what fitted into memory still fits, and positions do not run out.
        others = (size - 1, size - 2) if dim == 1 or (dim == 0 and size >= 4) else (size + 1, size + 2)
        if size and min(others) >= 2:
            ways.append(((dim,), size, others))
    return ways


def ways_of_graph(tensors: list[Tensor]) -> list[Way]:
    """Edges and nodes, where integers of another length than the rest index its rows; nothing else has such inputs.

    There are more of them each time, since an index has to stay within what it indexes.
    """
    whole = [one for one in tensors if one.dtype in (torch.int32, torch.int64)]
    indices = [one for one in whole if one.dim() == 1 or (one.dim() == 2 and 2 in one.shape and max(one.shape) > 2)]
    edges = dict.fromkeys(max(one.shape) for one in indices)
    rows = dict.fromkeys(len(one) for one in tensors if one.is_floating_point())
    if not edges or len(set(map(len, tensors))) == 1:
        return []
    return [((0, 1), size, (size + 1, size + 2)) for size in dict.fromkeys([*edges, *rows]) if size > 2]


def is_size(tensor: Tensor, dim: int) -> bool:
    """Whether a dimension counts examples or positions: the first does, and the second of ids or rows of features."""
    if dim >= 2:  # height and width of pictures
        return tensor.dim() == 4 and tensor.is_floating_point()
    return tensor.dim() > 0 if dim == 0 else tensor.dim() == 3 or (tensor.dim() == 2 and not tensor.is_floating_point())


def with_size(subject: Subject, dim: int, size: int, other: int) -> Subject:
    """The call with `other` instead of `size` along a dimension."""

    def resize(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor) or not is_size(leaf, dim) or leaf.shape[dim] != size:
            return leaf
        index = torch.arange(other, device=leaf.device) % size
        return leaf.detach().index_select(dim, index).requires_grad_(leaf.requires_grad)

    inputs, named = tree_map(resize, (subject.inputs, subject.named))
    return replace(subject, inputs=inputs, named=named)
