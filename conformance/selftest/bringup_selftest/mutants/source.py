"""Mistakes in the Python of a backend: one node of a function's syntax tree is another.

A mutant takes the place of its function's code in the running process, so that whoever holds the
function runs it.  Annotations, decorators, default values, assertions, messages of errors and what
stands outside functions stay as they are.
"""

from __future__ import annotations

import ast
import copy
import gc
import importlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FunctionType

from bringup_selftest.mutants.mutant import Mutant

_Function = ast.FunctionDef | ast.AsyncFunctionDef
# Rules and what each makes of a node.
_Change = tuple[str, ast.AST]

_OTHER_OPERATOR: Mapping[type[ast.operator], ast.operator] = {
    ast.Add: ast.Sub(),
    ast.Sub: ast.Add(),
    ast.Mult: ast.Add(),
    ast.FloorDiv: ast.Mult(),
    ast.Mod: ast.FloorDiv(),
    ast.LShift: ast.RShift(),
    ast.RShift: ast.LShift(),
    ast.BitAnd: ast.BitOr(),
    ast.BitOr: ast.BitAnd(),
    ast.BitXor: ast.BitOr(),
}
_OTHER_COMPARISON: Mapping[type[ast.cmpop], tuple[str, ast.cmpop]] = {
    ast.Lt: ("off by one", ast.LtE()),
    ast.LtE: ("off by one", ast.Lt()),
    ast.Gt: ("off by one", ast.GtE()),
    ast.GtE: ("off by one", ast.Gt()),
    ast.Eq: ("comparison", ast.NotEq()),
    ast.NotEq: ("comparison", ast.Eq()),
    ast.Is: ("comparison", ast.IsNot()),
    ast.IsNot: ("comparison", ast.Is()),
    ast.In: ("comparison", ast.NotIn()),
    ast.NotIn: ("comparison", ast.In()),
}


def mutants(module: str, file: Path) -> Iterator[Mutant]:
    """Every mutant of a module's functions, in the order of its lines."""
    for function in _outermost(ast.parse(file.read_text(encoding="utf-8"))):
        for number, node in enumerate(_nodes(function)):
            for variant, (rule, made) in enumerate(_changes(node)):
                line = getattr(node, "lineno", function.lineno)
                change = f"{_told(node)} -> {_told(made)}"
                where = (str(file), function.lineno, function.name, number, variant)
                yield Mutant("source", rule, module, line, change, where)


def _told(node: ast.AST) -> str:
    """A node as text, of a statement its first line."""
    return ast.unparse(node).partition("\n")[0]


def _outermost(tree: ast.AST) -> Iterator[_Function]:
    """The functions and methods that are inside no other function."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, _Function):
            yield node
        elif isinstance(node, ast.ClassDef | ast.If | ast.Try | ast.With):
            yield from _outermost(node)


def _nodes(function: _Function) -> Iterator[ast.AST]:
    """What may be changed of a function, parents first."""
    left: list[ast.AST] = [*reversed(function.body)]
    while left:
        node = left.pop()
        if isinstance(node, ast.Assert | ast.Raise | ast.JoinedStr | ast.Import | ast.ImportFrom):
            continue
        yield node
        if isinstance(node, _Function):
            left += reversed(node.body)
        elif isinstance(node, ast.AnnAssign):
            left += [] if node.value is None else [node.value]
        else:
            left += reversed([*ast.iter_child_nodes(node)])


def _changes(node: ast.AST) -> Iterator[_Change]:
    """What a node may become, each with the rule."""
    if isinstance(node, ast.BinOp) and type(node.op) in _OTHER_OPERATOR:
        if not (isinstance(node.left, ast.Constant) and isinstance(node.left.value, str)):
            yield "operator", _with(node, op=_OTHER_OPERATOR[type(node.op)])
        if isinstance(node.op, ast.Sub | ast.FloorDiv | ast.Mod):
            yield "swapped operands", _with(node, left=node.right, right=node.left)
    elif isinstance(node, ast.Compare) and type(node.ops[0]) in _OTHER_COMPARISON:
        rule, other = _OTHER_COMPARISON[type(node.ops[0])]
        yield rule, _with(node, ops=[other, *node.ops[1:]])
    elif isinstance(node, ast.BoolOp):
        yield "condition", _with(node, op=ast.Or() if isinstance(node.op, ast.And) else ast.And())
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub):
        yield "condition" if isinstance(node.op, ast.Not) else "operator", node.operand
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield "condition", _with(node, value=not node.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, int):
        yield "off by one", _with(node, value=node.value + 1)
    elif isinstance(node, ast.If | ast.IfExp):
        yield "condition", _with(node, test=ast.Constant(True))
        yield "condition", _with(node, test=ast.Constant(False))
    elif isinstance(node, ast.AugAssign) or (
        isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
    ):
        yield "left out", ast.Pass()


def _with(node: ast.AST, **fields: object) -> ast.AST:
    made = copy.copy(node)
    for name, value in fields.items():
        setattr(made, name, value)
    return made


class _Replaced(ast.NodeTransformer):
    """A tree with one node in the place of another."""

    def __init__(self, old: ast.AST, new: ast.AST) -> None:
        self.old = old
        self.new = new

    def visit(self, node: ast.AST) -> ast.AST:
        """The other node, or this one with what is beneath it."""
        return ast.copy_location(self.new, node) if node is self.old else self.generic_visit(node)


@contextmanager
def planted(mutant: Mutant) -> Iterator[None]:
    """Inside, every function object of one definition has the changed code.

    Raises ValueError if the change takes a variable of an outer scope away.
    """
    name, line, of, number, variant = mutant.where
    file = Path(name)
    tree = ast.parse(file.read_text(encoding="utf-8"))
    function = next(f for f in _outermost(tree) if (f.lineno, f.name) == (line, of))
    old = list(_nodes(function))[number]
    new = list(_changes(old))[variant][1]
    changed = ast.fix_missing_locations(_Replaced(old, new).visit(tree))
    assert isinstance(changed, ast.Module)
    code = next(c for c in _codes(compile(changed, name, "exec")) if _is_of(c, file, function))
    importlib.import_module(mutant.module)
    gc.unfreeze()  # what is frozen is not among the objects
    objects = (each for each in gc.get_objects() if isinstance(each, FunctionType))
    found = {each: each.__code__ for each in objects if _is_of(each.__code__, file, function)}
    assert found, f"nothing runs {mutant}"
    try:
        for each in found:
            each.__code__ = code
        yield
    finally:
        for each, right in found.items():
            each.__code__ = right


def _codes(code: CodeType) -> Iterator[CodeType]:
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield each
            yield from _codes(each)


def _is_of(code: CodeType, file: Path, function: _Function) -> bool:
    """Whether code is that of a definition, decorators counted as the interpreter counts them."""
    first = min([function.lineno, *(each.lineno for each in function.decorator_list)])
    return (code.co_name, code.co_firstlineno, code.co_filename) == (
        function.name,
        first,
        str(file),
    )
