"""What torch does on the way of each compilation or seed, and no test looks at, is left out: tests take less time.

Nothing that a compiler makes is another. Processes with an environment of their own do without this.
"""

import copy
import sys
import types


def lighten() -> None:
    """To be called once torch, and Dynamo if anything uses it, are imported."""
    import torch

    if "torch._dynamo.utils" in sys.modules:
        from torch._dynamo import bytecode_transformation, guards, utils

        instruction = bytecode_transformation.Instruction
        instruction.__hash__ = object.__hash__  # by identity, too, but without a call of Python for each look-up
        instruction.__eq__ = object.__eq__
        instruction.__deepcopy__ = deepcopy
        guards.profile_guard_manager = lambda *_: 0.0  # flushes a cache for every graph, to log a time
        for name in ("_get_dynamo_config_for_logging", "_scrubbed_inductor_config_for_logging"):
            setattr(utils, name, lambda: None)  # a copy of all options, as JSON, for every graph
    if not torch.cuda.is_available():
        for device in (torch.cuda, torch.xpu, torch.mtia):  # each keeps where every seed was set
            device.traceback = types.SimpleNamespace(format_stack=list)


def deepcopy(instruction: object, memo: dict):
    """A copy of an instruction for a resume function, whose other parts cannot change."""
    made = memo[id(instruction)] = copy.copy(instruction)
    made.target, made.exn_tab_entry = (
        copy.deepcopy(part, memo) for part in (instruction.target, instruction.exn_tab_entry)
    )
    return made
