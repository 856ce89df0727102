"""Functions of SciPy and scikit-learn that are written for the array API standard take arrays."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("scipy", reason="needs SciPy")

PAGE = Path(__file__).resolve().parents[3] / "docs" / "how-to" / "everyday.md"

#: SciPy reads its environment when it is imported, so that both run in a process of their own.
FUNCTIONS = """
import os

os.environ["SCIPY_ARRAY_API"] = "1"
import numpy as np
from scipy import fft, integrate, signal, special, stats
from sklearn import config_context, metrics, preprocessing

import bringup as bu

x, y = np.random.default_rng(0).normal(size=(2, 6, 5))


def check(function, *operands, traced=True):
    wanted = function(*operands)
    arrays = [bu.asarray(each) for each in operands]
    for found in [function(*arrays), *([bu.jit(function)(*arrays)] if traced else [])]:
        assert isinstance(found, bu.Array), found
        # Whether it is the same function; how close values are is the suite's matter.
        np.testing.assert_allclose(np.asarray(found), wanted, rtol=1e-9, atol=1e-9)


check(fft.rfft, x)
check(fft.fftn, x)
check(special.softmax, x)
check(special.gammaln, abs(x))
check(special.xlogy, abs(x), abs(y))
check(stats.gmean, abs(x))
check(stats.moment, x)
check(integrate.trapezoid, x)
check(signal.fftconvolve, x, y)
# These look whether their arguments are finite.
with config_context(array_api_dispatch=True):
    check(metrics.pairwise.rbf_kernel, x, y, traced=False)
    check(preprocessing.KernelCenterer().fit_transform, x[:5], traced=False)
"""


def run(script: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", script], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_they_compute_what_they_do_on_arrays_of_numpy() -> None:
    run(FUNCTIONS)


def test_what_the_page_of_everyday_questions_says_of_them_holds() -> None:
    blocks = re.findall(r"```py\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    (block,) = [block for block in blocks if "scipy" in block]
    run(f"import bringup as bu\n{block}")
