"""The SDK between first silicon and the first model that runs.

Arrays and their functions follow the Python array API standard; `jit` compiles functions, `grad`
differentiates them, `vmap` maps them over examples, `device` chooses where they run, `nn` holds
functions of neural networks.

>>> x = bu.asarray([1.0, 2.0, 3.0], dtype=bu.float32)
>>> print(bu.sum(x * x + 1))
17.0
"""

from __future__ import annotations

import math as _math
import typing as _typing

from bringup import backend, errors, nn, tree
from bringup.api import operators as _operators  # noqa: F401  (it completes Array)
from bringup.api.array import Array
from bringup.api.array import Operand as ArrayLike
from bringup.api.boundary import publish as _publish
from bringup.api.creation import (
    arange,
    array,
    asarray,
    empty,
    empty_like,
    eye,
    full,
    full_like,
    linspace,
    meshgrid,
    ones,
    ones_like,
    tril,
    triu,
    zeros,
    zeros_like,
)
from bringup.api.datatypes import astype, can_cast, finfo, iinfo, isdtype, result_type
from bringup.api.defaults import default_dtype, set_default_dtype
from bringup.api.deferred import clear_caches
from bringup.api.derivatives import grad, hessian, jacfwd, jacrev, jvp, value_and_grad, vjp
from bringup.api.dlpack import from_dlpack
from bringup.api.elementwise import (
    abs,
    acos,
    acosh,
    add,
    asin,
    asinh,
    atan,
    atan2,
    atanh,
    bitwise_and,
    bitwise_count,
    bitwise_invert,
    bitwise_left_shift,
    bitwise_or,
    bitwise_right_shift,
    bitwise_xor,
    cbrt,
    ceil,
    clip,
    copysign,
    cos,
    cosh,
    count_leading_zeros,
    divide,
    equal,
    exp,
    expm1,
    floor,
    floor_divide,
    greater,
    greater_equal,
    hypot,
    isfinite,
    isinf,
    isnan,
    less,
    less_equal,
    log,
    log1p,
    log2,
    log10,
    logaddexp,
    logical_and,
    logical_not,
    logical_or,
    logical_xor,
    maximum,
    minimum,
    multiply,
    negative,
    nextafter,
    not_equal,
    positive,
    pow,
    reciprocal,
    remainder,
    round,
    rsqrt,
    sign,
    signbit,
    sin,
    sinh,
    sqrt,
    square,
    subtract,
    tan,
    tanh,
    trunc,
    where,
)
from bringup.api.gathering import (
    dynamic_slice,
    dynamic_update_slice,
    nonzero,
    put_along_axis,
    take,
    take_along_axis,
)
from bringup.api.info import API_VERSION as _API_VERSION
from bringup.api.info import array_namespace_info as __array_namespace_info__
from bringup.api.info import device, devices
from bringup.api.jit import Jitted, jit
from bringup.api.manipulation import (
    broadcast_arrays,
    broadcast_shapes,
    broadcast_to,
    concat,
    expand_dims,
    flip,
    moveaxis,
    permute_dims,
    repeat,
    reshape,
    roll,
    squeeze,
    stack,
    tile,
    unstack,
)
from bringup.api.products import einsum, matmul, matrix_transpose, outer, tensordot, vecdot
from bringup.api.reductions import (
    all,
    any,
    argmax,
    argmin,
    count_nonzero,
    cummax,
    cummin,
    cumulative_prod,
    cumulative_sum,
    diff,
    max,
    mean,
    min,
    prod,
    std,
    sum,
    var,
)
from bringup.api.trace import eval_shape, trace
from bringup.api.vmap import vmap
from bringup.dtypes import bf16 as bfloat16
from bringup.dtypes import bool_ as bool
from bringup.dtypes import c64 as complex64
from bringup.dtypes import c128 as complex128
from bringup.dtypes import f8e4m3fn as float8_e4m3fn
from bringup.dtypes import f8e5m2 as float8_e5m2
from bringup.dtypes import f16 as float16
from bringup.dtypes import f32 as float32
from bringup.dtypes import f64 as float64
from bringup.dtypes import i8 as int8
from bringup.dtypes import i16 as int16
from bringup.dtypes import i32 as int32
from bringup.dtypes import i64 as int64
from bringup.dtypes import u8 as uint8
from bringup.dtypes import u16 as uint16
from bringup.dtypes import u32 as uint32
from bringup.dtypes import u64 as uint64
from bringup.errors import BringupError
from bringup.types import TensorType
from bringup.version import VERSION

__version__ = VERSION
__array_api_version__ = _API_VERSION

#: Names that are imported when they are first asked for, and their modules.
_LATER = {
    **{
        name: f"bringup.{name}:"
        for name in (
            *("amp", "debug", "fft", "lax", "linalg", "optim", "prune", "quant"),
            *("random", "special"),
        )
    },
    "tree_util": "bringup.tree:",
    **dict.fromkeys(
        ("ComplexArray", "angle", "complex", "conj", "imag", "real"), "bringup.api.complex"
    ),
    "compare": "bringup.api.compare",
    **dict.fromkeys(("cond", "fori_loop", "scan", "switch", "while_loop"), "bringup.api.control"),
    **dict.fromkeys(
        ("checkpoint", "custom_jvp", "custom_vjp", "remat", "stop_gradient"), "bringup.api.custom"
    ),
    "export": "bringup.api.exporting",
    "freeze": "bringup.api.freeze",
    **dict.fromkeys(("ProgramFile", "load", "save"), "bringup.api.program_files"),
    **dict.fromkeys(
        (
            *("argsort", "isin", "median", "quantile", "searchsorted", "sort", "top_k"),
            *("unique_all", "unique_counts", "unique_inverse", "unique_values"),
        ),
        "bringup.api.sorting",
    ),
}

#: Names of numpy and JAX beyond the array API standard, by their modules.
_LATER |= {
    name: f"bringup.api.{module}"
    for module, names in {
        "numpy_shapes": """
            append argwhere array_split atleast_1d atleast_2d atleast_3d column_stack concatenate
            diag diagonal dsplit dstack flatnonzero fliplr flipud hsplit hstack identity ndim pad
            ravel ravel_multi_index rot90 shape size split swapaxes transpose tri tril_indices
            triu_indices unravel_index vsplit vstack
        """,
        "jax_names": """
            associative_scan bitcast_convert_type block_until_ready clamp cumlogsumexp device_get
            device_put dynamic_index_in_dim dynamic_slice_in_dim dynamic_update_index_in_dim
            dynamic_update_slice_in_dim linearize map ravel_pytree segment_max segment_min
            segment_prod segment_sum
        """,
        "numeric": """
            apply_along_axis bincount convolve corrcoef correlate cov digitize dot geomspace
            gradient histogram histogram_bin_edges inner interp kron lexsort logspace piecewise
            polyfit polyval select trapezoid vander vdot vectorize
        """,
        "numpy_names": """
            absolute allclose amax amin arccos arccosh arcsin arcsinh arctan arctan2 arctanh around
            array_equal average bitwise_not conjugate cumprod cumsum deg2rad degrees divmod exp2
            fabs fix float_power fmax fmin fmod heaviside invert isclose isneginf isposinf
            left_shift logaddexp2 mod nan_to_num nanargmax nanargmin nancumprod nancumsum nanmax
            nanmean nanmedian nanmin nanpercentile nanprod nanquantile nanstd nansum nanvar
            percentile power product ptp rad2deg radians rem right_shift sinc true_divide
        """,
    }.items()
    for name in names.split()
}

if _typing.TYPE_CHECKING:
    from bringup import amp, debug, fft, lax, linalg, optim, prune, quant, random, special
    from bringup import tree as tree_util
    from bringup.api.compare import compare
    from bringup.api.complex import ComplexArray, angle, complex, conj, imag, real
    from bringup.api.control import cond, fori_loop, scan, switch, while_loop
    from bringup.api.custom import checkpoint, custom_jvp, custom_vjp, remat, stop_gradient
    from bringup.api.exporting import export
    from bringup.api.freeze import freeze
    from bringup.api.jax_names import *
    from bringup.api.numeric import *
    from bringup.api.numpy_names import *
    from bringup.api.numpy_shapes import *
    from bringup.api.program_files import ProgramFile, load, save
    from bringup.api.sorting import (
        argsort,
        isin,
        median,
        quantile,
        searchsorted,
        sort,
        top_k,
        unique_all,
        unique_counts,
        unique_inverse,
        unique_values,
    )

pi = _math.pi
e = _math.e
inf = _math.inf
nan = _math.nan
newaxis = None

__all__ = [
    "Array", "ArrayLike", "BringupError", "ComplexArray", "Jitted", "ProgramFile", "TensorType",
    "__array_api_version__", "__array_namespace_info__", "__version__", "abs", "acos", "acosh",
    "add", "all", "amp", "angle", "any", "arange", "argmax", "argmin", "argsort", "array",
    "asarray", "asin", "asinh", "astype", "atan", "atan2", "atanh", "backend", "bfloat16",
    "bitwise_and", "bitwise_count", "bitwise_invert", "bitwise_left_shift", "bitwise_or",
    "bitwise_right_shift", "bitwise_xor", "bool", "broadcast_arrays", "broadcast_shapes",
    "broadcast_to", "can_cast", "cbrt", "ceil", "checkpoint", "clear_caches", "clip", "compare",
    "complex", "complex64", "complex128", "concat", "cond", "conj", "copysign", "cos", "cosh",
    "count_leading_zeros", "count_nonzero", "cummax", "cummin", "cumulative_prod", "cumulative_sum",
    "custom_jvp", "custom_vjp", "debug", "default_dtype", "device", "devices", "diff", "divide",
    "dynamic_slice", "dynamic_update_slice", "e", "einsum", "empty", "empty_like", "equal",
    "errors", "eval_shape", "exp", "expand_dims", "expm1", "export", "eye", "fft", "finfo", "flip",
    "float8_e4m3fn", "float8_e5m2", "float16", "float32", "float64", "floor", "floor_divide",
    "fori_loop", "freeze", "from_dlpack", "full", "full_like", "grad", "greater", "greater_equal",
    "hessian", "hypot", "iinfo", "imag", "inf", "int8", "int16", "int32", "int64", "isdtype",
    "isfinite", "isin", "isinf", "isnan", "jacfwd", "jacrev", "jit", "jvp", "lax", "less",
    "less_equal", "linalg", "linspace", "load", "log", "log1p", "log2", "log10", "logaddexp",
    "logical_and", "logical_not", "logical_or", "logical_xor", "matmul", "matrix_transpose", "max",
    "maximum", "mean", "median", "meshgrid", "min", "minimum", "moveaxis", "multiply", "nan",
    "negative", "newaxis", "nextafter", "nn", "nonzero", "not_equal", "ones", "ones_like", "optim",
    "outer", "permute_dims", "pi", "positive", "pow", "prod", "prune", "put_along_axis", "quant",
    "quantile", "random", "real", "reciprocal", "remainder", "remat", "repeat", "reshape",
    "result_type", "roll", "round", "rsqrt", "save", "scan", "searchsorted", "set_default_dtype",
    "sign", "signbit", "sin", "sinh", "sort", "special", "sqrt", "square", "squeeze", "stack",
    "std", "stop_gradient", "subtract", "sum", "switch", "take", "take_along_axis", "tan", "tanh",
    "tensordot", "tile", "top_k", "trace", "tree", "tree_util", "tril", "triu", "trunc", "uint8",
    "uint16", "uint32", "uint64", "unique_all", "unique_counts", "unique_inverse", "unique_values",
    "unstack", "value_and_grad", "var", "vecdot", "vjp", "vmap", "where", "while_loop", "zeros",
    "zeros_like",
]  # fmt: skip

__all__ += [
    "absolute", "allclose", "amax", "amin", "append", "apply_along_axis", "arccos", "arccosh",
    "arcsin", "arcsinh", "arctan", "arctan2", "arctanh", "argwhere", "around", "array_equal",
    "array_split", "associative_scan", "atleast_1d", "atleast_2d", "atleast_3d", "average",
    "bincount", "bitcast_convert_type", "bitwise_not", "block_until_ready", "clamp", "column_stack",
    "concatenate", "conjugate", "convolve", "corrcoef", "correlate", "cov", "cumlogsumexp",
    "cumprod", "cumsum", "deg2rad", "degrees", "device_get", "device_put", "diag", "diagonal",
    "digitize", "divmod", "dot", "dsplit", "dstack", "dynamic_index_in_dim", "dynamic_slice_in_dim",
    "dynamic_update_index_in_dim", "dynamic_update_slice_in_dim", "exp2", "fabs", "fix",
    "flatnonzero", "fliplr", "flipud", "float_power", "fmax", "fmin", "fmod", "geomspace",
    "gradient", "heaviside", "histogram", "histogram_bin_edges", "hsplit", "hstack", "identity",
    "inner", "interp", "invert", "isclose", "isneginf", "isposinf", "kron", "left_shift", "lexsort",
    "linearize", "logaddexp2", "logspace", "map", "mod", "nan_to_num", "nanargmax", "nanargmin",
    "nancumprod", "nancumsum", "nanmax", "nanmean", "nanmedian", "nanmin", "nanpercentile",
    "nanprod", "nanquantile", "nanstd", "nansum", "nanvar", "ndim", "pad", "percentile",
    "piecewise", "polyfit", "polyval", "power", "product", "ptp", "rad2deg", "radians", "ravel",
    "ravel_multi_index", "ravel_pytree", "rem", "right_shift", "rot90", "segment_max",
    "segment_min", "segment_prod", "segment_sum", "select", "shape", "sinc", "size", "split",
    "swapaxes", "transpose", "trapezoid", "tri", "tril_indices", "triu_indices", "true_divide",
    "unravel_index", "vander", "vdot", "vectorize", "vsplit", "vstack",
]  # fmt: skip

_publish(globals(), later=_LATER)
