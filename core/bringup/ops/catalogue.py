"""Every row of the table under its name; `bringup.ops` hands them on."""

from __future__ import annotations

from bringup.ops.activations import erf, gelu, logistic, relu
from bringup.ops.arithmetic import add, div, max_, min_, mul, sub
from bringup.ops.bits import and_, bitcast, or_, shl, shr, xor
from bringup.ops.choice import compare, convert, select
from bringup.ops.contraction import dot_general
from bringup.ops.control import case, while_
from bringup.ops.convolution import convolution
from bringup.ops.functions import (
    clamp,
    expm1,
    log1p,
    reciprocal,
    round_,
    rsqrt,
    sign,
    square,
)
from bringup.ops.gathering import dynamic_slice, gather
from bringup.ops.joining import concatenate
from bringup.ops.movement import broadcast_in_dim, pad, reshape, slice_, transpose
from bringup.ops.normalisation import layer_norm, log_softmax, mean, softmax, var
from bringup.ops.positions import argmax, argmin, one_hot
from bringup.ops.power import pow_
from bringup.ops.prefixes import cumulative
from bringup.ops.random_bits import philox4x32, threefry2x32
from bringup.ops.reduction import reduce
from bringup.ops.remainder import rem
from bringup.ops.scattering import dynamic_update_slice, scatter
from bringup.ops.scan import scan
from bringup.ops.source import constant, iota
from bringup.ops.table import OpDef, all_ops, find, lookup
from bringup.ops.unary import abs_, cos, exp, floor, log, neg, sin, sqrt, tanh

abs = abs_
max = max_
min = min_
pow = pow_
round = round_
slice = slice_

__all__ = [
    "OpDef",
    "abs",
    "abs_",
    "add",
    "all_ops",
    "and_",
    "argmax",
    "argmin",
    "bitcast",
    "case",
    "broadcast_in_dim",
    "clamp",
    "compare",
    "concatenate",
    "constant",
    "convert",
    "convolution",
    "cos",
    "cumulative",
    "div",
    "dot_general",
    "dynamic_slice",
    "dynamic_update_slice",
    "erf",
    "exp",
    "expm1",
    "find",
    "floor",
    "gather",
    "gelu",
    "iota",
    "layer_norm",
    "log",
    "log1p",
    "log_softmax",
    "logistic",
    "lookup",
    "max",
    "max_",
    "mean",
    "min",
    "min_",
    "mul",
    "neg",
    "one_hot",
    "or_",
    "pad",
    "philox4x32",
    "pow",
    "pow_",
    "reciprocal",
    "reduce",
    "relu",
    "rem",
    "reshape",
    "round",
    "round_",
    "rsqrt",
    "scatter",
    "scan",
    "select",
    "shl",
    "shr",
    "sign",
    "sin",
    "slice",
    "slice_",
    "softmax",
    "sqrt",
    "square",
    "sub",
    "tanh",
    "threefry2x32",
    "transpose",
    "var",
    "while_",
    "xor",
]
