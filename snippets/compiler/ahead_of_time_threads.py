"""Several threads call one compiled model, as the workers of a web server do: does each get its own result?

Run `python -m snippets.compiler.ahead_of_time_threads`; it needs a C++ compiler or a GPU.
"""

from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor, nn


# --8<-- [start:threads]
def warm(model: nn.Module, x: Tensor) -> nn.Module:
    """The compiled model, after its first call: before other threads call it."""
    compiled = torch.compile(model)
    with torch.inference_mode():
        compiled(x)
    return compiled


def answer(compiled: nn.Module, x: Tensor) -> Tensor:
    """What each thread calls."""
    with torch.inference_mode():  # per thread: around the pool it would have no effect
        return compiled(x)


# --8<-- [end:threads]


def serve(compiled: nn.Module, requests: list[Tensor], threads: int = 8) -> list[Tensor]:
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(lambda x: answer(compiled, x), requests))


def main() -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 8)).to(device).eval()
    requests = [torch.randn(16, 64, device=device) for _ in range(200)]
    compiled = warm(model, requests[0])
    with torch.compiler.set_stance("fail_on_recompile"):
        answers = serve(compiled, requests)
    with torch.inference_mode():
        torch.testing.assert_close(answers, [model(x) for x in requests], rtol=1e-4, atol=1e-4)
    print(f"{len(answers)} calls from eight threads: right, without a recompilation")


if __name__ == "__main__":
    main()
