"""Random numbers as functions of keys, as ``bringup.random``.

A key is a value: the same key gives the same numbers, on every device, fused or not, in `jit` or
outside.  So it must be used once: `split` it, or `fold_in` the number of a step, for more.

Samplers fuse into what reads them, and their bits never reach memory unless they are asked for.
Arithmetic that devices may round differently is kept out of them.  Where it is not, numbers may
differ in their last digits: `truncated_normal` between arrays, `dirichlet`, `multivariate_normal`,
and what is compared
with a sum or a logarithm of arguments: `categorical` and `choice` with weights.
"""

from __future__ import annotations

from bringup.api.boundary import publish
from bringup.api.distributions import (
    beta,
    binomial,
    cauchy,
    chisquare,
    dirichlet,
    gamma,
    geometric,
    logistic,
    lognormal,
    multivariate_normal,
    pareto,
    poisson,
    rademacher,
    rayleigh,
    t,
    weibull_min,
)
from bringup.api.keys import Key, bits, fold_in, key, split
from bringup.api.samplers import (
    bernoulli,
    categorical,
    choice,
    exponential,
    gumbel,
    laplace,
    normal,
    permutation,
    randint,
    shuffle,
    truncated_normal,
    uniform,
)

PRNGKey = key

__all__ = [
    "Key", "PRNGKey", "bernoulli", "beta", "binomial", "bits", "categorical", "cauchy", "chisquare",
    "choice", "dirichlet", "exponential", "fold_in", "gamma", "geometric", "gumbel", "key",
    "laplace", "logistic", "lognormal", "multivariate_normal", "normal", "pareto", "permutation",
    "poisson", "rademacher", "randint", "rayleigh", "shuffle", "split", "t", "truncated_normal",
    "uniform", "weibull_min",
]  # fmt: skip

publish(globals(), "bringup.random")
