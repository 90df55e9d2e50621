"""Which code makes the graph break whose address ends in gb0124.html? Each id that people meet, from a few lines.

Run `python -m snippets.compiler.graph_breaks_by_id`.
"""

import copy
import re
import threading
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from snippets.compiler.graph_breaks import find
from snippets.compiler.graph_breaks_mended import make_x, twelve

ADDRESS = re.compile(r"/gb(\d{4})\.html")


# --8<-- [start:ids]
def ids(function: Callable, *inputs: object) -> list[tuple[str, str]]:
    """For each break that Dynamo logs, the id in its address and its first words; or those of the error."""
    try:
        log = find(function, *inputs).log
    except torch._dynamo.exc.TorchDynamoException as error:
        log = [str(error)]
    return [(f"gb{ADDRESS.findall(entry)[0]}", words_of(entry)) for entry in log]


def words_of(entry: str) -> str:
    """The line before the explanation, without what is indented: the words of PyTorch's registry."""
    lines = [line for line in entry.partition("\n  Explanation:")[0].splitlines() if line and line[0] != " "]
    return lines[-1].removeprefix("Graph Break Reason: ")


# --8<-- [end:ids]


@torch.compiler.disable
def left_out(x: Tensor) -> Tensor:
    return x + 1


def asserting(x: Tensor) -> Tensor:
    x = x.sin()
    assert x.isfinite().all(), f"not finite: {x}"
    return x.cos()


def asserting_plainly(x: Tensor) -> Tensor:  # here, since pytest rewrites the assertions of tests
    x = x.sin()
    assert x.isfinite().all()
    assert x.isfinite().all(), "not finite"
    return x.cos()


leaf = torch.ones(8, requires_grad=True)
diagonal = torch.eye(8).to_sparse()
lstm = nn.LSTM(8, 8, batch_first=True)
hooked = nn.Linear(8, 8)
hooked.register_full_backward_hook(lambda module, grads, outputs: None)
lock = threading.Lock()
optimizer = torch.optim.SGD([leaf])
leaf.grad = torch.ones(8)
ragged = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])


# --8<-- [start:others]
OTHERS: dict[str, Callable[[Tensor], object]] = {  # besides the twelve of the page on graph breaks
    "print": lambda x: (x.sin(), print(end=""), x.cos()),
    "graph_break": lambda x: (x.sin(), torch._dynamo.graph_break(), x.cos()),
    "disable": lambda x: left_out(x.sin()),
    "mask": lambda x: x.sin()[x > 0] * 2,
    "ctc_loss": lambda x: F.ctc_loss(x.log_softmax(-1), torch.ones(2, dtype=torch.long), (len(x),), (2,)),
    "one_hot": lambda x: F.one_hot(x.long().abs()),
    "equal": lambda x: x + torch.equal(x, x),
    "assert": asserting,
    "repr": lambda x: (x.sin(), repr(x), x.cos()),
    "deepcopy": lambda x: copy.deepcopy(x.sin()) + 1,
    "data_ptr": lambda x: x + x.data_ptr(),
    "is_inference": lambda x: x + x.is_inference(),
    "resize_": lambda x: x.sin().resize_(2, 2),
    "backward": lambda x: ((x * leaf).sum().backward(), x.cos()),
    "grad": lambda x: torch.autograd.grad((x * leaf).sum(), leaf)[0] + 1,
    "retain_grad": lambda x: (x * leaf).retain_grad(),
    "tensor hook": lambda x: (x * leaf).register_hook(lambda grad: grad),
    "backward hook": lambda x: hooked(x) * 2,
    "requires_grad = True": lambda x: setattr(x, "requires_grad", True),
    "requires_grad=True": lambda x: x + torch.zeros(8, requires_grad=True),
    "Parameter": lambda x: x + nn.Parameter(torch.zeros(8)),
    "LSTM": lambda x: lstm(x[None])[0],
    "sparse": lambda x: torch.sparse.mm(diagonal, x.mT),
    "to_sparse": lambda x: x.sin().to_sparse().to_dense(),
    "nested tensor": lambda x: ragged * 2,
    "optimizer.step": lambda x: (optimizer.step(), x.sin()),
    "zero_grad": lambda x: (optimizer.zero_grad(), x.sin()),
    "C method": lambda x: (x.sin(), lock.locked(), x.cos()),
    "open": lambda x: (x.sin(), open("/dev/null").close(), x.cos()),
    "cond": lambda x: torch.cond(x.sum() > 0, lambda h: h, lambda h: h + 1, (x,)),
    "shapes": lambda x: x @ x,
}
# --8<-- [end:others]


def main() -> None:
    """Print the id of the first break of each."""
    kinds = {name: (kind.before, kind.inputs()) for name, kind in twelve().items()}
    kinds |= {name: (function, (make_x(),)) for name, function in OTHERS.items()}
    found = {name: ids(function, *inputs)[0] for name, (function, inputs) in kinds.items()}
    print("==== ids")
    for name, (number, words) in sorted(found.items(), key=lambda item: item[1]):
        print(f"{number}  {name:<20}  {words}")


if __name__ == "__main__":
    main()
