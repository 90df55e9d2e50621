"""What tests of several modules compare before and after."""

import logging
import random

import torch
from torch import nn

from snippets.validation.assistant.settings import settings


def global_state():
    """What of the process a tool may change by mistake."""
    return {
        "random": random.getstate(),
        "torch random": torch.get_rng_state().tolist(),
        "settings": [get() for get, _ in settings()],
        "grad": torch.is_grad_enabled(),
        "dynamo": (torch._dynamo.config.recompile_limit, torch._dynamo.config.suppress_errors),
        "artifacts": set(torch._logging._internal.log_state.artifact_names),
        "logs": {
            name: (logger.level, list(logger.handlers))
            for name in ("torch", "torch._dynamo", "torch._dynamo.guards.__recompiles")
            for logger in [logging.getLogger(name)]
        },
        "modes": (torch._C._len_torch_dispatch_stack(), torch._C._len_torch_function_stack()),
        "hooks": len(nn.modules.module._global_forward_hooks),
    }
