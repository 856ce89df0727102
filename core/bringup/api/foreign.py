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
absolute fabs | abs
arccos | acos
arccosh | acosh
arcsin | asin
arcsinh | asinh
arctan | atan
arctan2 | atan2
arctanh | atanh
concatenate | concat
conjugate | conj
cumprod | cumulative_prod
cumsum | cumulative_sum
dot | bringup.matmul(x, y), of more than 2-d bringup.tensordot(x, y, axes=((-1,), (-2,)))
invert bitwise_not | bitwise_invert
left_shift | bitwise_left_shift
right_shift | bitwise_right_shift
power | pow
float_power | bringup.pow(bringup.astype(x, bringup.float64), y)
true_divide | divide
mod | remainder
transpose | permute_dims
amax | max
amin | min
round_ around rint | round
fix | trunc
product | prod
alltrue | all
sometrue | any
in1d | isin
put | x.at[i].set(v)
identity | eye
inner | bringup.tensordot(x, y, axes=((-1,), (-1,)))
matvec | bringup.matmul(x, y[..., None])[..., 0]
vecmat | bringup.matmul(x[..., None, :], y)[..., 0, :]
asanyarray ascontiguousarray | asarray
flatnonzero | bringup.nonzero(bringup.reshape(x, -1))[0]
argwhere | bringup.stack(bringup.nonzero(x), axis=1)
unique | unique_values
iscomplexobj | bringup.isdtype(x.dtype, "complex floating")
isrealobj | not bringup.isdtype(x.dtype, "complex floating")
swapaxes | bringup.moveaxis(x, (i, j), (j, i))
rollaxis | bringup.moveaxis(x, axis, 0)
allclose | bringup.all(bringup.abs(a - b) <= tolerance)
array_equal | bringup.all(a == b)
isclose | bringup.abs(a - b) <= tolerance
isneginf | x == -bringup.inf
isposinf | x == bringup.inf
append | bringup.concat([a, b])
average | bringup.mean(x), or bringup.sum(w * x) / bringup.sum(w)
atleast_1d atleast_2d atleast_3d | bringup.expand_dims(x, axis)
array_split split hsplit vsplit dsplit | slices of x, or bringup.unstack(x)
hstack | bringup.concat(arrays, axis=1), of 1-d arrays bringup.concat(arrays)
column_stack | bringup.concat(arrays, axis=1), of 1-d arrays bringup.stack(arrays, axis=1)
vstack row_stack | bringup.concat(arrays), of 1-d arrays bringup.stack(arrays)
dstack | bringup.concat(arrays, axis=2), of 2-d arrays bringup.stack(arrays, axis=2)
bincount | bringup.zeros(n).at[i].add(1)
histogram | bringup.searchsorted(edges, x) and bringup.zeros(n).at[i].add(1)
digitize | bringup.searchsorted(edges, x, side="right")
convolve correlate | bringup.nn.conv(x, kernel), whose windows are not reversed
cov | x = x - bringup.mean(x, axis=1, keepdims=True), then x @ x.T / (n - 1)
corrcoef | the covariance over bringup.outer(s, s), s the standard deviations
diag | bringup.linalg.diagonal(x), or x[:, None] * bringup.eye(n)
diagflat | x[:, None] * bringup.eye(n)
divmod | divmod(x, y), Python's own
fmod | bringup.sign(x) * bringup.remainder(bringup.abs(x), bringup.abs(y))
modf | (x - bringup.trunc(x), bringup.trunc(x))
frexp | bringup.floor(bringup.log2(bringup.abs(x))) + 1 for the exponent
ldexp | x * 2.0 ** n
exp2 | 2.0 ** x
sinc | bringup.where(x == 0, 1.0, bringup.sin(bringup.pi * x) / (bringup.pi * x))
heaviside | bringup.where(x == 0, y, bringup.astype(x > 0, x.dtype))
deg2rad radians | x * (bringup.pi / 180)
rad2deg degrees | x * (180 / bringup.pi)
fmax | bringup.where(bringup.isnan(x), y, bringup.where(bringup.isnan(y), x, bringup.maximum(x, y)))
fmin | bringup.where(bringup.isnan(x), y, bringup.where(bringup.isnan(y), x, bringup.minimum(x, y)))
geomspace | start * (stop / start) ** bringup.linspace(0, 1, num)
logspace | 10.0 ** bringup.linspace(start, stop, num)
gradient | (x[2:] - x[:-2]) / 2, one-sided at the ends
trapezoid trapz | bringup.sum((y[1:] + y[:-1]) / 2 * bringup.diff(x))
interp | bringup.searchsorted(xs, x), then a line between two elements of ys
kron | bringup.reshape(a[:, None, :, None] * b[None, :, None, :], (n, m))
lexsort | bringup.argsort by the last key first; it is stable
logaddexp2 | bringup.logaddexp(x * bringup.log(2.0), y * bringup.log(2.0)) / bringup.log(2.0)
nan_to_num | bringup.where(bringup.isnan(x), 0.0, x), and bringup.clip for infinities
nansum | bringup.sum(bringup.where(bringup.isnan(x), 0.0, x))
nanmean | bringup.sum(bringup.where(ok, x, 0.0)) / bringup.sum(ok), ok = ~bringup.isnan(x)
nanmax nanargmax | bringup.where(bringup.isnan(x), -bringup.inf, x), then max or argmax
nanmin nanargmin | bringup.where(bringup.isnan(x), bringup.inf, x), then min or argmin
nanstd nanvar nanmedian nanquantile nanpercentile nanprod | x[~bringup.isnan(x)], outside jit
ndim | x.ndim
shape | x.shape; bringup.reshape changes it
size | x.size
copy | x itself: arrays are immutable
pad | bringup.zeros(shape).at[window].set(x)
percentile | bringup.quantile(x, q / 100)
piecewise select choose | bringup.where(condition, x, y)
polyfit | bringup.linalg.pinv(v) @ y, v the powers of x
polyval | Horner's scheme: y = y * x + c for each coefficient c
vander | x[:, None] ** bringup.arange(n - 1, -1, -1)
ptp | bringup.max(x) - bringup.min(x)
ravel | bringup.reshape(x, -1)
resize | bringup.tile, or bringup.nn.resize for images
rot90 | bringup.flip(bringup.permute_dims(x, (1, 0)), axis=0)
fliplr | bringup.flip(x, axis=1)
flipud | bringup.flip(x, axis=0)
tri | bringup.tril(bringup.ones((n, m)))
tril_indices | bringup.nonzero(bringup.tril(bringup.ones((n, n))))
triu_indices | bringup.nonzero(bringup.triu(bringup.ones((n, n))))
unravel_index | i // columns, i % columns
ravel_multi_index | row * columns + column
setdiff1d | bringup.unique_values(x[~bringup.isin(x, y)])
intersect1d | bringup.unique_values(x[bringup.isin(x, y)])
union1d | bringup.unique_values(bringup.concat([x, y]))
unpackbits packbits | bringup.bitwise_right_shift and bringup.bitwise_and
apply_along_axis apply_over_axes vectorize | bringup.vmap(fn)
frompyfunc fromfunction | bringup.vmap(fn)(bringup.arange(n))
save savez load | numpy.savez(file, *bringup.tree.flatten(x)[0]), and numpy.load
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
diagonal | linalg.diagonal
i0 | none | there are no Bessel functions
bartlett blackman hamming hanning kaiser | 0.5 - 0.5 * bringup.cos(...), the window's formula
errstate seterr | none | floats follow IEEE 754 and nothing warns; look for NaN with bringup.isnan
"""

_NUMPY_LINALG = """
norm | linalg.vector_norm
cond | bringup.max(s) / bringup.min(s), s = bringup.linalg.svdvals(x)
lstsq | bringup.linalg.pinv(a) @ b
multi_dot | a @ b @ c
tensorinv tensorsolve | bringup.linalg.inv or bringup.linalg.solve of a reshaped array
solve_toeplitz lu_factor lu_solve cho_solve | linalg.solve
cho_factor | linalg.cholesky
eig eigvals | none | only symmetric matrices have eigenvalues here: bringup.linalg.eigh
schur expm logm sqrtm funm | none | functions of matrices are not there; for symmetric ones use \
bringup.linalg.eigh
"""

_NUMPY_FFT = """
fft2 | bringup.fft.fftn(x, axes=(-2, -1))
ifft2 | bringup.fft.ifftn(x, axes=(-2, -1))
rfft2 | bringup.fft.rfftn(x, axes=(-2, -1))
irfft2 | bringup.fft.irfftn(x, axes=(-2, -1))
dct idct dst | none | there is no cosine transform: bringup.fft.rfft of the mirrored array gives it
"""

_NN = """
swish SiLU | nn.silu
elu | bringup.where(x > 0, x, alpha * bringup.expm1(bringup.minimum(x, 0.0)))
celu | bringup.where(x > 0, x, alpha * bringup.expm1(bringup.minimum(x, 0.0) / alpha))
selu | 1.05070099 * bringup.where(x > 0, x, 1.67326324 * bringup.expm1(bringup.minimum(x, 0.0)))
leaky_relu | bringup.where(x > 0, x, slope * x)
prelu | bringup.where(x > 0, x, slope * x)
relu6 | bringup.clip(x, 0.0, 6.0)
hardtanh hard_tanh | bringup.clip(x, -1.0, 1.0)
hard_sigmoid hardsigmoid | bringup.clip(x + 3.0, 0.0, 6.0) / 6.0
hard_swish hard_silu hardswish | x * bringup.clip(x + 3.0, 0.0, 6.0) / 6.0
mish | x * bringup.tanh(bringup.nn.softplus(x))
glu | a * bringup.nn.sigmoid(b), a and b the halves of x
soft_sign softsign | x / (1 + bringup.abs(x))
squareplus | (x + bringup.sqrt(x * x + b)) / 2
sparse_plus sparse_sigmoid | none | write it with bringup.where
log_softplus | bringup.log(bringup.nn.softplus(x))
logsigmoid | nn.log_sigmoid
standardize | (x - bringup.mean(x, axis=-1, keepdims=True)) \
/ bringup.sqrt(bringup.var(x, axis=-1, keepdims=True) + 1e-5)
normalize | x / bringup.maximum(bringup.linalg.vector_norm(x, axis=1, keepdims=True), 1e-12)
identity | x itself
dot_product_attention scaled_dot_product_attention multi_head_attention | nn.attention
initializers | nn.init
conv1d conv2d conv3d conv_general_dilated | nn.conv
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
clamp | bringup.clip(x, low, high)
rem | bringup.sign(x) * bringup.remainder(bringup.abs(x), bringup.abs(y))
select_n | bringup.where(which, on_true, on_false)
exp2 | 2.0 ** x
population_count | bitwise_count
clz | count_leading_zeros
bitwise_not | bitwise_invert
shift_left | bitwise_left_shift
shift_right_arithmetic | bitwise_right_shift
shift_right_logical | bringup.bitwise_right_shift of an unsigned integer
convert_element_type | astype
broadcast_in_dim broadcast | broadcast_to
concatenate | concat
conv conv_with_general_padding | nn.conv
dot_general batch_matmul | bringup.matmul, or bringup.einsum
dynamic_index_in_dim index_in_dim | bringup.take(x, i, axis=axis)
dynamic_slice_in_dim slice_in_dim slice | bringup.dynamic_slice(x, starts, sizes), or x[a:b]
dynamic_update_slice_in_dim dynamic_update_index_in_dim | dynamic_update_slice
gather | take
scatter scatter_add | x.at[i].set(v), x.at[i].add(v)
scatter_mul scatter_min scatter_max | x.at[i].multiply(v), .min(v), .max(v)
segment_sum | bringup.zeros(n).at[segments].add(x)
segment_max | bringup.full(n, -bringup.inf).at[segments].max(x)
segment_min | bringup.full(n, bringup.inf).at[segments].min(x)
segment_prod | bringup.ones(n).at[segments].multiply(x)
rev | flip
sort_key_val | bringup.argsort(keys), then bringup.take
approx_max_k | top_k
reduce_sum | sum
reduce_max | max
reduce_min | min
reduce_prod | prod
reduce_and | all
reduce_or | any
reduce_window | bringup.nn.max_pool or bringup.nn.avg_pool
reduce | bringup.sum, bringup.max and their kin
cumlogsumexp | bringup.scan with bringup.logaddexp
associative_scan | bringup.scan, one row after the other, or bringup.cumulative_sum
map | bringup.scan to do one row at a time, or bringup.vmap to do all at once
iota broadcasted_iota | arange
integer_pow | pow
is_finite | isfinite
erf_inv | special.erfinv
collapse | reshape
pmean psum all_gather ppermute pmax pmap shard_map | none | a program runs on one device
bitcast_convert_type view | none | bits are not reinterpreted; numpy.asarray(x).view(dtype) does \
it on the host
"""

_RANDOM = """
PRNGKey | random.key
default_rng RandomState seed manual_seed Generator | random.key
rand random random_sample | random.uniform
randn standard_normal | random.normal
integers random_integers | random.randint
randperm | random.permutation
standard_exponential | random.exponential
standard_gamma | random.gamma
lognormal | bringup.exp(bringup.random.normal(key, shape))
rademacher | bringup.where(bringup.random.bernoulli(key, 0.5, shape), 1, -1)
multivariate_normal | mean + bringup.linalg.cholesky(cov) @ bringup.random.normal(key, (n,))
cauchy | bringup.tan(bringup.pi * (bringup.random.uniform(key, shape) - 0.5))
logistic | bringup.log(u) - bringup.log1p(-u), u = bringup.random.uniform(key, shape)
chisquare | 2 * bringup.random.gamma(key, df / 2)
t | normal / bringup.sqrt(chi-square / df)
weibull weibull_min | bringup.random.exponential(key, shape) ** (1 / c)
pareto | bringup.exp(bringup.random.exponential(key, shape) / a)
rayleigh | bringup.sqrt(2 * bringup.random.exponential(key, shape))
geometric | bringup.ceil(bringup.log(u) / bringup.log1p(-p)), u of bringup.random.uniform
binomial | bringup.sum(bringup.random.bernoulli(key, p, (n, *shape)), axis=0)
triangular loggamma wald ball orthogonal | none | write it with bringup.random.uniform and normal
key_data wrap_key_data key_impl | none | a key is opaque; bringup.tree.flatten takes it apart
"""

_SPECIAL = """
expit | nn.sigmoid
logit | bringup.log(x) - bringup.log1p(-x)
gammaln loggamma | special.lgamma
psi | special.digamma
gamma | bringup.exp(bringup.special.lgamma(x)), for x > 0
factorial | bringup.exp(bringup.special.lgamma(x + 1))
betaln | lgamma(a) + lgamma(b) - lgamma(a + b), of bringup.special
beta | bringup.exp of lgamma(a) + lgamma(b) - lgamma(a + b), of bringup.special
logsumexp | nn.logsumexp
softmax | bringup.nn.softmax(x, axis=None)
log_softmax | bringup.nn.log_softmax(x, axis=None)
xlogy | bringup.where(x == 0, 0.0, x * bringup.log(bringup.where(x == 0, 1.0, y)))
xlog1py | bringup.where(x == 0, 0.0, x * bringup.log1p(bringup.where(x == 0, 1.0, y)))
entr | bringup.where(x == 0, 0.0, -x * bringup.log(bringup.where(x == 0, 1.0, x)))
rel_entr | bringup.where(x == 0, 0.0, x * bringup.log(bringup.where(x == 0, 1.0, x / y)))
kl_div | y - x + bringup.where(x == 0, 0.0, x * bringup.log(bringup.where(x == 0, 1.0, x / y)))
ndtr | 0.5 * bringup.special.erfc(-x / bringup.sqrt(2.0))
log_ndtr | bringup.log(0.5 * bringup.special.erfc(-x / bringup.sqrt(2.0))), for x > -20
ndtri | bringup.sqrt(2.0) * bringup.special.erfinv(2 * p - 1)
erfcinv | bringup.special.erfinv(1 - x)
exp2 | 2.0 ** x
polygamma zeta | none | of these functions there is bringup.special.digamma alone
gammainc gammaincc betainc | none | there are no incomplete gamma and beta functions
i0 i0e i1 i1e jv yv | none | there are no Bessel functions
lambertw sph_harm hyp2f1 | none | there is no such function; compute it on the host with scipy
"""

_TREE = """
map tree_multimap | tree.tree_map
leaves tree_leaves | bringup.tree.flatten(x)[0]
structure tree_structure | bringup.tree.flatten(x)[1]
tree_flatten | tree.flatten
tree_unflatten | tree.unflatten
register_pytree_node register_pytree_node_class register_dataclass | tree.register
map_with_path leaves_with_path flatten_with_path tree_map_with_path | \
bringup.tree.flatten(x)[1].paths(), one path for each leaf
tree_reduce reduce | functools.reduce(fn, bringup.tree.flatten(x)[0])
tree_all all | all(bringup.tree.flatten(x)[0])
transpose tree_transpose | none | take it apart with bringup.tree.flatten
ravel_pytree | bringup.concat([bringup.reshape(x, -1) for x in bringup.tree.flatten(tree)[0]])
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
exponential_decay linear_schedule piecewise_constant_schedule | a function of the step as the rate
rmsprop RMSprop lion adagrad Adagrad adadelta adamax lamb lars | none | write it as \
init and update of a bringup.optim.Optimizer
chain ema masked multi_transform | none | compose functions of gradients, state and parameters
"""

_JAX = """
jacobian | jacrev
linearize | bringup.jvp(fn, primals, tangents)
linear_transpose | bringup.vjp(fn, *primals)
make_jaxpr eval_shape | bringup.trace(fn, *args)
xla_computation | bringup.jit(fn).lower(*args)
device_put | x.to(device), or bringup.asarray(values, device=device)
device_get | numpy.asarray(x)
block_until_ready synchronize effects_barrier | numpy.asarray(x), which waits for the values
local_devices device_count | devices
default_device | device
default_backend | device
ShapeDtypeStruct | bringup.float32[4, 8] for the type
enable_x64 | default_dtype
disable_jit | the function without bringup.jit
named_call named_scope | none | dumps and errors name the line of your code
callback pure_callback io_callback | none | a compiled function cannot call Python; return \
the values, or print them with bringup.debug.print
custom_gradient | custom_vjp
export serialize | none | compiled code is kept in the cache by itself
profiler profile | none | set BRINGUP_TRACE=file.json for a timeline
lax | the name itself, as in bringup.scan
numpy | bringup itself
"""

_TORCH = """
cat | concat
tensor as_tensor from_numpy Tensor | asarray
mm bmm | matmul
mv | matmul
ger | outer
norm | linalg.vector_norm
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
flatten | bringup.reshape(x, -1)
view_as | bringup.reshape(x, y.shape)
chunk | slices of x
no_grad inference_mode | none | only what bringup.grad is given is differentiated
compile | jit
func | bringup.grad, bringup.vmap and bringup.jvp
autograd backward | grad
save | numpy.savez(file, *bringup.tree.flatten(x)[0])
time | none | numpy.asarray(x) waits for the values, so read a clock after it
get_default_dtype | bringup.result_type(1.0)
autocast | bringup.amp.Policy(compute=dtype).apply(fn)
GradScaler | amp.LossScale
"""

_METHODS = """
view | bringup.reshape(x, shape)
numpy | numpy.asarray(x)
copy clone | x itself: arrays are immutable
dot | x @ y, up to 2-d
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
get | x[i] itself
subtract | x.at[i].add(-v)
mul | x.at[i].multiply(v)
divide | x.at[i].multiply(1 / v)
power | x.at[i].set(x[i] ** v)
apply | x.at[i].set(fn(x[i]))
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
    "input": ("x",),
    "keepdim": ("keepdims",),
    "maxval": ("high",),
    "minval": ("low",),
    "newshape": ("shape",),
    "num_classes": ("size",),
    "other": ("x2",),
    "p": ("rate",),
    "reps": ("repetitions",),
    "rng": ("key",),
    "shape": ("sizes",),
    "size": ("shape",),
    "tensors": ("arrays",),
    "unbiased": ("correction",),
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
