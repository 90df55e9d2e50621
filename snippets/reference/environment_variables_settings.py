"""The variables and options of the compiler stack, and the values of the options in this process."""

import os
import sys
from typing import NamedTuple


# --8<-- [start:settings]
class Setting(NamedTuple):
    """A variable, an option, or a variable that sets an option."""

    variable: str  # with a value to try: "TORCH_LOGS=recompiles"
    where: str  # the option that it sets, or the file of an installed package that reads it


DYNAMO, INDUCTOR, FUNCTORCH = "torch._dynamo.config", "torch._inductor.config", "torch._functorch.config"
LOGGING, KNOBS = "torch/_logging/_internal.py", "triton/knobs.py"
SETTINGS = {
    "see": (
        Setting("TORCH_LOGS=recompiles", LOGGING),
        Setting("TORCH_LOGS_OUT=/tmp/log", LOGGING),
        Setting("TORCH_TRACE=/tmp/trace", LOGGING),
        Setting("TORCH_COMPILE_DEBUG=1", f"{INDUCTOR}.trace.enabled"),
        Setting("TORCH_COMPILE_DEBUG_DIR=/tmp/debug", f"{DYNAMO}.debug_dir_root"),
        Setting("", f"{INDUCTOR}.trace.debug_dir"),
        Setting("INDUCTOR_PROVENANCE=1", f"{INDUCTOR}.trace.provenance_tracking_level"),
    ),
    "control": (
        Setting("TORCH_COMPILE_DISABLE=1", f"{DYNAMO}.disable"),
        Setting("", f"{DYNAMO}.recompile_limit"),
        Setting("", f"{DYNAMO}.accumulated_recompile_limit"),
        Setting("", f"{DYNAMO}.fail_on_recompile_limit_hit"),
        Setting("TORCH_COMPILE_DYNAMIC_SOURCES=L['x']:0", "torch.compiler.config.dynamic_sources"),
        Setting("TORCHDYNAMO_CAPTURE_SCALAR_OUTPUTS=1", f"{DYNAMO}.capture_scalar_outputs"),
        Setting("", f"{DYNAMO}.trace_autograd_ops"),
        Setting("TORCHDYNAMO_CAPTURE_DYNAMIC_OUTPUT_SHAPE_OPS=1", f"{DYNAMO}.capture_dynamic_output_shape_ops"),
        Setting("", f"{DYNAMO}.ignore_logging_functions"),
        Setting("", f"{DYNAMO}.reorderable_logging_functions"),
        Setting("", f"{DYNAMO}.skip_nnmodule_hook_guards"),
        Setting("", f"{DYNAMO}.allow_rnn"),
        Setting("", f"{DYNAMO}.compiled_autograd"),
        Setting("", f"{FUNCTORCH}.backward_pass_autocast"),
        Setting("", f"{FUNCTORCH}.force_non_lazy_backward_lowering"),
        Setting("", f"{FUNCTORCH}.guess_tangent_strides_as_outputs"),
    ),
    "kernels": (
        Setting("TORCHINDUCTOR_MAX_AUTOTUNE=1", f"{INDUCTOR}.max_autotune"),
        Setting("TORCHINDUCTOR_MAX_AUTOTUNE_GEMM=1", f"{INDUCTOR}.max_autotune_gemm"),
        Setting("TORCHINDUCTOR_MAX_AUTOTUNE_POINTWISE=1", f"{INDUCTOR}.max_autotune_pointwise"),
        Setting("TORCHINDUCTOR_MAX_AUTOTUNE_GEMM_BACKENDS=ATEN", f"{INDUCTOR}.max_autotune_gemm_backends"),
        Setting("TORCHINDUCTOR_COORDINATE_DESCENT_TUNING=1", f"{INDUCTOR}.coordinate_descent_tuning"),
        Setting("TORCHINDUCTOR_SHAPE_PADDING=0", f"{INDUCTOR}.shape_padding"),
        Setting("", f"{INDUCTOR}.combo_kernels"),
        Setting("TORCHINDUCTOR_CPP_WRAPPER=1", f"{INDUCTOR}.cpp_wrapper"),
        Setting("TORCHINDUCTOR_CUDAGRAPHS=1", f"{INDUCTOR}.triton.cudagraphs"),
        Setting("TORCHINDUCTOR_CUDAGRAPH_OR_ERROR=1", f"{INDUCTOR}.triton.cudagraph_or_error"),
        Setting("", f"{INDUCTOR}.epilogue_fusion"),
        Setting("TORCHINDUCTOR_FREEZING=1", f"{INDUCTOR}.freezing"),
        Setting("", f"{INDUCTOR}.epilogue_fusion_user_defined_triton_kernel"),
        Setting("", f"{INDUCTOR}.epilogue_fusion_with_atomic_add"),
        Setting("", f"{INDUCTOR}.max_fusion_size"),
        Setting("", f"{INDUCTOR}.realize_opcount_threshold"),
        Setting("", f"{INDUCTOR}.post_grad_custom_pre_pass"),
        Setting("", f"{INDUCTOR}.post_grad_custom_post_pass"),
        Setting("", f"{INDUCTOR}.fallback_random"),
        Setting("TORCHINDUCTOR_EMULATE_PRECISION_CASTS=1", f"{INDUCTOR}.emulate_precision_casts"),
        Setting("TORCHINDUCTOR_DETERMINISTIC=1", f"{INDUCTOR}.deterministic"),
        Setting("TORCH_CUDNN_SDPA_DEPRIORITIZED=1", "torch/lib/libtorch_cuda.so"),
    ),
    "caches": (
        Setting("TORCHINDUCTOR_CACHE_DIR=/tmp/cache", "torch/_inductor/runtime/cache_dir_utils.py"),
        Setting("TRITON_CACHE_DIR=/tmp/cache/triton", KNOBS),
        Setting("TORCHINDUCTOR_FX_GRAPH_CACHE=0", f"{INDUCTOR}.fx_graph_cache"),
        Setting("TORCHINDUCTOR_AUTOGRAD_CACHE=0", f"{FUNCTORCH}.enable_autograd_cache"),
        Setting("TORCHINDUCTOR_FORCE_DISABLE_CACHES=1", "torch.compiler.config.force_disable_caches"),
        Setting("TORCH_COMPILE_CACHE_KEY_TAG=mine", "torch.compiler.config.cache_key_tag"),
        Setting("TORCH_CACHING_PRECOMPILE=1", f"{DYNAMO}.caching_precompile"),
        Setting("TORCHINDUCTOR_COMPILE_THREADS=1", f"{INDUCTOR}.compile_threads"),
        Setting("", f"{INDUCTOR}.quiesce_async_compile_time"),
        Setting("TORCHINDUCTOR_VEC_ISA_OK=1", f"{INDUCTOR}.cpp.vec_isa_ok"),
    ),
    "memory": (
        Setting("PYTORCH_ALLOC_CONF=expandable_segments:True", "torch/lib/libc10.so"),
        Setting("PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True", "torch/lib/libc10.so"),
        Setting("PYTORCH_NO_CUDA_MEMORY_CACHING=1", "torch/lib/libc10_cuda.so"),
        Setting("", f"{FUNCTORCH}.activation_memory_budget"),
        Setting("", f"{INDUCTOR}.aot_inductor.package_constants_in_so"),
        Setting("", f"{INDUCTOR}.aot_inductor.package_constants_on_disk_format"),
        Setting("", f"{INDUCTOR}.always_keep_tensor_constants"),
    ),
    "errors": (
        Setting("CUDA_LAUNCH_BLOCKING=1", "torch/lib/libc10_cuda.so"),
        Setting("TORCH_SHOW_CPP_STACKTRACES=1", "torch/lib/libtorch_cpu.so"),
        Setting("TORCHDYNAMO_VERBOSE=1", f"{DYNAMO}.verbose"),
        Setting("TORCHDYNAMO_SUPPRESS_ERRORS=1", f"{DYNAMO}.suppress_errors"),
        Setting("TORCHDYNAMO_REPRO_AFTER=dynamo", f"{DYNAMO}.repro_after"),
        Setting("TORCHDYNAMO_REPRO_LEVEL=4", f"{DYNAMO}.repro_level"),
        Setting("TORCHINDUCTOR_NAN_ASSERTS=1", f"{INDUCTOR}.nan_asserts"),
        Setting("", f"{INDUCTOR}.assert_indirect_indexing"),
        Setting("CUBLAS_WORKSPACE_CONFIG=:4096:8", "torch/lib/libtorch_cuda.so"),
        Setting("CUDA_VISIBLE_DEVICES=0", "torch/cuda/__init__.py"),
        Setting("", f"{INDUCTOR}.cpp.cxx"),
        Setting("", f"{INDUCTOR}.cpp_cache_precompile_headers"),
    ),
    "triton": (
        Setting("TRITON_INTERPRET=1", KNOBS),
        Setting("TRITON_PRINT_AUTOTUNING=1", KNOBS),
        Setting("TRITON_KERNEL_DUMP=1", KNOBS),
        Setting("TRITON_DUMP_DIR=/tmp/dump", KNOBS),
        Setting("TRITON_ALWAYS_COMPILE=1", KNOBS),
        Setting("MLIR_ENABLE_DUMP=1", "triton/_C/libtriton.so"),
    ),
}
# --8<-- [end:settings]


def option(path: str) -> object:
    """An option's value in this process, or why there is none."""
    module, rest = next((name, path[len(name) + 1 :]) for name in MODULES if path.startswith(name + "."))
    found: object = sys.modules[module]
    for name in rest.split("."):
        found = getattr(found, name, "not in this version")
    return found


MODULES = (DYNAMO, INDUCTOR, FUNCTORCH, "torch.compiler.config")
OPTIONS = [each.where for group in SETTINGS.values() for each in group if each.where.startswith(MODULES)]


def import_options() -> None:
    """So that `option` finds the modules."""
    import torch._dynamo.config
    import torch._functorch.config
    import torch._inductor.config
    import torch.compiler.config  # noqa: F401


def options() -> dict[str, str]:
    """Every option's value under this process's variables."""
    import_options()
    usual = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    values = {path: repr(option(path)).strip("'") for path in OPTIONS}
    threads = f"{INDUCTOR}.compile_threads"
    if values[threads] == str(min(32, usual or 1)) and "TORCHINDUCTOR_COMPILE_THREADS" not in os.environ:
        values[threads] = "cores, 32 at most"  # not this machine's number
    return values
