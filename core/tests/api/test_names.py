"""Public namespaces: what they list, and what they say of names and arguments they do not have."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import bringup as bu
from bringup.api import foreign_names
from bringup.errors import BringupError, MissingAttributeError, OpTypeError

SPACES = (
    "",
    "nn",
    "nn.init",
    "linalg",
    "fft",
    "random",
    "optim",
    "prune",
    "quant",
    "special",
    "tree",
    "lax",
    "amp",
    "debug",
    "backend",
)


def space(path: str) -> ModuleType:
    module = bu
    for part in path.split(".") if path else ():
        module = getattr(module, part)
    return module


def exists(name: str) -> bool:
    holder: Any = bu
    for part in name.split(".")[1:]:
        if part not in dir(holder):
            return False
        holder = getattr(holder, part)
    return True


@pytest.mark.parametrize("path", SPACES)
def test_dir_lists_the_public_names(path: str) -> None:
    module = space(path)
    names = module.__all__
    assert sorted(dir(module)) == sorted(names)
    assert len(set(names)) == len(names)
    assert [name for name in names if not hasattr(module, name)] == []
    modules = [name for name in names if isinstance(getattr(module, name), ModuleType)]
    assert set(modules) <= {*SPACES, "errors", "init", "tree_util"}
    hidden = [name for name in names if name.startswith("_") and not name.endswith("__")]
    assert hidden == []


def test_dir_has_what_is_imported_late(python: Callable[..., Any]) -> None:
    found = python("import bringup as bu; print(dir(bu), dir(bu.nn))").stdout
    assert {"'fft'", "'sort'", "'scan'", "'init'"} <= set(re.findall(r"'\w+'", found))


def test_names_of_modules_imported_late_are_listed() -> None:
    for module in ("jax_names", "numeric", "numpy_names", "numpy_shapes"):
        names = importlib.import_module(f"bringup.api.{module}").__all__
        assert sorted(names) == list(names)
        assert set(names) <= set(bu.__all__), module


def test_answers_name_what_exists() -> None:
    for row in foreign_names.table():
        text = row.answer or row.why
        for name in re.findall(r"bringup(?:\.\w+)+", text):
            if name not in ("bringup.Array",):
                assert exists(name), (row.name, name)


def test_answers_are_looked_for_where_nothing_else_is() -> None:
    taken = [
        (row.space, row.name)
        for row in foreign_names.table()
        if row.space not in ("Array", "at") and row.name in dir(space(row.space))
    ]
    assert taken == []
    assert [
        row.name
        for row in foreign_names.table()
        if row.space == "Array" and hasattr(bu.Array, row.name)
    ] == []


def test_brackets_of_answers_close() -> None:
    for row in foreign_names.table():
        for opening, closing in ("()", "[]"):
            text = row.answer or row.why
            assert text.count(opening) == text.count(closing), text


#: Names that users of other libraries write, and what the answer has to say.
ASKED = {
    "gather": "bringup.take",
    "image": "bringup.nn.resize",
    "cross": "bringup.linalg.cross",
    "linear_transpose": "bringup.vjp",
    "polygamma": "bringup.special.polygamma",
    "linalg.eig": "symmetric",
    "PRNGKey": "bringup.random.PRNGKey",
    "dot_product_attention": "bringup.nn.attention",
    "initializers": "bringup.nn.init",
    "population_count": "bringup.bitwise_count",
    "clz": "bringup.count_leading_zeros",
    "tree_map": "bringup.tree.tree_map",
    "conv_general_dilated": "bringup.lax.conv_general_dilated",
    "sigmoid": "bringup.nn.sigmoid",
    "softmax": "bringup.nn.softmax",
    "logsumexp": "bringup.nn.logsumexp",
    "savez": "numpy.savez",
    "serialize": "bringup.save",
    "time": "waits",
    "profiler": "BRINGUP_TRACE",
    "argmx": "bringup.argmax",
}
#: Names of numpy, JAX and PyTorch that are missing here; each gets an answer of its own.
MISSING = """
    callback linalg.expm special.gammainc disable_jit unique make_jaxpr
    optim.RMSprop optim.adagrad optim.masked synchronize
"""


@pytest.mark.parametrize("name", [*ASKED, *MISSING.split()])
def test_foreign_names_get_an_answer(name: str) -> None:
    path, _, last = name.rpartition(".")
    with pytest.raises(MissingAttributeError) as caught:
        getattr(space(path), last)
    fix = caught.value.fix or ""
    assert re.search(ASKED.get(name, "."), fix), fix
    assert "names are those of" not in fix
    if name in MISSING.split():
        assert any(row.name == last and row.fix == fix for row in foreign_names.table()), fix


X = np.ones((2, 3), np.float32)
ARGUMENTS: dict[str, tuple[Callable[[], Any], str, str]] = {
    "an option by position": (
        lambda: bu.mean(bu.asarray(X), 0, True),
        "mean: too many",
        r"mean\(x, axis, keepdims=True\)",
    ),
    "a device by position": (
        lambda: bu.zeros((2,), bu.float32, "cpu"),
        "zeros: too many",
        r"zeros\(shape, dtype, device='cpu'\)",
    ),
    "a shape in parts": (
        lambda: bu.reshape(bu.asarray(X), 3, 2),
        "reshape: too many",
        r"reshape\(x, \(3, 2\)\)",
    ),
    "a name of numpy": (lambda: bu.clip(bu.asarray(X), a_min=0), "'a_min'", "write min= "),
    "a name of jax": (
        lambda: bu.random.truncated_normal(bu.random.key(0), lower=2, high=3.0),
        "'low'",
        "write low= ",
    ),
    "a name of torch": (lambda: bu.mean(bu.asarray(X), dim=1), "'dim'", "write axis= "),
    "corrections": (lambda: bu.nanstd(bu.asarray(X), ddof=1), "'ddof'", "write correction= "),
    "a misspelt name": (lambda: bu.sum(bu.asarray(X), axes=1), "'axes'", "write axis= "),
    "a name that is nothing": (lambda: bu.sum(bu.asarray(X), out=1), "'out'", "leave out out="),
    "a name of what has none": (lambda: bu.sum(x=bu.asarray(X)), "positional", "by position"),
    "too few": (lambda: bu.where(bu.asarray(X) > 0), "missing", "give it condition, x1, x2"),
    "a list to add": (lambda: bu.asarray(X) + [1.0], "add: .* not list", "asarray"),  # noqa: RUF005
    "a list to multiply": (lambda: bu.asarray(X) @ [1.0], "matmul: .* not list", "asarray"),
    "a list to take from": (lambda: [1.0] - bu.asarray(X), "subtract: .* not list", "asarray"),
    "an update there is not": (lambda: bu.asarray(X).at[0].mul(2.0), "'mul'", "multiply"),
}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_wrong_arguments_are_explained(name: str) -> None:
    call, what, fix = ARGUMENTS[name]
    with pytest.raises(BringupError, match=what) as caught:
        call()
    assert re.search(fix, caught.value.fix or ""), caught.value.fix
    assert caught.value.location is not None
    assert caught.value.location.file == __file__


def test_operands_that_python_answers_for() -> None:
    n = bu.asarray(2)
    assert [0] * n == [0, 0]
    assert n * "ab" == "abab"
    assert (bu.asarray(X) == None) is False  # noqa: E711
    rows = [1]
    rows += bu.asarray([2, 3])
    assert len(rows) == 3


def test_a_type_error_of_the_users_own_stays_what_it_is() -> None:
    def wrong(x: bu.Array) -> Any:
        return len(3)  # type: ignore[arg-type]

    with pytest.raises(TypeError, match="has no len") as caught:
        bu.jit(wrong)(bu.asarray(X))
    assert not isinstance(caught.value, OpTypeError)


def test_messages_name_the_types_that_were_given() -> None:
    single, double = bu.asarray(X), bu.ones((2, 4))
    with pytest.raises(OpTypeError, match=r"concat: f32\[2,3\] and f64\[2,4\] differ"):
        bu.concat([single, double])
    with pytest.raises(OpTypeError, match=r"stack: f32\[2,3\] and f64\[2,4\] differ"):
        bu.stack([single, double])
    with pytest.raises(OpTypeError, match=r"^conv: ") as caught:
        bu.nn.conv(bu.ones((1, 2, 5), dtype=bu.float32), bu.ones((1, 3, 2)))
    assert "operand 0 was f32[1,2,5] before it was made to fit" in caught.value.notes
    with pytest.raises(OpTypeError, match=r"^bitwise_and: does not take f32"):
        single & single
