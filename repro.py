
import os
os.environ['TORCHINDUCTOR_AUTOGRAD_CACHE'] = '0'
os.environ['TRITON_INTERPRET'] = '1'
os.environ['TORCHINDUCTOR_CACHE_DIR'] = '/tmp/debugging/inductor'
os.environ['TORCHINDUCTOR_FX_GRAPH_CACHE'] = '0'
os.environ['TORCHINDUCTOR_CPP_DYNAMIC_THREADS'] = '1'
os.environ['_TORCHINDUCTOR_PYOBJECT_TENSOR_DATA_PTR'] = '140161455934496'
os.environ.pop('TORCHDYNAMO_REPRO_AFTER', None)
os.environ.pop('TORCHDYNAMO_REPRO_LEVEL', None)

import torch
from torch import tensor, device
import torch.fx as fx
from torch._dynamo.testing import rand_strided
from math import inf
import torch._inductor.inductor_prims



import torch._dynamo.config
import torch._inductor.config
import torch._functorch.config
import torch.fx.experimental._config
torch._dynamo.config.debug_dir_root = '/tmp/debugging/iso'
torch._inductor.config.fx_graph_cache = False
torch._inductor.config.comprehensive_padding = True
torch._inductor.config.deterministic = False
torch._inductor.config.triton.store_cubin = False
torch._functorch.config.functionalize_rng_ops = False
torch._functorch.config.enable_autograd_cache = False
torch._functorch.config.fake_tensor_allow_unsafe_data_ptr_access = True
torch._functorch.config.unlift_effect_tokens = False
torch._functorch.config.selective_decompose = False



isolate_fails_code_str = None





if "__compile_source__" in globals():
    import inspect as __after_aot_inspect
    import linecache as __after_aot_linecache
    __after_aot_filename = __after_aot_inspect.currentframe().f_code.co_filename
    __after_aot_linecache.cache[__after_aot_filename] = (
        len(__compile_source__),
        None,
        __compile_source__.splitlines(True),
        __after_aot_filename,
    )
# torch version: 2.13.0+cpu
# torch cuda version: None
# torch git version: cf30153c4c131c8164ee7798e5022d810682e2cb


# torch.cuda.is_available()==False, no GPU info collected
torch._higher_order_ops.triton_kernel_wrap.kernel_side_table.reset_table()

from torch.nn import *
class Repro(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()



    def forward(self, arg0_1, arg1_1):
        mm = torch.ops.aten.mm.default(arg0_1, arg1_1);  arg1_1 = None
        tanh = torch.ops.aten.tanh.default(mm);  mm = None
        shifted = torch.ops.planted.shifted.default(tanh)
        cos = torch.ops.aten.cos.default(tanh);  tanh = None
        mul = torch.ops.aten.mul.Tensor(shifted, cos);  shifted = cos = None
        exp = torch.ops.aten.exp.default(mul);  mul = None
        mean = torch.ops.aten.mean.default(arg0_1);  arg0_1 = None
        sub = torch.ops.aten.sub.Tensor(exp, mean);  exp = mean = None
        return (sub,)

def load_args(reader):
    buf0 = reader.storage('81ac9c7eaace8ba7ca5e4ba653303ec6b776ef6f', 64)
    reader.tensor(buf0, (4, 4), is_leaf=True)  # arg0_1
    buf1 = reader.storage('d88bb2124b237aaec8dcf68148e3c3433289fd65', 64)
    reader.tensor(buf1, (4, 4), is_leaf=True)  # arg1_1
load_args._version = 0
mod = Repro()
if __name__ == '__main__':
    from torch._dynamo.repro.after_aot import run_repro
    with torch.no_grad():
        run_repro(mod, load_args, accuracy=True, command='run', save_dir='/tmp/debugging/iso/run_2026_11_22_23_01_29_563510-pid_19320/minifier/checkpoints', tracing_mode='real', check_str=None)
        # To run it separately, do 
        # mod, args = run_repro(mod, load_args, accuracy=True, command='get_args', save_dir='/tmp/debugging/iso/run_2026_11_22_23_01_29_563510-pid_19320/minifier/checkpoints', tracing_mode='real', check_str=None)
        # mod(*args)