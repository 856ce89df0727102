"""Programs as users of JAX write them; only the lines of imports name bringup.

`test_programs` runs them as they stand, and once more with numpy in the place of the imports.
"""

from functools import partial

import numpy as np

import bringup as jax
import bringup as jnp
from bringup import grad, jit, lax, nn, random, segment_sum, value_and_grad, vmap
from bringup.linalg import cho_solve, solve_triangular
from bringup.nn import relu, resize, softplus
from bringup.special import logsumexp

# ---- 1: a transformer as nanoGPT has it, with dropout, Adam and a cache of keys and values

V, D, H, T, L = 11, 8, 2, 6, 1


def gpt_init(key):
    def dense(key, n, m):
        return random.normal(key, (n, m)) * 0.3

    key, k1, k2 = random.split(key, 3)
    params = {"wte": dense(k1, V, D), "wpe": dense(k2, T, D), "blocks": []}
    params["ln_f"] = {"g": jnp.ones(D), "b": jnp.zeros((D,))}
    for _ in range(L):
        key, *ks = random.split(key, 5)
        params["blocks"].append(
            {
                "ln_1": {"g": jnp.ones(D), "b": jnp.zeros(D)},
                "attn": {"qkv": dense(ks[0], D, 3 * D), "proj": dense(ks[1], D, D)},
                "ln_2": {"g": jnp.ones(D), "b": jnp.zeros(D)},
                "mlp": {
                    "fc": dense(ks[2], D, 4 * D),
                    "b": jnp.zeros(4 * D),
                    "proj": dense(ks[3], 4 * D, D),
                },
            }
        )
    return params


def layer_norm(x, g, b, eps=1e-5):
    mean = x.mean(-1, keepdims=True)
    var = x.var(-1, keepdims=True)
    return g * (x - mean) / jnp.sqrt(var + eps) + b


def dropout(key, x, rate):
    if key is None:
        return x
    keep = random.bernoulli(key, 1 - rate, x.shape)
    return jnp.where(keep, x / (1 - rate), 0)


def attention(p, x, key):
    b, t, d = x.shape
    q, k, v = jnp.split(x @ p["qkv"], 3, axis=-1)
    q, k, v = (y.reshape(b, t, H, d // H).transpose(0, 2, 1, 3) for y in (q, k, v))
    att = (q @ k.swapaxes(-2, -1)) * (1.0 / np.sqrt(d // H))
    mask = jnp.tril(jnp.ones((t, t), dtype=bool))
    att = jax.nn.softmax(jnp.where(mask[None, None, :, :], att, -jnp.inf), -1)
    y = (dropout(key, att, 0.1) @ v).transpose(0, 2, 1, 3).reshape(b, t, d)
    return y @ p["proj"]


def mlp(p, x):
    return jax.nn.gelu(x @ p["fc"] + p["b"], approximate=True) @ p["proj"]


def gpt(params, tokens, key=None):
    x = params["wte"][tokens] + params["wpe"][jnp.arange(tokens.shape[1])]
    for block in params["blocks"]:
        ka = kb = None
        if key is not None:
            key, ka, kb = random.split(key, 3)
        x = x + attention(block["attn"], layer_norm(x, **block["ln_1"]), ka)
        x = x + dropout(kb, mlp(block["mlp"], layer_norm(x, **block["ln_2"])), 0.1)
    return layer_norm(x, **params["ln_f"]) @ params["wte"].T


def gpt_loss(params, tokens, targets, key=None):
    logp = jax.nn.log_softmax(gpt(params, tokens, key), axis=-1)
    return -jnp.take_along_axis(logp, targets[..., None], axis=-1)[..., 0].mean()


def adam_init(params):
    zeros = jax.tree.map(jnp.zeros_like, params)
    return {"m": zeros, "v": zeros, "t": jnp.zeros((), jnp.int32)}


def adam(grads, state, params, lr=1e-2, b1=0.9, b2=0.999, eps=1e-8):
    t = state["t"] + 1
    m = jax.tree.map(lambda m, g: b1 * m + (1 - b1) * g, state["m"], grads)
    v = jax.tree.map(lambda v, g: b2 * v + (1 - b2) * g**2, state["v"], grads)
    scale = jnp.sqrt(1 - b2**t) / (1 - b1**t)
    params = jax.tree.map(lambda p, m, v: p - lr * scale * m / (jnp.sqrt(v) + eps), params, m, v)
    return params, {"m": m, "v": v, "t": t}


@jax.jit
def gpt_step(params, state, tokens, targets, key=None):
    loss, grads = jax.value_and_grad(gpt_loss)(params, tokens, targets, key)
    params, state = adam(grads, state, params)
    return params, state, loss


@jax.jit
def decode(params, cache, pos, token):
    x = params["wte"][token] + params["wpe"][pos]
    new = []
    for block, (ck, cv) in zip(params["blocks"], cache):
        h = layer_norm(x, **block["ln_1"])
        q, k, v = jnp.split(h @ block["attn"]["qkv"], 3, axis=-1)
        q, k, v = (y.reshape(-1, H, 1, D // H) for y in (q, k, v))
        ck = lax.dynamic_update_slice(ck, k, (0, 0, pos, 0))
        cv = lax.dynamic_update_slice(cv, v, (0, 0, pos, 0))
        att = jnp.einsum("bhqd,bhkd->bhqk", q, ck) / np.sqrt(D // H)
        att = jnp.where(jnp.arange(T) <= pos, att, -jnp.inf)
        y = jnp.einsum("bhqk,bhkd->bhqd", jax.nn.softmax(att, axis=-1), cv)
        x = x + y.reshape(-1, D) @ block["attn"]["proj"]
        x = x + mlp(block["mlp"], layer_norm(x, **block["ln_2"]))
        new.append((ck, cv))
    return layer_norm(x, **params["ln_f"]) @ params["wte"].T, new


def sample(params, key, prompt, n):
    cache = [(jnp.zeros((1, H, T, D // H)), jnp.zeros((1, H, T, D // H))) for _ in range(L)]
    out = list(prompt)
    for i in range(n):
        logits, cache = decode(params, cache, i, jnp.array([out[i]]))
        if i + 1 == len(out):
            key, sub = random.split(key)
            out.append(int(random.categorical(sub, logits[0] / 0.8)))
    return out, logits


# ---- 2: a step of a ResNet


def conv(x, w, stride=1):
    return lax.conv_general_dilated(
        x, w, (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


def resnet_init(key, widths=(4, 6)):
    def he(key, k, i, o):
        return random.normal(key, (k, k, i, o)) * np.sqrt(2.0 / (k * k * i))

    key, k = random.split(key)
    params, stats = {"stem": he(k, 3, 3, widths[0])}, {}
    i = widths[0]
    for n, o in enumerate(widths):
        key, k1, k2, k3 = random.split(key, 4)
        block = {"conv1": he(k1, 3, i, o), "conv2": he(k2, 3, o, o)}
        if i != o:
            block["proj"] = he(k3, 1, i, o)
        block["bn1"], block["bn2"] = ({"scale": jnp.ones(o), "bias": jnp.zeros(o)} for _ in "12")
        params[f"block{n}"] = block
        stats[f"block{n}"] = {b: {"mean": jnp.zeros(o), "var": jnp.ones(o)} for b in ("bn1", "bn2")}
        i = o
    params["fc"] = {"w": random.normal(key, (i, 5)) / np.sqrt(i), "b": jnp.zeros(5)}
    return params, stats


def batch_norm(p, s, x, momentum=0.9, eps=1e-5):
    mean = jnp.mean(x, (0, 1, 2))
    var = jnp.mean(jnp.square(x - mean), axis=(0, 1, 2))
    s = {
        "mean": momentum * s["mean"] + (1 - momentum) * mean,
        "var": momentum * s["var"] + (1 - momentum) * var,
    }
    return (x - mean) * lax.rsqrt(var + eps) * p["scale"] + p["bias"], s


def resnet(params, stats, x):
    new = {}
    x = nn.relu(conv(x, params["stem"]))
    x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")
    for n, name in enumerate(stats):
        p, s = params[name], stats[name]
        stride = 2 if n > 0 else 1
        y, bn1 = batch_norm(p["bn1"], s["bn1"], conv(x, p["conv1"], stride))
        y, bn2 = batch_norm(p["bn2"], s["bn2"], conv(nn.relu(y), p["conv2"]))
        x = nn.relu(y + (conv(x, p["proj"], stride) if "proj" in p else x))
        new[name] = {"bn1": bn1, "bn2": bn2}
    x = x.mean(axis=(1, 2))
    return x @ params["fc"]["w"] + params["fc"]["b"], new


def resnet_loss(params, stats, x, y):
    logits, stats = resnet(params, stats, x)
    one_hot = jax.nn.one_hot(y, num_classes=5)
    loss = -jnp.sum(one_hot * jax.nn.log_softmax(logits)) / x.shape[0]
    return loss, (stats, (logits.argmax(-1) == y).mean())


@jax.jit
def resnet_step(params, stats, velocity, x, y, lr=0.1):
    (loss, (stats, acc)), grads = jax.value_and_grad(resnet_loss, has_aux=True)(params, stats, x, y)
    velocity = jax.tree_util.tree_map(lambda v, g: 0.9 * v + g, velocity, grads)
    params = jax.tree_util.tree_map(lambda p, v: p - lr * v, params, velocity)
    return params, stats, velocity, loss, acc


# ---- 3: an LSTM over a scan


def lstm_init(key, d, h):
    k1, k2, k3 = random.split(key, 3)
    bound = 1 / np.sqrt(h)
    return dict(
        wx=random.uniform(k1, (d, 4 * h), minval=-bound, maxval=bound),
        wh=random.uniform(k2, (h, 4 * h), jnp.float32, -bound, bound),
        b=jnp.zeros(4 * h),
        out=random.normal(k3, (h, 1)) * bound,
    )


def lstm_cell(params, carry, x):
    h, c = carry
    z = jnp.dot(x, params["wx"]) + h.dot(params["wh"]) + params["b"]
    i, f, g, o = jnp.split(z, 4, axis=1)
    c = jax.nn.sigmoid(f + 1.0) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
    h = jax.nn.sigmoid(o) * jnp.tanh(c)
    return (h, c), h


def lstm_loss(params, xs, ys):
    h0 = jnp.zeros((xs.shape[0], params["wh"].shape[0]))
    xs = jnp.swapaxes(xs, 0, 1)
    _, hs = jax.lax.scan(lambda c, x: lstm_cell(params, c, x), (h0, h0), xs)
    return jnp.mean(((hs[-1] @ params["out"]).squeeze(-1) - ys) ** 2)


# ---- 4: a variational autoencoder


def vae_init(key, sizes):
    keys = random.split(key, len(sizes))
    return [
        (random.normal(k, (m, n)) / np.sqrt(m), jnp.zeros((n,))) for k, (m, n) in zip(keys, sizes)
    ]


def elbo(params, key, x):
    enc, mu_p, var_p, dec, out = params
    h = relu(jnp.dot(x, enc[0]) + enc[1])
    mu, log_var = h @ mu_p[0] + mu_p[1], h @ var_p[0] + var_p[1]
    z = mu + jnp.exp(0.5 * log_var) * random.normal(key, mu.shape)
    logits = relu(z @ dec[0] + dec[1]) @ out[0] + out[1]
    reconstruction = -jnp.sum(softplus(jnp.where(x > 0.5, -1.0, 1.0) * logits), axis=-1)
    kl = 0.5 * jnp.sum(jnp.exp(log_var) + mu**2 - 1.0 - log_var, axis=-1)
    return (reconstruction - kl).mean()


@jit
def vae_step(params, key, x):
    loss, grads = value_and_grad(lambda p: -elbo(p, key, x))(params)
    return [(w - 1e-2 * dw, b - 1e-2 * db) for (w, b), (dw, db) in zip(params, grads)], loss


# ---- 5: a UNet that takes noise from images

C = 4


def unet_init(key):
    def kernel(key, k, i, o):
        return {"w": random.normal(key, (k, k, i, o)) / np.sqrt(k * k * i), "b": jnp.zeros(o)}

    def res(key, i, o):
        k = random.split(key, 4)
        time = random.normal(k[2], (C, o)) / np.sqrt(C)
        skip = kernel(k[3], 1, i, o)
        return {"c1": kernel(k[0], 3, i, o), "c2": kernel(k[1], 3, o, o), "t": time, "skip": skip}

    k = random.split(key, 5)
    qkv = zip("qkv", random.split(k[2], 3))
    return {
        "in": kernel(k[0], 3, 3, C),
        "down": res(k[1], C, C),
        "attn": {n: random.normal(key, (C, C)) / np.sqrt(C) for n, key in qkv},
        "up": res(k[3], 2 * C, C),
        "out": kernel(k[4], 3, C, 3),
    }


def biased(p, x):
    return conv(x, p["w"]) + p["b"]


def group_norm(x, groups=2, eps=1e-6):
    b, h, w, c = x.shape
    x = x.reshape(b, h, w, groups, c // groups)
    mean = x.mean(axis=(1, 2, 4), keepdims=True)
    var = x.var(axis=(1, 2, 4), keepdims=True)
    return ((x - mean) / jnp.sqrt(var + eps)).reshape(b, h, w, c)


def time_embedding(t, dim):
    half = dim // 2
    frequencies = jnp.exp(-np.log(10000.0) * jnp.arange(half) / half)
    args = t[:, None].astype(jnp.float32) * frequencies[None]
    return jnp.concatenate([jnp.sin(args), jnp.cos(args)], axis=-1)


def res_block(p, x, time):
    h = biased(p["c1"], jax.nn.swish(group_norm(x))) + (time @ p["t"])[:, None, None, :]
    return biased(p["c2"], jax.nn.swish(group_norm(h))) + biased(p["skip"], x)


def spatial_attention(p, x):
    b, h, w, c = x.shape
    q, k, v = (group_norm(x).reshape(b, h * w, c) @ p[n] for n in "qkv")
    a = jax.nn.softmax(jnp.einsum("bic,bjc->bij", q, k) * c**-0.5, axis=-1)
    return x + jnp.einsum("bij,bjc->bic", a, v).reshape(x.shape)


def unet(p, x, t):
    time = jax.nn.silu(time_embedding(t, C))
    skip = res_block(p["down"], biased(p["in"], x), time)
    h = lax.reduce_window(skip, 0.0, lax.add, (1, 2, 2, 1), (1, 2, 2, 1), "VALID") / 4
    h = spatial_attention(p["attn"], h)
    b, height, width, c = h.shape
    h = resize(h, (b, 2 * height, 2 * width, c), "nearest")
    h = res_block(p["up"], jnp.concatenate([h, skip], axis=-1), time)
    return biased(p["out"], jax.nn.silu(group_norm(h)))


alpha_bar = jnp.array(np.cumprod(1 - np.linspace(1e-4, 0.02, 1000)), dtype=jnp.float32)


def unet_loss(p, key, x, t):
    noise = random.normal(key, x.shape)
    a = alpha_bar[t][:, None, None, None]
    return jnp.mean((unet(p, jnp.sqrt(a) * x + jnp.sqrt(1 - a) * noise, t) - noise) ** 2)


# ---- 6: mixed precision with a scale of the loss that is found while training


def mixed_forward(params, x, dtype):
    params = jax.tree.map(lambda p: p.astype(dtype), params)
    x = x.astype(dtype)
    for layer in params[:-1]:
        x = jnp.maximum(x @ layer["w"] + layer["b"], 0)
    return (x @ params[-1]["w"] + params[-1]["b"]).astype(jnp.float32)


def mixed_loss(params, x, y, scale, dtype):
    logits = mixed_forward(params, x, dtype)
    loss = -jnp.mean(jax.nn.log_softmax(logits)[jnp.arange(y.shape[0]), y])
    return loss * scale, loss


@partial(jax.jit, static_argnames="dtype")
def mixed_step(params, scale, good, x, y, dtype):
    (_, loss), grads = jax.value_and_grad(mixed_loss, has_aux=True)(params, x, y, scale, dtype)
    grads = jax.tree.map(lambda g: g / scale, grads)
    finite = jnp.all(jnp.array([jnp.isfinite(g).all() for g in jax.tree.leaves(grads)]))
    params = jax.tree.map(lambda p, g: jnp.where(finite, p - 0.1 * g, p), params, grads)
    good = jnp.where(finite, good + 1, 0)
    scale = jnp.where(finite, jnp.where(good >= 2, scale * 2, scale), jnp.maximum(scale / 2, 1.0))
    return params, scale, jnp.where(good >= 2, 0, good), loss


# ---- 7: pruning by magnitude


def sparsity_at(step, final=0.75, begin=2, end=6):
    frac = jnp.clip((step - begin) / (end - begin), 0.0, 1.0)
    return final * (1 - (1 - frac) ** 3)


def mask_of(w, step):
    threshold = jnp.quantile(jnp.abs(w), sparsity_at(step))
    return (jnp.abs(w) > threshold).astype(w.dtype)


def pruned_loss(w, step, x, y):
    return jnp.mean((jax.nn.relu(x @ (w * mask_of(w, step))) - y) ** 2)


@jit
def pruned_step(w, step, x, y):
    return w - 0.1 * grad(pruned_loss)(w, step, x, y), mask_of(w, step).mean()


# ---- 8: a network quantised to int8


def quantize(x, axis):
    scale = jnp.max(jnp.abs(x), axis=axis, keepdims=True) / 127.0
    scale = jnp.where(scale == 0, 1.0, scale)
    return jnp.clip(jnp.round(x / scale), -127, 127).astype(jnp.int8), scale


@jax.jit
def quantized_forward(layers, x):
    for i, (wq, ws, b) in enumerate(layers):
        xq, xs = quantize(x, -1)
        product = lax.dot_general(
            xq, wq, (((1,), (0,)), ((), ())), preferred_element_type=jnp.int32
        )
        x = product.astype(jnp.float32) * xs * ws + b
        x = jax.nn.relu(x) if i < len(layers) - 1 else x
    return x


# ---- 9: heat by rolled and by sliced arrays, a wave by a while loop


def laplacian(u):
    return (
        jnp.roll(u, 1, 0) + jnp.roll(u, -1, 0) + jnp.roll(u, 1, 1) + jnp.roll(u, -1, axis=1) - 4 * u
    )


@partial(jax.jit, static_argnums=1)
def heat_roll(u, steps):
    return lax.fori_loop(0, steps, lambda i, u: u + 0.1 * laplacian(u), u)


@jax.jit
def heat_slices(u):
    def body(i, u):
        inner = u[2:, 1:-1] + u[:-2, 1:-1] + u[1:-1, 2:] + u[1:-1, :-2] - 4 * u[1:-1, 1:-1]
        return u.at[1:-1, 1:-1].add(0.1 * inner)

    return jax.lax.fori_loop(0, 5, body, u)


@jax.jit
def wave(u, v, t_end, dt=0.125):
    def body(state):
        u, v, t = state
        v = v + dt * laplacian(u)
        return u + dt * v, v, t + dt

    return lax.while_loop(cond_fun=lambda s: s[2] < t_end, body_fun=body, init_val=(u, v, 0.0))


# ---- 10: a Kalman filter


def kalman(params, ys):
    A, C = params["A"], params["C"]
    n, m = A.shape[0], C.shape[0]
    Q = jnp.diag(jnp.exp(params["logq"]))
    R = jnp.diag(jnp.exp(params["logr"]))

    def step(carry, y):
        mean, P = carry
        mean = A @ mean
        P = A @ P @ A.T + Q
        S = C @ P @ C.T + R
        r = y - C @ mean
        K = jnp.linalg.solve(S, C @ P).T
        _, logdet = jnp.linalg.slogdet(S)
        ll = -0.5 * (r @ jnp.linalg.solve(S, r) + logdet + np.log(2 * np.pi) * m)
        return (mean + K @ r, P - K @ S @ K.T), (mean, ll)

    _, (means, lls) = lax.scan(step, (jnp.zeros(n), jnp.eye(n)), ys)
    return -lls.sum(), means


# ---- 11: k-means


@partial(jit, static_argnums=(1, 2))
def kmeans(x, k, iterations):
    def step(centers, _):
        d = ((x[:, None, :] - centers[None, :, :]) ** 2).sum(-1)
        nearest = jnp.argmin(d, axis=1)
        counts = jnp.bincount(nearest, length=k)
        sums = segment_sum(x, nearest, num_segments=k)
        centers = jnp.where(counts[:, None] > 0, sums / jnp.maximum(counts, 1)[:, None], centers)
        return centers, jnp.min(d, axis=1).mean()

    return jax.lax.scan(step, x[:k], None, length=iterations)


# ---- 12: a Gaussian process


def rbf(params, x, y):
    return jnp.exp(params["amp"]) * jnp.exp(
        -0.5 * jnp.sum((x - y) ** 2) / jnp.exp(2 * params["scale"])
    )


def gram(params, xs, ys):
    return vmap(lambda x: vmap(lambda y: rbf(params, x, y))(ys))(xs)


def gp_factor(params, x):
    return jnp.linalg.cholesky(gram(params, x, x) + jnp.eye(len(x)) * jnp.exp(params["noise"]))


def gp_loss(params, x, y):
    L = gp_factor(params, x)
    alpha = cho_solve((L, True), y)
    return 0.5 * y.T @ alpha + jnp.sum(jnp.log(jnp.diag(L))) + 0.5 * len(x) * jnp.log(2 * jnp.pi)


def gp_predict(params, x, y, new):
    L = gp_factor(params, x)
    Ks = gram(params, x, new)
    v = solve_triangular(L, Ks, lower=True)
    return Ks.T @ cho_solve((L, True), y), jnp.exp(params["amp"]) - (v * v).sum(0)


# ---- 13: bodies that attract each other


def potential(xi, x, m):
    r2 = jnp.sum((x - xi) ** 2, axis=-1)
    return -jnp.sum(m * (r2 + 1e-2) ** -0.5)


def acceleration(x, m):
    return -vmap(grad(potential), in_axes=(0, None, None))(x, x, m)


@jit
def bodies(x, v, m, dt=0.01):
    def leapfrog(carry, _):
        x, v = carry
        v = v + 0.5 * dt * acceleration(x, m)
        x = x + dt * v
        v = v + 0.5 * dt * acceleration(x, m)
        return (x, v), 0.5 * (m * (v**2).sum(-1)).sum()

    return lax.scan(leapfrog, (x, v), xs=None, length=3)


# ---- 14: Runge and Kutta with steps of chosen size

A = [
    [],
    [1 / 5],
    [3 / 40, 9 / 40],
    [44 / 45, -56 / 15, 32 / 9],
    [19372 / 6561, -25360 / 2187, 64448 / 6561, -212 / 729],
    [9017 / 3168, -355 / 33, 46732 / 5247, 49 / 176, -5103 / 18656],
    [35 / 384, 0, 500 / 1113, 125 / 192, -2187 / 6784, 11 / 84],
]
NODES = np.array([0, 1 / 5, 3 / 10, 4 / 5, 8 / 9, 1, 1])
B5 = jnp.array([35 / 384, 0, 500 / 1113, 125 / 192, -2187 / 6784, 11 / 84, 0])
B4 = jnp.array([5179 / 57600, 0, 7571 / 16695, 393 / 640, -92097 / 339200, 187 / 2100, 1 / 40])


def van_der_pol(y, t, mu=2.0):
    return jnp.array([y[1], mu * (1 - y[0] ** 2) * y[1] - y[0]])


@partial(jax.jit, static_argnums=(0,))
def odeint(f, y0, t0, t1, rtol=1e-3, atol=1e-5):
    def cond(state):
        t, _, _, n = state
        return (t < t1) & (n < 1000)

    def body(state):
        t, y, h, n = state
        h = jnp.minimum(h, t1 - t)
        ks = []
        for row, node in zip(A, NODES):
            dy = sum((a * k for a, k in zip(row, ks)), jnp.zeros_like(y))
            ks.append(f(y + h * dy, t + node * h))
        k = jnp.stack(ks)
        y5 = y + h * (B5 @ k)
        err = h * jnp.dot(B5 - B4, k)
        norm = jnp.sqrt(jnp.mean((err / (atol + rtol * jnp.maximum(jnp.abs(y), jnp.abs(y5)))) ** 2))
        factor = jnp.clip(0.9 * norm**-0.2, 0.2, 5.0)
        t, y = jax.lax.cond(norm <= 1.0, lambda _: (t + h, y5), lambda _: (t, y), None)
        return t, y, h * factor, n + 1

    return jax.lax.while_loop(cond, body, (t0, y0, 0.01, 0))


# ---- 15: Hamiltonian Monte Carlo

precision = jnp.array(1.0 / np.linspace(0.5, 1.5, 3) ** 2)


def log_density(x):
    return -0.5 * jnp.sum(precision * x**2)


def hamiltonian(x, p, eps, steps=5):
    p = p + 0.5 * eps * grad(log_density)(x)

    def body(_, xp):
        x, p = xp
        x = x + eps * p
        return x, p + eps * grad(log_density)(x)

    x, p = lax.fori_loop(0, steps - 1, body, (x, p))
    x = x + eps * p
    return x, p + 0.5 * eps * grad(log_density)(x)


def hmc_step(x, key, eps=0.35):
    key_p, key_u = random.split(key)
    p0 = random.normal(key_p, x.shape)
    xn, pn = hamiltonian(x, p0, eps)
    log_accept = log_density(xn) - 0.5 * pn @ pn - log_density(x) + 0.5 * p0 @ p0
    accept = jnp.log(random.uniform(key_u)) < log_accept
    x = jnp.where(accept, xn, x)
    return x, (x, accept)


@partial(jit, static_argnums=2)
def hmc(key, x0, n):
    return lax.scan(hmc_step, x0, random.split(key, n))[1]


# ---- 16: a spectrogram


@jax.jit
def spectrogram(x):
    size, hop = 16, 8
    window = 0.5 - 0.5 * jnp.cos(2 * jnp.pi * jnp.arange(size) / size)
    count = (x.shape[0] - size) // hop + 1
    frames = x[jnp.arange(size)[None, :] + hop * jnp.arange(count)[:, None]] * window
    power = jnp.abs(jnp.fft.rfft(frames, axis=-1)) ** 2
    return power, (power * jnp.fft.rfftfreq(size, 1 / 8000)).sum(1) / power.sum(1)


# ---- 17: PageRank


@partial(jit, static_argnames=["n"])
def pagerank(src, dst, n, damping=0.85, tol=1e-5):
    out = segment_sum(jnp.ones(src.shape), src, n)
    inverse = jnp.where(out > 0, 1.0 / jnp.maximum(out, 1.0), 0.0)

    def cond(state):
        _, delta, i = state
        return jnp.logical_and(delta > tol, i < 100)

    def body(state):
        r, _, i = state
        spread = segment_sum(r[src] * inverse[src], dst, n)
        dangling = jnp.sum(jnp.where(out == 0, r, 0.0))
        new = (1 - damping) / n + damping * (spread + dangling / n)
        return new, jnp.abs(new - r).sum(), i + 1

    return lax.while_loop(cond, body, (jnp.full(n, 1 / n), jnp.inf, 0))


# ---- 18: blur, edges, a depthwise convolution and a median


def gaussian(k, sigma=1.5):
    x = jnp.linspace(-(k // 2), k // 2, k)
    w = jnp.exp(-0.5 * (x / sigma) ** 2)
    w = jnp.outer(w, w)
    return w / w.sum()


@jit
def image_filters(image):
    blur = lax.conv_general_dilated(image[:, None], gaussian(5)[None, None], (1, 1), "SAME")
    sobel = jnp.array([[-1, 0, 1], [-2, 0, 2], [-1, 0, 1]], dtype=jnp.float32)
    edges = lax.conv(blur, jnp.stack([sobel, sobel.T])[:, None], (1, 1), "VALID")
    magnitude = jnp.sqrt(jnp.sum(edges**2, axis=1) + 1e-12)
    colours = jnp.stack([image, blur[:, 0]], axis=-1)
    each = jnp.tile(gaussian(3)[:, :, None, None], (1, 1, 1, 2))
    depthwise = lax.conv_general_dilated(
        colours,
        each,
        window_strides=(1, 1),
        padding="SAME",
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
        feature_group_count=2,
    )
    padded = jnp.pad(image, ((0, 0), (1, 1), (1, 1)), mode="edge")
    h, w = image.shape[1:]
    shifted = [padded[:, i : i + h, j : j + w] for i in range(3) for j in range(3)]
    return blur, magnitude, depthwise, jnp.median(jnp.stack(shifted), axis=0)


# ---- 19: beam search


@partial(jit, static_argnums=(3, 4))
def beam_search(emb, wh, wo, k, length):
    vocabulary = wo.shape[1]

    def step(carry, t):
        tokens, scores, state, alive = carry
        prev = jnp.where(t == 0, 0, tokens[:, t - 1])
        state = jnp.tanh(emb[prev] + state @ wh)
        logp = jax.nn.log_softmax(state @ wo, axis=-1)
        ended = jnp.where(jnp.arange(vocabulary) == 1, 0.0, -jnp.inf)
        total = scores[:, None] + jnp.where(alive[:, None], logp, ended)
        scores, flat = lax.top_k(total.reshape(-1), k)
        beam, token = flat // vocabulary, flat % vocabulary
        tokens = tokens[beam].at[:, t].set(token)
        return (tokens, scores, state[beam], alive[beam] & (token != 1)), scores

    tokens = jnp.zeros((k, length), dtype=jnp.int32)
    scores = jnp.full(k, -jnp.inf).at[0].set(0.0)
    init = (tokens, scores, jnp.zeros((k, wh.shape[0])), jnp.ones(k, bool))
    (tokens, scores, _, _), history = lax.scan(step, init, jnp.arange(length))
    return tokens, scores, history


# ---- 20: logistic regression by minibatches of numpy


def logistic_loss(params, x, y, l2=1e-3):
    w, b = params
    logits = jnp.dot(x, w) + b
    logp = logits - logsumexp(logits, axis=1, keepdims=True)
    return -jnp.mean(jnp.sum(y * logp, axis=1)) + l2 * jnp.sum(w**2)


@jit
def logistic_step(params, x, y):
    return [p - 0.5 * g for p, g in zip(params, grad(logistic_loss)(params, x, y))]


def accuracy(params, x, y):
    w, b = params
    return jnp.mean(jnp.argmax(x @ w + b, axis=1) == jnp.argmax(y, 1))
