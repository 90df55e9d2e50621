"""Sizes, lists and strides that compile again in each call, before and after the fix."""

from collections.abc import Callable

import torch

from snippets.compiler.recompilation_specialised import double, total


# --8<-- [start:sizes]
def sizes_before(compile: Callable) -> None:
    compiled = compile(double, dynamic=False)
    for length in range(5, 11):
        compiled(torch.ones(length))


def sizes_after(compile: Callable) -> None:
    compiled = compile(double)
    for length in range(5, 11):
        x = torch.ones(length)
        torch._dynamo.mark_dynamic(x, 0, min=2, max=1024)
        compiled(x)


# --8<-- [end:sizes]
# --8<-- [start:one]
def one_before(compile: Callable) -> None:
    compiled = compile(double)
    for batch in (8, 6, 1, 0):
        compiled(torch.ones(batch))


def one_after(compile: Callable) -> None:
    compiled = compile(double)
    for batch in (8, 6, 1, 0):
        x = torch.ones(batch)
        torch._dynamo.decorators.mark_unbacked(x, 0)
        compiled(x)


# --8<-- [end:one]
# --8<-- [start:list]
def list_before(compile: Callable) -> None:
    compiled = compile(total)
    for length in range(2, 8):
        compiled([torch.ones(4)] * length)


def list_after(compile: Callable) -> None:
    compiled = compile(lambda stacked: stacked.sum(0))
    for length in range(2, 8):
        compiled(torch.stack([torch.ones(4)] * length))


# --8<-- [end:list]
# --8<-- [start:strides]
def strides_before(compile: Callable) -> None:
    compiled = compile(double)
    for x in (torch.ones(4, 6), torch.ones(6, 4).t(), torch.ones(4, 6)[:, ::2]):
        compiled(x)


def strides_after(compile: Callable) -> None:
    compiled = compile(double, dynamic=True)
    for x in (torch.ones(4, 6), torch.ones(6, 4).t(), torch.ones(4, 6)[:, ::2]):
        compiled(x.contiguous())


# --8<-- [end:strides]
