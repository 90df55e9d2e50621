"""A package made by AOTInductor: built, looked into, served without the model's source in Python and in C++, and timed.

Run `python -m snippets.compiler.ahead_of_time`. It needs a C++ compiler, also where there is a GPU.
"""

import math
import re
import subprocess
import sys
import tempfile
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from snippets.compiler.ahead_of_time_model import DEVICE, build, contents, make_input, make_model
from snippets.compiler.ahead_of_time_serve import reports_no_source, run_alone, serve
from snippets.compiler.ahead_of_time_serve_cpp import compile_server
from snippets.compiler.ahead_of_time_starts import close, serve_source, starts
from snippets.compiler.ahead_of_time_weights import weights_apart
from snippets.compiler.ahead_of_time_wrong import Head, build_lost, wrong_inputs


# --8<-- [start:across]
def across(package: Path, other: str) -> str:
    """Load the package with another Python, which may have another version of PyTorch, and call it."""
    code = (
        "import sys, torch\n"
        "model = torch._inductor.aoti_load_package(sys.argv[1])\n"
        "x = torch.load(sys.argv[2]).to(model.get_metadata()['AOTI_DEVICE_KEY'])\n"
        "torch.save(model(x).cpu(), sys.argv[3])\n"
        "print(torch.__version__)"
    )
    given, returned = package.with_name("given.pt"), package.with_name("across.pt")
    command = [other, "-I", "-c", code, str(package), str(given), str(returned)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() or done.stderr.strip().splitlines()[-1]


# --8<-- [end:across]


def main(other: str = sys.executable) -> None:
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor(1) as pool:
        folder = Path(name)
        compiled = pool.submit(compile_server, folder)
        package, lost = folder / "model.pt2", folder / "lost.pt2"
        given, weights = folder / "given.pt", folder / "weights.pt"
        model, x = make_model(), make_input(3)
        torch.save(model.state_dict(), weights)
        torch.save(x.cpu(), given)
        with torch.inference_mode():
            expected = model(x).cpu()
        began = time.time()
        build(model, package)
        built = time.time() - began
        head = Head().to(DEVICE)
        torch.save(head.state_dict(), folder / "head.pt")
        build_lost(head, lost)

        print("==== starts")
        files = [str(package), str(given), str(folder / "returned.pt")]
        in_all = starts(folder, str(weights), files, str(compiled.result()), expected)

        print("==== tried")
        for cache in ("package", "bare", "server"):
            print(f"{cache:<12}compiled while loading: {len(list((folder / cache).rglob('*.so')))} programs")
        done = run_alone(serve, *files, folder=folder, PATH="/nonexistent", TORCHINDUCTOR_CACHE_DIR=str(folder / "no"))
        said = re.search(r"\] (Loading .*)", done.stderr)
        result = close(folder / "returned.pt", expected)
        print(f"{'no compiler':<12}agrees: {result}   warning: {said[1] if said else 'none'}")

        print("==== exercises")
        print(f"{'building the package':<22}{built:>10.2f} s, once")
        for what in ("torch.compile, cold", "torch.compile, warm"):
            saved = in_all[what] - in_all["package, warm"]
            paid = f"paid back after {math.ceil(built / saved)} starts" if saved > 0 else "never paid back"
            print(f"{what:<22}{paid}")

        print("==== contents")
        contents(package)

        print("==== without source")
        print(f"the process can import: {run_alone(reports_no_source, folder=folder).stdout.strip()}")

        for section, variables in (("unchecked", {}), ("checked", {"AOTI_RUNTIME_CHECK_INPUTS": "1"})):
            print(f"==== {section}")
            done = run_alone(wrong_inputs, str(lost), str(folder / "head.pt"), folder=folder, **variables)
            print(done.stdout.strip() or done.stderr)

        print("==== weights")
        with torch.inference_mode():
            weights_apart(lost, package, head, model, folder)
        print("==== across")
        print(f"built with torch {torch.__version__}, loaded with torch {across(package, other)}")
        print(f"agrees: {close(folder / 'across.pt', expected)}")


if __name__ == "__main__":
    if sys.argv[1:2] in (["eager"], ["compile"]):
        serve_source(*sys.argv[1:])
    else:
        main(*sys.argv[1:])
