"""How long a server of a small decoder takes to start on a GPU: eager, with `torch.compile`, from a package.

Run `python -m snippets.compiler.ahead_of_time_gpu`. Without a GPU it does nothing: `ahead_of_time` also runs on a CPU.
"""

import sys
import tempfile
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from snippets.compiler import ahead_of_time_linked, ahead_of_time_model
from snippets.compiler.ahead_of_time_model import build, make_input, make_model
from snippets.compiler.ahead_of_time_serve import alone, serve
from snippets.compiler.ahead_of_time_serve_cpp import compile_server
from snippets.compiler.ahead_of_time_starts import ROOT, STAGES, close, serve_source, started

LAYERS = 4


def main() -> None:
    if not torch.cuda.is_available():
        print("a start on a GPU needs a GPU")
        return
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor(2) as pool:
        folder = Path(name)
        server = pool.submit(compile_server, folder)
        static = pool.submit(ahead_of_time_linked.tried, True, folder)
        package, given, weights = folder / "model.pt2", folder / "given.pt", folder / "weights.pt"
        model, x = make_model(), make_input(3)
        torch.save(model.state_dict(), weights)
        torch.save(x.cpu(), given)
        with torch.inference_mode():
            expected = model(x).cpu()
        with torch._inductor.config.patch({"cpp.vec_isa_ok": True}):  # what is built for a GPU does not depend on it
            build(model, package)
        program, linked = server.result(), static.result()

        print("==== starts")
        source = [sys.executable, "-m", "snippets.compiler.ahead_of_time_gpu"]
        files = [str(package), str(given), str(folder / "returned.pt")]
        compiles, serves = [*source, "compile", str(weights), *files[1:]], alone(serve, *files)
        ways = {  # what is run, where, and with which cache folder: the second time it is warm
            "eager": ([*source, "eager", str(weights), *files[1:]], ROOT, "none"),
            "torch.compile, cold": (compiles, ROOT, "compile"),
            "torch.compile, warm": (compiles, ROOT, "compile"),
            "package, cold": (serves, folder, "package"),
            "package, warm": (serves, folder, "package"),
            "package, bare": (alone(serve, *files, "bare"), folder, "bare"),
            "package, C++": ([str(program), *files], folder, "server"),
        }
        heads = (*STAGES, "in all", "later call", "agrees")
        print(f"{f'{LAYERS} layers':<22}" + "".join(f"{head:>12}" for head in heads))
        for what, (command, where, cache) in ways.items():
            stages, later = started(command, where, folder / cache)
            cells = "".join(f"{seconds:>10.2f} s" for seconds in (*stages.values(), sum(stages.values())))
            print(f"{what:<22}{cells} {later * 1e3:>8.3f} ms {close(folder / 'returned.pt', expected):>11}")
        print("==== linked")
        print(f"{'-static-libstdc++':<22}{linked}")


if __name__ == "__main__":
    ahead_of_time_model.LAYERS = LAYERS
    if sys.argv[1:2] in (["eager"], ["compile"]):
        serve_source(*sys.argv[1:])
    else:
        main()
