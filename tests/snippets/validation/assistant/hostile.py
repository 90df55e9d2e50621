"""Factories that no tool can analyse: each has to get one line."""

import dataclasses
import itertools
import sys
import warnings

import torch
from torch import nn


class Raises(nn.Module):
    """Raises an error in its forward."""

    def __init__(self, error):
        super().__init__()
        self.error = error

    def forward(self, x):
        raise self.error


class Unsayable(Exception):
    def __str__(self):
        raise RuntimeError("no words")


class Uninitialised(nn.Module):
    def __init__(self):
        pass

    def forward(self, x):
        return x


class Unnamed(nn.Module):
    def __getattr__(self, name):
        raise RuntimeError(f"no {name}")

    def forward(self, x):
        return x


class Uncopiable(nn.Module):
    def __deepcopy__(self, memo):
        raise RuntimeError("one of a kind\nand no other")

    def forward(self, x):
        return x


class Forwardless(nn.Module):
    pass


class Recursive(nn.Module):
    def forward(self, x):
        return self(x)


EACH = itertools.count(1)


class Noisy(nn.Module):
    def forward(self, x):
        return x + next(EACH)  # a random number would now and then be the same


@dataclasses.dataclass
class Batch:
    x: torch.Tensor


class Unreadable(dict):
    def keys(self):
        raise OSError("the file is gone")

    __iter__ = keys


X = torch.ones(2, 8)
NO_FACTORY = 3


def raises():
    raise ValueError("first line\nsecond line")


def unsayable():
    raise Unsayable


def exits():
    sys.exit("no licence")


def recurses():
    return recurses()


def asserts():
    assert not X.numel()


def warns_and_raises():
    warnings.simplefilter("error")
    with warnings.catch_warnings():
        warnings.warn("old", stacklevel=1)


def wants_arguments(config):
    return config


async def asynchronous():
    return nn.Linear(8, 8), X


def generates():
    yield nn.Linear(8, 8), X


def nothing():
    return None


def only_a_tensor():
    return X


def the_class():
    return nn.Linear, X


def the_inputs_first():
    return X, nn.Linear(8, 8)


def empty():
    return ()


def no_inputs():
    return nn.Linear(8, 8)


def too_many():
    return nn.Linear(8, 8), X, X


def wrong_shape():
    return nn.Linear(8, 8), torch.ones(2, 7)


def wrong_dtype():
    return nn.Linear(8, 8), X.long()


def a_batch_as_keywords():
    return nn.Linear(8, 8), {"x": X}


def a_dataclass():
    return nn.Linear(8, 8), Batch(X)


def unreadable():
    return nn.Linear(8, 8), Unreadable(x=X)


def inputs_raise():
    return nn.Linear(8, 8), lambda: {}["batch"]


def on_meta():
    return nn.Linear(8, 8, device="meta"), X


def lazy():
    return nn.LazyLinear(8), X


def scripted():
    return torch.jit.trace(nn.Linear(8, 8), X), X


def uninitialised():
    return Uninitialised(), X


def unnamed():
    return Unnamed(), X


def uncopiable():
    return Uncopiable(), X


def forwardless():
    return Forwardless(), X


def recursive():
    return Recursive(), X


def noisy():
    return Noisy(), X


def forward_raises():
    return Raises(KeyError("batch")), X


def forward_cannot_say():
    return Raises(Unsayable()), X


def forward_exits():
    return Raises(SystemExit(3)), X
