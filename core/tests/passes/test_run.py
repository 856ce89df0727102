"""Running the pipeline: checks, dumps, timings, and what they say when a pass is wrong."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from bringup.dtypes import f32, i32
from bringup.errors import GraphError, UnsupportedError
from bringup.graph import Builder, Graph, Value, rebuild
from bringup.ops.build import like, rows
from bringup.passes import PIPELINE, Pass, PassContext, everything, passes_for, run_pipeline
from bringup.passes.check import check_values, is_strict, terminates

Parse = Callable[[str], Graph]

TEXT = """
graph model(%0: f32[4], %1: f32[4]) {
  %2: f32[4] = constant() {value=f32[4](1.0)}
  %3: f32[4] = mul(%2, %0)
  %4: f32[4] = sub(%3, %1)
  %5: f32[4] = exp(%4)
  return %4
}
"""


def _replace(before: str, make: Callable[..., Value]) -> Callable[[Graph], Graph]:
    def rewrite(instr: object, operands: tuple[Value, ...]) -> list[Value] | None:
        return [make(*operands)] if instr.op.name == before else None  # type: ignore[attr-defined]

    return lambda graph: rebuild(graph, rewrite)  # type: ignore[arg-type]


WRONG_VALUE = Pass("swap", "sub(x, y) -> sub(y, x)", _replace("sub", lambda x, y: rows.sub(y, x)))
PLUS_ZERO = _replace("mul", lambda _, x: rows.add(x, like(x, 0)))
WRONG_ZERO = Pass("zero", "mul(1, x) -> add(x, 0)", PLUS_ZERO)


def test_the_list_is_plain_data(parse: Parse) -> None:
    names = [each.name for each in passes_for(everything)]
    first = [make(everything).name for make in PIPELINE]
    last = ["forward_loop_invariants", "materialize_outputs", "split_concatenates"]
    assert names == [*first, *last]
    extra = Pass("extra", "x -> x", lambda graph: graph)
    assert [p.name for p in passes_for(everything, [extra])] == [*first, "extra", *last]
    left = [p.name for p in passes_for(everything, without=["simplify"])]
    assert left == [name for name in names if name != "simplify"]
    assert all(" -> " in each.doc for each in passes_for(everything))


def test_the_whole_pipeline(parse: Parse) -> None:
    found = run_pipeline(parse(TEXT), passes_for(everything), context=PassContext(check=2))
    assert str(found).splitlines()[1:] == ["  %2: f32[4] = sub(%0, %1)", "  return %2", "}"]


def test_each_pass_can_be_left_out(parse: Parse) -> None:
    names = (
        "simplify",
        "defer",
        "decompose",
        "fold",
        "canonicalise",
        "cse",
        "dce",
        "split_concatenates",
    )
    for name in names:
        passes = passes_for(everything, without=[name])
        run_pipeline(parse(TEXT), passes, context=PassContext(check=2))


def test_dumps_are_numbered_and_named(parse: Parse, tmp_path: Path) -> None:
    context = PassContext(dump=tmp_path)
    for _ in range(2):
        run_pipeline(parse(TEXT), passes_for(everything), context=context)
    run_pipeline(parse(TEXT.replace("sub", "add")), passes_for(everything), context=context)
    folders = sorted(tmp_path.iterdir())
    assert len(folders) == 2
    assert all(folder.name.startswith("model-") for folder in folders)
    assert sorted(p.name for p in folders[0].iterdir()) == [
        "00-input.txt",
        "01-simplify.txt",
        "02-defer.txt",
        "03-decompose.txt",
        "04-fold.txt",
        "05-canonicalise.txt",
        "06-simplify.txt",
        "07-cse.txt",
        "08-dce.txt",
        "09-forward_loop_invariants.txt",
        "10-materialize_outputs.txt",
        "11-split_concatenates.txt",
    ]
    text = (folders[0] / "08-dce.txt").read_text(encoding="utf-8")
    assert parse(text).inputs[0].type is f32[4]


def test_a_dump_folder_is_safe_for_the_file_system(parse: Parse, tmp_path: Path) -> None:
    odd = parse(TEXT.replace("graph model", 'graph "<lambda>/../x"'))
    run_pipeline(odd, [], context=PassContext(dump=tmp_path))
    run_pipeline(odd, [], context=PassContext(dump=tmp_path, name="mine"))
    names = sorted(folder.name.rsplit("-", 1)[0] for folder in tmp_path.iterdir())
    assert names == ["_lambda_.._x", "mine"]


def test_a_graph_of_a_long_name_is_dumped(parse: Parse, tmp_path: Path) -> None:
    run_pipeline(parse(TEXT), [], context=PassContext(dump=tmp_path, name="name" * 1000))
    (folder,) = tmp_path.iterdir()
    assert folder.name.startswith("namename")


def test_timings_and_the_log(parse: Parse, caplog: pytest.LogCaptureFixture) -> None:
    times: list[tuple[str, float]] = []
    context = PassContext(record=lambda name, seconds: times.append((name, seconds)))
    with caplog.at_level(logging.DEBUG, "bringup.passes"):
        run_pipeline(parse(TEXT), passes_for(everything), context=context)
    last = ["forward_loop_invariants", "materialize_outputs", "split_concatenates"]
    assert [name for name, _ in times] == ["simplify", "defer", "decompose", "dce", *last]
    assert all(0 < seconds < 1 for _, seconds in times)
    assert caplog.messages[0].startswith("model: simplify: 4 -> ")


def test_a_pass_that_is_settled_runs_again_once_the_graph_changes(parse: Parse) -> None:
    ran: list[str] = []

    def make(name: str, changes: bool, *settles: str) -> Pass:
        def run(graph: Graph) -> Graph:
            ran.append(name)
            return rebuild(graph) if changes else graph

        return Pass(name, "anything -> the same", run, settles=settles)

    first, idle, other = make("a", True, "a", "b"), make("c", False, "c"), make("d", True)
    second = make("b", False)
    passes = [first, idle, second, first, idle, other, second, first]
    run_pipeline(parse(TEXT), passes, context=PassContext())
    assert ran == ["a", "c", "d", "b", "a"]


@pytest.mark.parametrize("name", ["fold", "canonicalise", "cse", "simplify"])
def test_simplification_settles_what_it_says(parse: Parse, name: str) -> None:
    simplified, *others = passes_for(everything)
    assert name in simplified.settles
    graph = simplified.run(parse(TEXT))
    (again,) = {p.name: p for p in others if p.name == name}.values()
    assert str(again.run(graph)) == str(graph)


def test_the_environment_makes_a_context(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert PassContext.from_environment() == PassContext()
    monkeypatch.setenv("BRINGUP_DUMP", str(tmp_path))
    monkeypatch.setenv("BRINGUP_CHECK", "2")
    assert PassContext.from_environment() == PassContext(dump=tmp_path, check=2)


@pytest.mark.parametrize("wrong", [WRONG_VALUE, WRONG_ZERO], ids=lambda p: p.name)
def test_a_pass_that_changes_a_value_is_named(wrong: Pass, parse: Parse) -> None:
    graph = parse(TEXT)
    run_pipeline(graph, [wrong], context=PassContext(check=1))
    _, product, difference, _ = graph.instrs
    outputs = [product.result, difference.result]
    strict = Graph(graph.inputs, graph.instrs[:-1], outputs, graph.name)
    with pytest.raises(GraphError) as caught:
        run_pipeline(strict, [wrong], context=PassContext(check=2))
    message = str(caught.value)
    assert message.startswith(f"pass {wrong.name} changed the value of graph model: output ")
    for shown in ("before:", "after:", "%3: f32[4] = mul(%2, %0)", "f32[4] input 1: ["):
        assert shown in message


def test_a_pass_that_breaks_the_graph_is_named_with_its_promise(parse: Parse) -> None:
    def drop_first(graph: Graph) -> Graph:
        return Graph(graph.inputs, graph.instrs[1:], graph.outputs, graph.name)

    def drop_output(graph: Graph) -> Graph:
        return Graph(graph.inputs, graph.instrs, (), graph.name)

    for run, message in (
        (drop_first, "after pass broken: graph model: operand 0 is not a value of this graph"),
        (drop_output, "after pass broken: the types of the outputs changed"),
    ):
        broken = Pass("broken", "good -> bad", run)
        run_pipeline(parse(TEXT), [broken], context=PassContext(check=0))
        with pytest.raises(GraphError) as caught:
            run_pipeline(parse(TEXT), [broken], context=PassContext(check=1))
        assert str(caught.value).startswith(message)
        assert "fix: broken promises: good -> bad" in str(caught.value)


def test_later_passes_keep_the_level_of_earlier_ones(parse: Parse) -> None:
    def available(instr: object) -> bool:
        return instr.op.name != "neg"  # type: ignore[attr-defined]

    by_neg = _replace("sub", lambda x, y: rows.add(x, rows.neg(y)))
    negate = Pass("late", "sub -> add of neg", by_neg)
    with pytest.raises(GraphError, match="after pass late: available model: the device does not"):
        run_pipeline(
            parse(TEXT), passes_for(available, [negate]), context=PassContext(check=1)
        )  # fmt: skip


def test_what_the_device_lacks_is_reported_before_anything_runs(parse: Parse) -> None:
    with pytest.raises(UnsupportedError, match="exp on f32"):
        run_pipeline(
            parse(TEXT.replace("return %4", "return %5")),
            passes_for(lambda instr: instr.op.name != "exp"),
            context=PassContext(),
        )


def test_strictness(parse: Parse) -> None:
    assert not is_strict(parse(TEXT))  # exp
    text = """
    graph f(%0: {0}[4]) {{
      %1: {0}[] = reduce(%0) {{kind="{1}", dims=(0,)}}
      return %1
    }}
    """
    strict = {
        (d, k): is_strict(parse(text.format(d, k))) for d in ("f32", "i32") for k in ("add", "max")
    }
    assert strict == {
        ("f32", "add"): False,
        ("f32", "max"): True,
        ("i32", "add"): True,
        ("i32", "max"): True,
    }
    assert terminates(parse(TEXT))


def test_an_inexact_graph_is_compared_with_tolerance() -> None:
    def summed(order: str) -> Graph:
        with Builder() as builder:
            x = builder.input(f32[100, 100])
            flat = rows.reshape(x, shape=(10000,))
            two = rows.reduce(rows.reduce(x, kind="add", dims=(0,)), kind="add", dims=(0,))
            one = rows.reduce(flat, kind="add", dims=(0,))
            wrong = rows.reduce(flat, kind="max", dims=(0,))
            return builder.build([{"one": one, "two": two, "wrong": wrong}[order]])

    check_values("sum", summed("one"), summed("two"))
    with pytest.raises(GraphError, match="pass sum changed the value"):
        check_values("sum", summed("one"), summed("wrong"))


def test_integers_are_compared_exactly() -> None:
    def off_by(amount: int) -> Graph:
        with Builder() as builder:
            x = builder.input(i32[3])
            return builder.build([rows.add(x, like(x, amount))])

    check_values("p", off_by(0), off_by(0))
    with pytest.raises(GraphError, match=r"output 0 at \(0,\)"):
        check_values("p", off_by(0), off_by(1))
