"""Nothing of torch's settings is changed, whatever somebody's module does while it runs."""

import contextlib
import io
import random
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch

AFTERWARDS: list[Callable[[], None]] = []  # called after each run: what puts back other things than settings


# --8<-- [start:unchanged]
@contextlib.contextmanager
def nothing_changed(seed: int = 0) -> Iterator[None]:
    """Run under a fixed seed; afterwards random numbers, modes and settings are as they were, whatever ran."""
    before = [(get, put, get()) for get, put in settings()]
    devices = (
        list(range(torch.cuda.device_count())) if torch.cuda.is_available() and torch.cuda.is_initialized() else []
    )
    state = random.getstate()
    numpy = sys.modules.get("numpy")
    numpy_state = numpy.random.get_state() if numpy else None
    try:
        with torch.random.fork_rng(devices), warnings.catch_warnings(), torch.autograd.set_grad_enabled(True):
            warnings.simplefilter("ignore")
            seeded(seed)
            yield
    finally:
        for restore in AFTERWARDS:
            restore()
        random.setstate(state)
        if numpy:
            numpy.random.set_state(numpy_state)
        for get, put, value in before:
            if get() != value:
                put(value)


# --8<-- [end:unchanged]


Setting = tuple[Callable[[], Any], Callable[[Any], Any]]


def attribute(owner: Any, name: str) -> Setting:
    return (lambda: getattr(owner, name)), (lambda value: setattr(owner, name, value))


def precision_settings() -> list[Setting]:
    """How fp32 is multiplied, by the old name and by the new ones, which a process may use instead.

    The old name sets the new ones too, so it is put back first. It cannot be read where both were used.
    """

    def get() -> str | None:
        try:
            return torch.get_float32_matmul_precision()
        except RuntimeError:
            return None

    def put(value: str | None) -> None:
        if value is not None:
            torch.set_float32_matmul_precision(value)

    backends = torch.backends
    owners = (backends.cuda.matmul, backends.cudnn.conv, backends.cudnn.rnn, backends.mkldnn.matmul)
    return [(get, put), *(attribute(owner, "fp32_precision") for owner in owners)]


def products_in_tf32() -> bool:
    """Whether products of fp32 on a GPU may be TF32."""
    own = torch.backends.cuda.matmul.fp32_precision
    return (torch.backends.fp32_precision if own == "none" else own) not in ("none", "ieee")


def settings() -> list[Setting]:
    """What of torch's global state a module may change, by how to read it and how to put it back."""
    return [
        (torch.get_default_dtype, torch.set_default_dtype),
        *precision_settings(),
        (torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode),
        (torch.get_num_threads, torch.set_num_threads),
        (torch.is_anomaly_enabled, torch.autograd.set_detect_anomaly),
        (torch.is_autocast_enabled, torch.set_autocast_enabled),
        *(attribute(torch.backends.cudnn, name) for name in ("benchmark", "deterministic", "enabled")),
        attribute(torch.distributions.Distribution, "_validate_args"),  # Dynamo's first call turns it off
    ]


def seeded(seed: int = 0) -> None:
    """The same random numbers from here on, wherever they come from."""
    random.seed(seed)
    torch.manual_seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """What a module prints while it is analysed is not for the terminal."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        yield
