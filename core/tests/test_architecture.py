"""The rules of DESIGN.md and CONTRIBUTING.md a machine can check; each check is shown to fail."""

from __future__ import annotations

import ast
import functools
import re
import subprocess
import sys
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from bringup.runtime.collection import PAUSED

ROOT = Path(__file__).resolve().parents[2]

# Each group may import itself and the groups before it.
LAYERS: tuple[tuple[str, ...], ...] = (
    ("bounded", "errors", "config", "integers", "lazy", "locks", "records", "target", "version"),
    ("maths",),
    ("dtypes",),
    ("types",),
    ("graph",),
    ("ops",),
    ("tracing",),
    ("passes",),
    ("kernel",),
    ("loops",),
    ("program",),
    ("backend",),
    ("c", "llvm"),
    ("html",),
    ("runtime",),
    ("aot",),
    (
        *("api", "amp", "debug", "fft", "lax", "linalg", "nn", "optim", "prune", "quant"),
        *("random", "special", "tree"),
    ),
    ("cli", "__main__"),
)
RANK = {name: rank for rank, group in enumerate(LAYERS) for name in group}


CORE = "core/bringup"
CONFORMANCE = "conformance/bringup_conformance"
SELFTEST = "conformance/selftest/bringup_selftest"
BACKENDS = (
    "backends/cpu/bringup_cpu",
    "backends/cpu/aot/bringup_aot",
    "backends/c/bringup_c",
    "backends/cuda/bringup_cuda",
    "backends/cuda/emulator/bringup_cuda_emulator",
    "backends/opencl/bringup_opencl",
    "backends/simulator/bringup_simulator",
    "backends/template/bringup_template",
)
BACKEND_PACKAGES = (
    "bringup_aot", "bringup_c", "bringup_cpu", "bringup_cuda", "bringup_cuda_emulator",
    "bringup_opencl", "bringup_simulator", "bringup_template",
)  # fmt: skip
#: What stands on another: a different driver beneath the same code, and what tests the suite.
STANDS_ON = (
    ("bringup_cuda_emulator", "bringup_cuda"),
    ("bringup_selftest", "bringup_conformance"),
)
DEVICE_NAMES = ("cpu", "cuda", "template", "opencl")

# Within these the reader decides: a class stands in one file, and a short function that is called
# once stands in its caller.
MAX_FILE_LINES = 800
MAX_FUNCTION_LINES = 60

# (path, what): why it may stand. An entry that excuses nothing is an error.
EXEMPT = {
    ("conformance/bringup_conformance/oracle/sums.py", "borrows np.log2"): (
        "counts bits, with half a bit of margin"
    ),
    ("core/bringup/dtypes.py", "dtypes imports types"): "`f32[4, 8]` spells a type",
    ("core/bringup/dtypes.py", "dtypes imports api"): "`f32(0.5)` makes an array",
    ("core/bringup/api/foreign_names.py", "names the device 'cpu'"): "a method of PyTorch's arrays",
    ("core/bringup/c/names.py", "names the device 'template'"): "a keyword of C++",
    ("core/bringup/cli/app.py", "names the device 'opencl'"): "a dialect of C",
}

# (module, what it imports): why this import may lie on a cycle. One that is on none is an error.
CYCLES = {
    ("bringup.dtypes", "bringup.types"): "types only: `f32[4, 8]` spells a type",
    ("bringup.dtypes", "bringup.api.array"): "types only: `f32(0.5)` makes an array",
    ("bringup.api.array", "bringup.api.indexing"): "types only: what `x.at` is",
    ("bringup.backend.device", "bringup.backend.dispatch"): "types only: what a dispatcher is",
}


@dataclass(frozen=True)
class Source:
    """One file, with its path relative to the tree that is checked."""

    path: str
    text: str

    @functools.cached_property
    def tree(self) -> ast.Module:
        """What it says, parsed."""
        return ast.parse(self.text)

    @functools.cached_property
    def nodes(self) -> tuple[ast.AST, ...]:
        """Every node of the tree."""
        return tuple(ast.walk(self.tree))

    @functools.cached_property
    def docstrings(self) -> set[ast.Constant]:
        """The constants that are docstrings, of attributes too: strings that are statements."""
        return {
            node.value
            for node in self.nodes
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        }


@dataclass(frozen=True, slots=True)
class Problem:
    """One broken rule; path and what stay the same while unrelated lines change."""

    path: str
    line: int
    what: str
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.what}{self.detail}"


@functools.cache
def source_of(root: Path, path: Path) -> Source:
    """A file, read and parsed at most once for all rules and all folders that it lies in."""
    return Source(path.relative_to(root).as_posix(), path.read_text("utf-8"))


@functools.cache
def parsed(root: Path, folder: str) -> tuple[Source, ...]:
    """Every Python file below a folder of ``root``."""
    return tuple(source_of(root, path) for path in sorted((root / folder).rglob("*.py")))


@pytest.fixture(autouse=True, scope="module")
def _no_trees_afterwards() -> Iterator[None]:
    """Millions of nodes make every search for garbage slow, here and in the tests after these."""
    with PAUSED:
        yield
        parsed.cache_clear()
        source_of.cache_clear()


def sources(root: Path, *folders: str) -> Iterator[Source]:
    """Every Python file below the folders of ``root`` that exist."""
    for folder in folders:
        yield from parsed(root, folder)


def module_of(path: str) -> str:
    """``core/bringup/ops/table.py`` is ``bringup.ops.table``; a package is its ``__init__``."""
    parts = path.removesuffix(".py").split("/")
    first = next(i for i, part in enumerate(parts) if part.startswith("bringup"))
    return ".".join(part for part in parts[first:] if part != "__init__")


def imports(source: Source, nodes: Iterable[ast.AST] | None = None) -> Iterator[tuple[int, str]]:
    """Each imported dotted name with its line, deferred ones too; ``from a import b`` is `a.b`.

    nodes: of the file, all by default.
    """
    package = module_of(source.path).split(".")
    if not source.path.endswith("__init__.py"):
        package = package[:-1]
    for node in source.nodes if nodes is None else nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            prefix = [*base, *([node.module] if node.module else [])]
            for alias in node.names:
                yield node.lineno, ".".join([*prefix, alias.name])


def wrong_direction(root: Path) -> Iterator[Problem]:
    """Imports in core that point from a layer to a later one, and modules that have no layer."""
    for source in sources(root, CORE):
        here = module_of(source.path).split(".")
        if here == ["bringup"]:
            continue
        if here[1] not in RANK:
            yield Problem(source.path, 1, f"bringup.{here[1]} has no layer")
            continue
        for line, name in imports(source):
            parts = name.split(".")
            if parts[0] != "bringup":
                continue
            if len(parts) == 1:
                yield Problem(source.path, line, "imports the package itself; name the module")
            elif RANK.get(parts[1], len(LAYERS)) > RANK[here[1]]:
                yield Problem(source.path, line, f"{here[1]} imports {parts[1]}")


def early_imports(source: Source, modules: Container[str]) -> Iterator[tuple[int, str]]:
    """The modules of core that a file imports while it is loaded, or for types alone.

    Imports inside functions are left out: they run when every module stands.
    """
    inside = {
        id(node)
        for function in source.nodes
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for node in ast.walk(function)
    }
    early = [node for node in source.nodes if id(node) not in inside]
    for line, name in imports(source, early):
        module = name if name in modules else name.rpartition(".")[0]
        if module in modules and module != module_of(source.path):
            yield line, module


def import_cycles(root: Path) -> Iterator[Problem]:
    """Imports in core, for types too, by which modules import one another in a circle."""
    files = {module_of(source.path): source for source in sources(root, CORE)}
    found = {name: list(early_imports(source, files)) for name, source in files.items()}
    edges = {
        name: {target for _, target in targets if (name, target) not in CYCLES}
        for name, targets in found.items()
    }
    for name, targets in found.items():
        for line, target in targets:
            if target in edges[name] and name in reached(edges, target):
                yield Problem(files[name].path, line, f"imports {target}, which imports it")


def reached(edges: Mapping[str, set[str]], start: str) -> set[str]:
    """The modules that one imports, and those that these import, and so on."""
    seen, waiting = {start}, [start]
    while waiting:
        for name in edges[waiting.pop()] - seen:
            seen.add(name)
            waiting.append(name)
    return seen


def backend_imports(root: Path) -> Iterator[Problem]:
    """Imports of a backend by core, conformance or another backend, and of the suite by any."""
    for source in sources(root, CORE, CONFORMANCE, SELFTEST, *BACKENDS):
        own = module_of(source.path).split(".")[0]
        for line, name in imports(source):
            package = name.split(".")[0]
            if (own, package) in STANDS_ON:
                continue
            if package != own and package in (*BACKEND_PACKAGES, "bringup_conformance"):
                yield Problem(source.path, line, f"imports {name}")


def private_uses(root: Path) -> Iterator[Problem]:
    """Underscored modules and names of core that the suite or a backend reaches for."""
    for source in sources(root, CONFORMANCE, SELFTEST, *BACKENDS):
        bound = {
            alias.asname or alias.name.split(".")[-1]
            for node in source.nodes
            if isinstance(node, ast.Import | ast.ImportFrom)
            for alias in node.names
            if alias.name.split(".")[0] == "bringup"
            or (getattr(node, "module", None) or "").split(".")[0] == "bringup"
        }
        for line, name in imports(source):
            parts = name.split(".")
            if parts[0] == "bringup" and any(is_private(part) for part in parts):
                yield Problem(source.path, line, f"imports {name}")
        for node in source.nodes:
            if (
                isinstance(node, ast.Attribute)
                and is_private(node.attr)
                and isinstance(node.value, ast.Name)
                and node.value.id in bound
            ):
                yield Problem(source.path, node.lineno, f"uses {node.value.id}.{node.attr}")


def is_private(name: str) -> bool:
    """One leading underscore; dunders are Python's."""
    return name.startswith("_") and not name.startswith("__")


def device_names(root: Path) -> Iterator[Problem]:
    """Strings of core and conformance that name a device; in docstrings, only names in quotes."""
    names = "|".join(DEVICE_NAMES)
    # A word of a hyphenated LLVM triple is no device name.
    word = re.compile(rf"(?<![\w-])({names})(?![\w-])")
    quoted = re.compile(rf"""["'=]({names})(?::\w+)?["']""")
    for source in sources(root, CORE, CONFORMANCE, SELFTEST):
        for node in source.nodes:
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found = (quoted if node in source.docstrings else word).search(node.value)
                if found:
                    yield Problem(source.path, node.lineno, f"names the device {found[1]!r}")


CODE = ("core", "backends", "conformance", "examples", "benchmarks", ".ci")


def long_files(root: Path) -> Iterator[Problem]:
    """Files over the hard limit."""
    for source in sources(root, *CODE):
        lines = source.text.count("\n")
        if lines > MAX_FILE_LINES:
            yield Problem(source.path, 1, "the file is long", f" ({lines} lines)")


def functions(tree: ast.AST, prefix: str = "") -> Iterator[tuple[str, ast.FunctionDef]]:
    """Every function with its qualified name, methods and nested ones too."""
    inside = [tree]
    while inside:
        for node in ast.iter_child_nodes(inside.pop()):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                name = f"{prefix}{node.name}"
                if not isinstance(node, ast.ClassDef):
                    yield name, node  # type: ignore[misc]
                yield from functions(node, f"{name}.")
            elif not isinstance(node, ast.expr):
                inside.append(node)


def long_functions(root: Path) -> Iterator[Problem]:
    """Functions over the limit, docstring included."""
    for source in sources(root, *CODE):
        for name, node in functions(source.tree):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > MAX_FUNCTION_LINES:
                yield Problem(source.path, node.lineno, f"{name} is long", f" ({lines} lines)")


def undocumented(root: Path) -> Iterator[Problem]:
    """Public modules, classes and top-level functions without a docstring."""
    for source in sources(root, CORE, CONFORMANCE, SELFTEST, *BACKENDS):
        if not ast.get_docstring(source.tree):
            yield Problem(source.path, 1, "the module has no docstring")
        for node in source.tree.body:
            if (
                isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
                and not node.name.startswith("_")
                and not ast.get_docstring(node)
                and not is_overload(node)
                and not is_row(node)
            ):
                yield Problem(source.path, node.lineno, f"{node.name} has no docstring")


def is_overload(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> bool:
    """The implementation carries the docstring of an overloaded function."""
    return any(ast.unparse(d).split(".")[-1] == "overload" for d in node.decorator_list)


def is_row(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> bool:
    """The row of a fault says in its title what the function does that it decorates."""
    return any(ast.unparse(d).startswith(("FAULTS.op(", "FAULTS.by(")) for d in node.decorator_list)


def stray_instructions(root: Path) -> Iterator[Problem]:
    """Calls of ``Instr(...)`` outside the graph package: only the builder makes instructions."""
    for source in sources(root, CORE, CONFORMANCE, SELFTEST, *BACKENDS):
        if module_of(source.path).startswith("bringup.graph"):
            continue
        for node in source.nodes:
            if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] == "Instr":
                yield Problem(source.path, node.lineno, "makes an instruction without the builder")


#: Methods that change what they are called on, whoever's they are.
CHANGING = {"append", "extend", "insert", "pop", "popleft", "popitem", "remove", "discard"}
CHANGING |= {"clear", "update", "setdefault", "acquire", "release", "send", "write", "next"}


def effects_in_asserts(root: Path) -> Iterator[Problem]:
    """Asserts that do something: ``python -O`` leaves them out, and nothing else may differ."""
    for source in sources(root, CORE, CONFORMANCE, SELFTEST, *BACKENDS):
        asserts = (node for node in source.nodes if isinstance(node, ast.Assert))
        for node in asserts:
            for inner in ast.walk(node.test):
                what = "assigns" if isinstance(inner, ast.NamedExpr) else ""
                if isinstance(inner, ast.Call):
                    what = ast.unparse(inner.func).split(".")[-1]
                if what in CHANGING | {"assigns"}:
                    yield Problem(source.path, node.lineno, f"an assert does something: {what}")


#: numpy's and the C library's, which differ in the last place from machine to machine.
BORROWED = {"exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "logaddexp", "logaddexp2"}
BORROWED |= {"sin", "cos", "tan", "sinh", "cosh", "tanh", "sinc", "i0", "erf", "erfc", "gamma"}
BORROWED |= {"lgamma", "cbrt", "hypot", "power", "float_power"}
BORROWED |= {f"{arc}{name}" for arc in ("arc", "a") for name in ("sin", "cos", "tan", "tan2")}
BORROWED |= {f"{arc}{name}h" for arc in ("arc", "a") for name in ("sin", "cos", "tan")}
#: Of single numbers, where constants are made.
_SCALAR = {"math.exp", "math.log", "math.log2"}
#: Integer powers wrap exactly.
_EXACT = {"core/bringup/ops/power.py": {"np.power"}}


def borrowed_functions(root: Path) -> Iterator[Problem]:
    """Functions of numpy's or the C library's in references and bounds, which must not depend on
    the machine: `bringup.ops._elementary` has them.
    """
    for source in sources(root, f"{CORE}/ops", f"{CONFORMANCE}/oracle"):
        allowed = _SCALAR | _EXACT.get(source.path, set())
        for node in source.nodes:
            name = ast.unparse(node) if isinstance(node, ast.Attribute) else ""
            module, _, function = name.partition(".")
            if module in ("np", "math") and function in BORROWED and name not in allowed:
                yield Problem(source.path, node.lineno, f"borrows {name}")


Rule = Callable[[Path], Iterator[Problem]]
RULES: tuple[Rule, ...] = (
    wrong_direction,
    import_cycles,
    backend_imports,
    private_uses,
    device_names,
    long_files,
    long_functions,
    undocumented,
    stray_instructions,
    effects_in_asserts,
    borrowed_functions,
)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_this_tree_keeps_the_rule(rule: Rule) -> None:
    problems = [str(p) for p in rule(ROOT) if (p.path, p.what) not in EXEMPT]
    assert not problems, "\n".join([rule.__doc__ or "", *problems])


def test_every_exemption_excuses_something(tmp_path: Path) -> None:
    for path, _ in EXEMPT:
        write(tmp_path, path, (ROOT / path).read_text("utf-8"))
    found = {(p.path, p.what) for rule in RULES for p in rule(tmp_path)}
    assert set(EXEMPT) <= found


@pytest.mark.parametrize("folder", [CORE, CONFORMANCE, SELFTEST, *BACKENDS])
def test_the_rules_look_at_real_files(folder: str) -> None:
    assert list(sources(ROOT, folder))


def test_the_rule_sees_cycles(tmp_path: Path) -> None:
    write(tmp_path, f"{CORE}/a.py", "from bringup.b import f\nfrom bringup.d import g\n")
    write(tmp_path, f"{CORE}/b.py", "from typing import Any\nfrom bringup import c\n")
    write(tmp_path, f"{CORE}/c.py", "if TYPE_CHECKING:\n    import bringup.a\n")
    write(tmp_path, f"{CORE}/d.py", "def g():\n    from bringup.a import f\n")
    found = {str(problem) for problem in import_cycles(tmp_path)}
    assert found == {
        f"{CORE}/a.py:1: imports bringup.b, which imports it",
        f"{CORE}/b.py:2: imports bringup.c, which imports it",
        f"{CORE}/c.py:2: imports bringup.a, which imports it",
    }


def test_every_exemption_of_a_cycle_excuses_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for (module, imported), reason in dict(CYCLES).items():
        monkeypatch.delitem(CYCLES, (module, imported))
        texts = [str(problem) for problem in import_cycles(ROOT)]
        assert any(f"imports {imported}, which" in text for text in texts), (module, imported)
        monkeypatch.setitem(CYCLES, (module, imported), reason)


# One small violation per line: rule, file, text, and what the message must say.
BAD = [
    (wrong_direction, f"{CORE}/dtypes.py", "from bringup.ops import table\n", "dtypes imports ops"),
    (wrong_direction, f"{CORE}/graph/ir.py", "from ..passes import fuse\n", "graph imports passes"),
    (wrong_direction, f"{CORE}/graph/ir.py", "def f():\n    import bringup.api\n", "imports api"),
    (wrong_direction, f"{CORE}/graph/ir.py", "import bringup\n", "imports the package itself"),
    (wrong_direction, f"{CORE}/graph/ir.py", "from .. import runtime\n", "graph imports runtime"),
    (wrong_direction, f"{CORE}/strange.py", "", "has no layer"),
    (backend_imports, f"{CORE}/api.py", "import bringup_cpu\n", "imports bringup_cpu"),
    (backend_imports, f"{CONFORMANCE}/run.py", "from bringup_cuda import x\n", "bringup_cuda.x"),
    (backend_imports, f"{BACKENDS[0]}/p.py", "import bringup_conformance\n", "conformance"),
    (private_uses, f"{CONFORMANCE}/run.py", "from bringup._native import f\n", "bringup._native"),
    (private_uses, f"{CONFORMANCE}/run.py", "from bringup.ops import _f\n", "bringup.ops._f"),
    (private_uses, f"{BACKENDS[0]}/p.py", "import bringup as bu\nbu._x\n", "uses bu._x"),
    (device_names, f"{CORE}/api.py", 'default = "cpu"\n', "'cpu'"),
    (device_names, f"{CONFORMANCE}/run.py", 'f(target="cuda:sm_90")\n', "'cuda'"),
    (device_names, f"{CORE}/api.py", '"""\n>>> jit(device="cuda")\n"""\n', "'cuda'"),
    (device_names, f"{CORE}/api.py", 'f"on template:{i}"\n', "'template'"),
    (long_files, f"{CORE}/api.py", "x = 1\n" * 801, "801 lines"),
    (
        long_functions,
        f"{CORE}/api.py",
        "class A:\n  def f(s):\n" + "    s\n" * 60,
        "A.f is long (61 lines)",
    ),
    (undocumented, f"{CORE}/api.py", '"""Doc."""\ndef f(): ...\n', "f has no docstring"),
    (undocumented, f"{CORE}/api.py", '"""Doc."""\nclass C: ...\n', "C has no docstring"),
    (undocumented, f"{CORE}/api.py", "x = 1\n", "the module has no docstring"),
    (stray_instructions, f"{CORE}/passes/cse.py", "Instr(op, ())\n", "without the builder"),
    (stray_instructions, f"{CORE}/passes/cse.py", "ir.Instr(op)\n", "without the builder"),
    (effects_in_asserts, f"{CORE}/tracing/t.py", "assert open.pop() is self\n", "something: pop"),
    (effects_in_asserts, f"{CORE}/tracing/t.py", "assert (n := f())\n", "something: assigns"),
    (borrowed_functions, f"{CORE}/ops/roots.py", "reference = via_wider(np.cbrt)\n", "np.cbrt"),
    (borrowed_functions, f"{CONFORMANCE}/oracle/sums.py", "x = math.erfc(2)\n", "math.erfc"),
]


@pytest.mark.parametrize(
    ("rule", "path", "text", "message"), BAD, ids=[f"{b[0].__name__}-{b[3]}" for b in BAD]
)
def test_the_rule_sees_a_violation(
    rule: Rule, path: str, text: str, message: str, tmp_path: Path
) -> None:
    write(tmp_path, path, text)
    problems = [str(problem) for problem in rule(tmp_path)]
    assert any(message in problem for problem in problems), problems


# The nearest thing that is allowed.
GOOD = [
    (wrong_direction, f"{CORE}/ops/table.py", "from bringup.graph import Graph\nimport numpy\n"),
    (wrong_direction, f"{CORE}/__init__.py", "from bringup.api import jit\n"),
    (wrong_direction, f"{CORE}/graph/__init__.py", "from .ir import Graph\n"),
    (backend_imports, f"{BACKENDS[0]}/p.py", "from bringup_cpu import threads\nimport bringup\n"),
    (private_uses, f"{CONFORMANCE}/run.py", "import bringup as bu\nbu.__version__\nself._x\n"),
    (device_names, f"{CORE}/llvm/t.py", 't = "nvptx64-nvidia-cuda"\nf(cpu="generic")\n'),
    (device_names, f"{CORE}/api.py", '"""Counts the cpu set of the process."""\n'),
    (long_functions, f"{CORE}/api.py", "def f(s):\n" + "    s\n" * 59),
    (undocumented, f"{CORE}/api.py", '"""Doc."""\ndef _f(): ...\n'),
    (stray_instructions, f"{CORE}/graph/ir.py", "Instr(op, ())\n"),
    (effects_in_asserts, f"{CORE}/tracing/t.py", "assert all(x.pop is y for x in set(z))\n"),
    (borrowed_functions, f"{CORE}/ops/roots.py", "x = np.sqrt(2) * math.log(2) + rows.exp(y)\n"),
]


@pytest.mark.parametrize(("rule", "path", "text"), GOOD)
def test_the_rule_allows_what_is_right(rule: Rule, path: str, text: str, tmp_path: Path) -> None:
    write(tmp_path, path, text)
    assert list(rule(tmp_path)) == []


def write(root: Path, path: str, text: str) -> None:
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")


HEAVY = ("llvmlite", "pycuda", "hypothesis", "rich", "typer", *BACKEND_PACKAGES)


#: What only some programs need.
LATER = {f"bringup.{name}" for name in ("llvm", "cli", "ops.power", "ops.normalisation")}


def loaded_by(module: str) -> set[str]:
    """The modules a new interpreter holds after importing one, and the packages they lie in."""
    code = f"import sys, {module}; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd="/"
    )
    names = [name.split(".") for name in done.stdout.split()]
    return {".".join(parts[: n + 1]) for parts in names for n in range(len(parts))}


def test_importing_the_package_loads_no_driver_compiler_or_backend() -> None:
    assert loaded_by("bringup").isdisjoint({*HEAVY, *LATER})


def test_importing_the_suite_loads_no_driver_compiler_or_backend() -> None:
    loaded = loaded_by("bringup_conformance")
    assert loaded.isdisjoint({"llvmlite", "pycuda", *BACKEND_PACKAGES})


def test_the_import_check_sees_what_is_loaded() -> None:
    assert "llvmlite" in loaded_by("llvmlite.binding")
