"""A server in C++ that needs PyTorch's libraries, a package and an input; and how it is compiled."""

import os
import shlex
import subprocess
from pathlib import Path

import torch

from snippets.compiler.ahead_of_time_model import DEVICE

SERVER = r"""
// --8<-- [start:cpp]
// server PACKAGE GIVEN RETURNED: a whole server without Python.
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>
#include <torch/csrc/jit/serialization/pickle.h>
#include <torch/cuda.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <vector>

void done(const char* stage) {
  if (torch::cuda::is_available()) torch::cuda::synchronize();
  std::chrono::duration<double> since = std::chrono::system_clock::now().time_since_epoch();
  std::printf("%s %.6f\n", stage, since.count());
}

int main(int, char** arguments) {
  c10::InferenceMode no_gradients;
  done("torch");
  torch::inductor::AOTIModelPackageLoader model(arguments[1]);
  std::ifstream file(arguments[2], std::ios::binary);
  std::vector<char> bytes(std::istreambuf_iterator<char>(file), {});
  at::Tensor x = torch::jit::pickle_load(bytes).toTensor();
  if (model.get_metadata().at("AOTI_DEVICE_KEY") == "cuda") x = x.to(at::kCUDA);
  done("load");
  at::Tensor y = model.run({x})[0].to(at::kCPU);
  bytes = torch::jit::pickle_save(y);
  std::ofstream(arguments[3], std::ios::binary).write(bytes.data(), bytes.size());
  done("first call");
  double best = 1e9;
  auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(250);
  for (auto begin = end; (begin = std::chrono::steady_clock::now()) < end;) {
    for (int call = 0; call < 20; ++call) model.run({x});
    if (torch::cuda::is_available()) torch::cuda::synchronize();
    std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    best = std::min(best, took.count() / 20);
  }
  std::printf("later call %.9f\n", best);
}
// --8<-- [end:cpp]
"""


# --8<-- [start:compile]
def compile_server(folder: Path) -> Path:
    """`g++ server.cpp` with PyTorch's headers and libraries."""
    torch_ = Path(torch.__file__).parent
    (folder / "server.cpp").write_text(SERVER)
    gpu = ["-ltorch_cuda", "-lc10_cuda"] if DEVICE == "cuda" else []
    command = [
        *shlex.split(os.environ.get("CXX") or "g++"),
        "-std=c++20", str(folder / "server.cpp"), "-o", str(folder / "server"),
        f"-I{torch_}/include", f"-I{torch_}/include/torch/csrc/api/include",
        f"-L{torch_}/lib", f"-Wl,-rpath,{torch_}/lib",
        "-Wl,--no-as-needed", "-ltorch", "-ltorch_cpu", "-lc10", *gpu,
    ]  # fmt: skip
    subprocess.run(command, check=True)
    return folder / "server"


# --8<-- [end:compile]
