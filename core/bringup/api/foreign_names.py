"""Names of numpy, JAX and PyTorch, and what stands for them here: a table written by hand.

Errors for missing names answer from it, and a page of the documentation is made of it.  A line
holds foreign names of one meaning and the answer: a name below ``bringup``, an expression, or,
after ``none``, why there is none and what to do.
"""

from __future__ import annotations

import re
from functools import cache

from bringup.records import record


@record
class Foreign:
    """One foreign name.

    section: the library and the part of it.
    space: the namespace of ours where it is looked for first, "" for ``bringup`` itself.
    answer: what to use, with ``bringup.`` before names of ours; "" if there is nothing.
    why: what is said where there is nothing.
    """

    section: str
    space: str
    name: str
    answer: str
    why: str = ""

    @property
    def fix(self) -> str:
        """The answer as an error says it."""
        return f"use {self.answer}" if self.answer else self.why


_NUMPY = """
round_ rint | round
alltrue | all
array_equiv | bringup.all(x == y)
array_str array_repr | str(x)
insert | bringup.concat([x[:i], v, x[i:]])
delete | bringup.concat([x[:i], x[i + 1:]])
iscomplex | bringup.imag(x) != 0
isreal | bringup.imag(x) == 0
tril_indices_from | bringup.tril_indices(x.shape[0], m=x.shape[1])
triu_indices_from | bringup.triu_indices(x.shape[0], m=x.shape[1])
diag_indices | (bringup.arange(n), bringup.arange(n))
ediff1d | bringup.diff(bringup.ravel(x))
promote_types | result_type
place | bringup.where(mask, value, x)
compress extract | x[mask]
argpartition | argsort
partition | sort
indices ix_ | bringup.meshgrid of one bringup.arange for each axis, with indexing="ij"
histogram2d histogramdd | bringup.digitize of each column, and bringup.zeros(shape).at[i, j].add(1)
polyint polyder polymul polydiv polyadd polysub poly roots | none | polynomials are arrays of \
coefficients, of which there are bringup.polyval and bringup.polyfit
uint | uint64
sometrue | any
in1d | isin
put | x.at[i].set(v)
matvec | bringup.matmul(x, y[..., None])[..., 0]
vecmat | bringup.matmul(x[..., None, :], y)[..., 0, :]
asanyarray ascontiguousarray | asarray
unique | unique_values
iscomplexobj | bringup.isdtype(x.dtype, "complex floating")
isrealobj | not bringup.isdtype(x.dtype, "complex floating")
rollaxis | bringup.moveaxis(x, axis, 0)
row_stack | vstack
diagflat | bringup.diag(bringup.ravel(x))
modf | (x - bringup.trunc(x), bringup.trunc(x))
frexp | bringup.floor(bringup.log2(bringup.abs(x))) + 1 for the exponent
ldexp | x * 2.0 ** n
trapz | trapezoid
copy | x itself: arrays are immutable
choose | bringup.where(condition, x, y)
resize | bringup.tile, or bringup.nn.resize for images
setdiff1d | bringup.unique_values(x[~bringup.isin(x, y)])
intersect1d | bringup.unique_values(x[bringup.isin(x, y)])
union1d | bringup.unique_values(bringup.concat([x, y]))
unpackbits packbits | bringup.bitwise_right_shift and bringup.bitwise_and
frompyfunc | vectorize
fromfunction | bringup.vmap(fn)(bringup.arange(n))
savez | numpy.savez(file, *bringup.tree.flatten(x)[0]), and numpy.load
issubdtype | bringup.isdtype(x.dtype, "real floating")
float_ double | float64
single | float32
half | float16
int_ long | int64
bool_ | bool
complex_ cdouble | complex128
csingle | complex64
ndarray | Array
dtype | x.dtype; the dtypes are bringup.float32 and its kin
cross | linalg.cross
i0 | special.i0
bartlett blackman hamming hanning kaiser | 0.5 - 0.5 * bringup.cos(...), the window's formula
errstate seterr | none | floats follow IEEE 754 and nothing warns; look for NaN with bringup.isnan
"""

_NUMPY_LINALG = """
tensorinv tensorsolve | bringup.linalg.inv or bringup.linalg.solve of a reshaped array
solve_toeplitz lu_factor lu_solve | linalg.solve
eig eigvals | none | only symmetric matrices have eigenvalues here: bringup.linalg.eigh
schur expm logm sqrtm funm | none | functions of matrices are not there; for symmetric ones use \
bringup.linalg.eigh
"""

_NUMPY_FFT = """
dct idct dst | none | there is no cosine transform: bringup.fft.rfft of the mirrored array gives it
"""

_NN = """
SiLU | nn.silu
prelu | bringup.nn.leaky_relu(x, slope)
hardtanh | nn.hard_tanh
hardsigmoid | nn.hard_sigmoid
hardswish | nn.hard_swish
softsign | nn.soft_sign
sparse_plus sparse_sigmoid | none | write it with bringup.where
log1mexp | bringup.log(-bringup.expm1(-x))
logmeanexp | bringup.nn.logsumexp(x) - bringup.log(x.size)
log_softplus | bringup.log(bringup.nn.softplus(x))
normalize | x / bringup.maximum(bringup.linalg.norm(x, axis=1, keepdims=True), 1e-12)
dot_product_attention scaled_dot_product_attention multi_head_attention | nn.attention
initializers | nn.init
conv1d conv2d conv3d | nn.conv
conv_transpose1d conv_transpose2d conv_transpose3d | nn.conv_transpose
max_pool1d max_pool2d max_pool3d | nn.max_pool
avg_pool1d avg_pool2d avg_pool3d | nn.avg_pool
adaptive_avg_pool2d | bringup.mean(x, axis=(-2, -1))
interpolate image upsample | nn.resize
linear | x @ w.T + b
bilinear | bringup.einsum("bi,oij,bj->bo", x, w, y)
embedding | table[indices], or bringup.take(table, indices, axis=0)
nll_loss | -bringup.take_along_axis(log_p, labels[:, None], axis=1)
softmax_cross_entropy_with_integer_labels | nn.cross_entropy
softmax_cross_entropy | -bringup.sum(y * bringup.nn.log_softmax(x), axis=-1)
mse_loss | bringup.mean((x - y) ** 2)
l1_loss | bringup.mean(bringup.abs(x - y))
binary_cross_entropy_with_logits sigmoid_binary_cross_entropy | \
bringup.mean(bringup.nn.softplus(x) - x * y)
pixel_shuffle | bringup.reshape and bringup.permute_dims
xavier_uniform | nn.init.glorot_uniform
xavier_normal | nn.init.glorot_normal
kaiming_uniform | nn.init.he_uniform
kaiming_normal | nn.init.he_normal
constant | full
orthogonal | bringup.linalg.qr(bringup.random.normal(key, (n, n)))[0]
truncated_normal | random.truncated_normal
Module Linear Sequential Parameter | none | a network is a function of a container of arrays
"""

_LAX = """
select_n | bringup.where(which, on_true, on_false)
population_count | bitwise_count
clz | count_leading_zeros
shift_left | bitwise_left_shift
shift_right_arithmetic | bitwise_right_shift
shift_right_logical | bringup.bitwise_right_shift of an unsigned integer
broadcast_in_dim broadcast | broadcast_to
conv_with_general_padding | lax.conv_general_dilated
batch_matmul | matmul
index_in_dim | bringup.take(x, i, axis=axis)
slice_in_dim slice | x[a:b], or bringup.dynamic_slice(x, starts, sizes)
gather | take
index_take | take
scatter_sub | x.at[i].subtract(v)
scatter_apply | x.at[i].apply(fn)
scatter scatter_add | x.at[i].set(v), x.at[i].add(v)
scatter_mul scatter_min scatter_max | x.at[i].multiply(v), .min(v), .max(v)
rev | flip
sort_key_val | bringup.argsort(keys), then bringup.take
approx_max_k | top_k
approx_min_k | bringup.top_k(x, k, mode="smallest")
igamma igammac | none | there are no incomplete gamma functions
bessel_i0e | special.i0e
bessel_i1e | special.i1e
reduce_sum | sum
reduce_max | max
reduce_min | min
reduce_prod | prod
reduce_and | all
reduce_or | any
reduce | bringup.sum, bringup.max and their kin
iota broadcasted_iota | arange
integer_pow | pow
erf_inv | special.erfinv
collapse | reshape
pmean psum all_gather all_to_all ppermute pmax pmin pbroadcast pswapaxes pmap shard_map smap | \
none | a program runs on one device
view | bringup.bitcast_convert_type(x, dtype)
"""

_RANDOM = """
default_rng RandomState seed manual_seed Generator | random.key
rand random random_sample | random.uniform
randn standard_normal | random.normal
integers random_integers | random.randint
randperm | random.permutation
standard_exponential | random.exponential
standard_gamma | random.gamma
weibull | bringup.random.weibull_min(key, 1.0, c, shape)
standard_cauchy | random.cauchy
standard_t | random.t
triangular loggamma wald ball orthogonal maxwell generalized_normal f multinomial | none \
| write it with bringup.random.uniform and normal
key_data wrap_key_data key_impl | none | a key is opaque; bringup.tree.flatten takes it apart
"""

_SPECIAL = """
loggamma | special.lgamma
softmax | bringup.nn.softmax(x, axis=None)
log_softmax | bringup.nn.log_softmax(x, axis=None)
erfcinv | bringup.special.erfinv(1 - x)
erfcx | bringup.exp(x * x) * bringup.special.erfc(x), for x < 26
comb | bringup.round(bringup.exp(-bringup.special.betaln(n - k + 1, k + 1)) / (n + 1))
gammasgn | bringup.sign(bringup.special.gamma(x))
expi exp1 expn sici fresnel dawsn | none | there are no integrals of exponentials and waves
exp2 | exp2
gammainc gammaincc betainc | none | there are no incomplete gamma and beta functions
jv yv | none | there are no Bessel functions
lambertw sph_harm hyp2f1 | none | there is no such function; compute it on the host with scipy
"""

_TREE = """
tree_multimap | tree.map
register_pytree_node register_pytree_node_class register_dataclass | tree.register
flatten_with_path tree_leaves_with_path | tree.leaves_with_path
tree_map_with_path | tree.map_with_path
transpose tree_transpose | none | take it apart with bringup.tree.flatten
"""

_OPTIM = """
SGD | optim.sgd
Adam | optim.adam
AdamW | optim.adamw
momentum | bringup.optim.sgd(rate, momentum=0.9)
cosine_decay_schedule warmup_cosine_decay_schedule CosineAnnealingLR | optim.cosine_schedule
clip_grad_norm_ | optim.clip_by_global_norm
apply_updates | params, state = optimizer.update(gradients, state, params)
constant_schedule | the rate as a number
exponential_decay ExponentialLR | optim.exponential_schedule
LinearLR | optim.linear_schedule
piecewise_constant_schedule MultiStepLR StepLR | optim.piecewise_schedule
RMSprop | optim.rmsprop
incremental_update AveragedModel | optim.ema
masked | decays= of bringup.optim.adamw and lion
adagrad Adagrad adadelta adamax lamb lars | none | write it as \
init and update of a bringup.optim.Optimizer
multi_transform | none | give each part of the parameters an optimiser and a state of its own
"""

_JAX = """
jacobian | jacrev
linear_transpose | bringup.vjp(fn, *primals)
make_jaxpr | bringup.trace(fn, *args)
xla_computation | bringup.jit(fn).lower(*args)
synchronize effects_barrier | block_until_ready
local_devices device_count | devices
default_device | device
default_backend | device
ShapeDtypeStruct | bringup.float32[4, 8] for the type
enable_x64 | default_dtype
config | none | dtypes are what functions are asked for: dtype=bringup.float32
disable_jit | the function without bringup.jit
named_call named_scope | none | dumps and errors name the line of your code
callback pure_callback io_callback | none | a compiled function cannot call Python; return \
the values, or print them with bringup.debug.print
custom_gradient | custom_vjp
serialize | save
profiler profile | none | set BRINGUP_TRACE=file.json for a timeline
numpy | bringup itself
"""

_TORCH = """
cat | concat
tensor as_tensor from_numpy Tensor | asarray
mm bmm | matmul
mv | matmul
ger | outer
norm | linalg.norm
clamp_min | bringup.maximum(x, low)
clamp_max | bringup.minimum(x, high)
eq | equal
ne | not_equal
lt | less
le | less_equal
gt | greater
ge | greater_equal
sub | subtract
mul | multiply
div | divide
neg | negative
unsqueeze | expand_dims
permute | permute_dims
topk | top_k
masked_fill | bringup.where(mask, value, x)
masked_select | x[mask]
index_select | bringup.take(x, i, axis=axis)
index_add scatter_reduce | x.at[i].add(v)
repeat_interleave | repeat
expand | broadcast_to
flatten | ravel
view_as | bringup.reshape(x, y.shape)
chunk | array_split
no_grad inference_mode | none | only what bringup.grad is given is differentiated
compile | jit
func | bringup.grad, bringup.vmap and bringup.jvp
autograd backward | grad
time | none | numpy.asarray(x) waits for the values, so read a clock after it
get_default_dtype | bringup.result_type(1.0)
autocast | bringup.amp.Policy(compute=dtype).apply(fn)
GradScaler | amp.LossScale
quantize_per_tensor quantize_per_channel | quant.quantize
quantize_dynamic | bringup.quant.quantize_params(params, dynamic=True)
fake_quantize_per_tensor_affine fake_quantize_per_channel_affine | quant.fake_quantize
"""

_METHODS = """
view | bringup.reshape(x, shape)
numpy | numpy.asarray(x)
copy clone | x itself: arrays are immutable
permute | bringup.permute_dims(x, axes)
t | x.T
H mH | bringup.conj(x.mT)
cpu cuda | x.to("name of a device")
detach | none | only what bringup.grad is given is differentiated
requires_grad backward grad | bringup.grad(fn)(x)
fill | bringup.full_like(x, value)
float | bringup.astype(x, bringup.float32)
double | bringup.astype(x, bringup.float64)
half | bringup.astype(x, bringup.float16)
long | bringup.astype(x, bringup.int64)
int | bringup.astype(x, bringup.int32)
flat | bringup.reshape(x, -1)
itemsize | x.dtype.itemsize
strides | none | arrays have no strides: a device lays them out
data | none | the memory is the device's; numpy.asarray(x) reads it
tobytes | numpy.asarray(x).tobytes()
dim | x.ndim
numel | x.size
element_size | x.dtype.itemsize
"""

_UPDATES = """
mul | x.at[i].multiply(v)
"""

#: Title of a section, the namespace of ours where its names are looked for first, and its lines.
SECTIONS: tuple[tuple[str, str, str], ...] = (
    ("numpy and jax.numpy", "", _NUMPY),
    ("numpy.linalg and jax.scipy.linalg", "linalg", _NUMPY_LINALG),
    ("numpy.fft and scipy.fft", "fft", _NUMPY_FFT),
    ("jax.nn and torch.nn.functional", "nn", _NN),
    ("jax.lax and jax.ops", "", _LAX),
    ("jax.random, numpy.random and torch", "random", _RANDOM),
    ("jax.scipy.special and scipy.special", "special", _SPECIAL),
    ("jax.tree and jax.tree_util", "tree", _TREE),
    ("optax and torch.optim", "optim", _OPTIM),
    ("jax", "", _JAX),
    ("torch", "", _TORCH),
    ("methods and attributes of arrays", "Array", _METHODS),
    ("x.at[i] of jax.numpy", "at", _UPDATES),
)

#: Names that other libraries give to parameters, and ours, the likeliest first.
PARAMETERS: dict[str, tuple[str, ...]] = {
    "a": ("x", "arrays"),
    "a_max": ("max",),
    "a_min": ("min",),
    "arr": ("x",),
    "axes": ("axis",),
    "axis": ("axes",),
    "ddof": ("correction",),
    "dim": ("axis", "axes"),
    "dims": ("axes", "axis", "shape"),
    "fill_value": ("fill",),
    "input": ("x",),
    "keepdim": ("keepdims",),
    "lower": ("low",),
    "newshape": ("shape",),
    "other": ("x2",),
    "p": ("rate",),
    "reps": ("repetitions",),
    "rng": ("key",),
    "shape": ("sizes",),
    "size": ("shape",),
    "tensors": ("arrays",),
    "unbiased": ("correction",),
    "upper": ("high",),
}


@cache
def table() -> tuple[Foreign, ...]:
    """Every row, in the order of the sections."""
    rows = []
    for section, space, text in SECTIONS:
        for line in text.strip().splitlines():
            names, answer, *why = line.split(" | ")
            if re.fullmatch(r"(?!x\.)[\w.]+", answer):
                answer = f"bringup.{answer}"
            answer = "" if why else answer
            rows += [Foreign(section, space, n, answer, *why) for n in names.split()]
    return tuple(rows)


def standard(name: str) -> str | None:
    """The function of ours that numpy calls `name`."""
    rows = (row for row in table() if row.name == name and row.section.startswith("numpy"))
    answer = next(rows, None)
    plain = answer is not None and re.fullmatch(r"bringup\.\w+", answer.answer)
    return plain.string.removeprefix("bringup.") if plain else None
