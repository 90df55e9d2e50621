"""What functions of torch compute, in one word each, and which of them are of a kind."""

from collections.abc import Callable


def words(text: str) -> frozenset[str]:
    """Names, written as in a sentence."""
    return frozenset(text.split())


READS = words("__bool__ __int__ __float__ __index__ __repr__ __format__ __contains__")  # .bool() is a cast
NUMBERS = words("item tolist __int__ __float__ __bool__ __index__ numpy")  # what gives the host numbers
IN_PLACE = {f"__i{name}__" for name in words("add sub mul truediv floordiv mod pow and or xor lshift rshift")}
SAME = {
    "truediv": "div", "rtruediv": "div", "rmul": "mul", "radd": "add", "multiply": "mul", "divide": "div",
    "true_divide": "div", "subtract": "sub", "negative": "neg", "absolute": "abs", "rpow": "exp", "rmatmul": "matmul",
    "mm": "matmul", "concat": "cat", "concatenate": "cat", "special_softmax": "softmax", "special_expit": "sigmoid",
    "linalg_vector_norm": "norm", "vector_norm": "norm", "hstack": "cat", "vstack": "cat", "arctan": "atan",
    "permute_dims": "permute", "swapaxes": "transpose", "swapdims": "transpose", "movedim": "permute",
    "moveaxis": "permute", "iadd": "add", "imul": "mul", "isub": "sub", "itruediv": "div",
    "special_log_softmax": "log_softmax",
    "matrix_norm": "norm", "linalg_norm": "norm", "expand_as": "expand", "view_as": "view",
    "reshape_as": "reshape", "float_power": "pow",
    "ipow": "pow", "clip": "clamp", "and": "bitwise_and", "or": "bitwise_or", "invert": "bitwise_not",
}  # fmt: skip


def name_of(function: Callable) -> str:
    """What a function of torch computes, in one word, however it was spelt."""
    name = getattr(function, "__name__", str(function))
    if name == "__get__":  # a property of a tensor, such as x.T
        return getattr(getattr(function, "__self__", None), "__name__", "get")
    if name in READS:
        return name
    name = name.strip("_")
    return SAME.get(name, name)


VIEWS = words(
    "view reshape transpose permute getitem T mT t unsqueeze squeeze expand chunk split unbind narrow select "
    "flatten unflatten contiguous detach alias H mH data real imag unfold tensor_split view_as_real "
    "view_as_complex movedim as_strided broadcast_to swapaxes clone"
)
CASTS = words("to float half bfloat16 double type type_as")
PASSED = VIEWS | CASTS  # on a way through the graph of calls
PRODUCTS = words(
    "matmul bmm einsum baddbmm addmm linear conv1d conv2d conv3d conv_transpose1d conv_transpose2d mv tensordot "
    "inner addbmm"
)
POINTWISE = words(
    "add sub rsub mul div neg exp exp2 expm1 log log1p log2 sqrt rsqrt pow square reciprocal abs sign sin cos tan "
    "tanh sigmoid relu relu6 silu gelu elu selu leaky_relu softplus mish hardswish hardsigmoid hardtanh erf erfc "
    "clamp clamp_min clamp_max maximum minimum where masked_fill dropout lerp addcmul addcdiv sinh cosh atan sgn "
    "floor ceil round nan_to_num logsigmoid celu threshold prelu bitwise_and bitwise_or bitwise_not logical_and "
    "logical_not logical_or eq ne lt le gt ge copysign fmod remainder fill alpha_dropout xlogy logit heaviside"
)
REDUCTIONS = words("sum mean amax amin max min norm var std prod logsumexp var_mean std_mean all any argmax argmin")
FILLS = words("zeros ones empty full new_zeros new_ones new_full zeros_like ones_like full_like")
FORMS = words(  # what asks its first tensor for its size, its dtype and its device alone
    "new_zeros new_ones new_full new_empty zeros_like ones_like full_like empty_like rand_like randn_like randint_like"
)
NORMS = words("layer_norm rms_norm batch_norm group_norm instance_norm normalize")
FREE = words("empty empty_like empty_strided new_empty lift_fresh detach _unsafe_view alias unsafe_split unsafe_chunk")
ASKED = words(
    "shape dtype device dim size numel is_cuda ndim requires_grad grad layout is_nested is_sparse itemsize stride "
    "is_contiguous is_floating_point is_complex grad_fn is_leaf storage_offset data_ptr element_size names "
    "get_device is_cpu nelement len untyped_storage is_quantized is_meta is_mkldnn nbytes repr format hash "
    "backward type_ register_hook output_nr version"
)
