"""Which module of this package defines which rows: the table reads one when a row of it is first
asked for, and all of them only when all rows are.
"""

from __future__ import annotations

TOPICS: dict[str, tuple[str, ...]] = {
    "activations": (
        "erf",
        "gelu",
        "logistic",
        "relu",
    ),
    "arithmetic": (
        "add",
        "div",
        "max",
        "min",
        "mul",
        "sub",
    ),
    "attentions": ("attention",),
    "bessel": ("bessel_i0e", "bessel_i1e"),
    "bits": (
        "and",
        "bitcast",
        "or",
        "shl",
        "shr",
        "xor",
    ),
    "block_sparse": ("block_sparse_dot",),
    "calls": ("after", "call"),
    "choice": (
        "compare",
        "convert",
        "select",
    ),
    "contraction": ("dot_general",),
    "control": (
        "case",
        "while",
    ),
    "convolutions": ("convolution",),
    "counting": ("clz", "popcount"),
    "eigenvalues": ("eigh",),
    "error_functions": ("erfc", "erfinv"),
    "factors": ("lu", "qr"),
    "fourier": ("fft",),
    "functions": (
        "clamp",
        "expm1",
        "log1p",
        "reciprocal",
        "round",
        "rsqrt",
        "sign",
        "square",
    ),
    "gamma": ("digamma", "lgamma"),
    "gates": ("log_sigmoid", "logaddexp", "silu", "softplus"),
    "gathering": (
        "dynamic_slice",
        "gather",
    ),
    "hyperbolic": ("acosh", "asinh", "atanh", "cosh", "sinh"),
    "logarithms": ("log10", "log2"),
    "movement": (
        "concatenate",
        "broadcast_in_dim",
        "pad",
        "reshape",
        "slice",
        "transpose",
    ),
    "normalisation": (
        "layer_norm",
        "log_softmax",
        "mean",
        "softmax",
        "var",
    ),
    "norms": (
        "batch_norm",
        "group_norm",
        "rms_norm",
    ),
    "pooling": ("reduce_window",),
    "argmax_argmin": (
        "argmax",
        "argmin",
        "one_hot",
    ),
    "power": ("pow",),
    "cumulative_folds": ("cumulative",),
    "prints": ("print",),
    "random_bits": (
        "philox4x32",
        "threefry2x32",
    ),
    "reduction": ("reduce",),
    "remainder": ("rem",),
    "resizing": ("resize",),
    "roots": ("cbrt", "hypot"),
    "scans": ("scan",),
    "scattering": (
        "dynamic_update_slice",
        "scatter",
    ),
    "singular_values": ("svd",),
    "sorting": ("sort",),
    "source": (
        "constant",
        "iota",
    ),
    "triangular": ("cholesky", "triangular_solve"),
    "trigonometry": ("acos", "asin", "atan", "atan2", "tan"),
    "unary": (
        "abs",
        "cos",
        "exp",
        "floor",
        "log",
        "neg",
        "sin",
        "sqrt",
        "tanh",
    ),
}

#: The module of each row, by its name.
MODULE_OF: dict[str, str] = {row: topic for topic, rows in TOPICS.items() for row in rows}
