"""What a value is called decides nothing: names with @, # and : are planned as plain ones are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from memplan.graph import Graph, Operator, Share, Value
from memplan.lifetimes import memory_problem
from memplan.packing.greedy import pack
from memplan.problem import MemoryProblem
from memplan.tiers.placement import TiersTooSmall
from memplan.tiers.plan import plan_tiers
from memplan.verify.packing import verify
from memplan.verify.tiers import verify_tiers
from tests.memplan.graphs import graphs
from tests.memplan.tiers.oracle import small_machine

STEMS = ("x", "x#2", "x#2'", "x#3", "a@0", "a@1", "a@1'", "x@1", "b:c", "x#2#2", "#", "@", "'")


@st.composite
def spellings(draw: st.DrawFn, count: int) -> tuple[str, ...]:
    """Different names that look like those that planners make."""
    names = draw(st.permutations([f"{stem}{more}" for stem in STEMS for more in ("", "#2", "@2", "'")]))
    return tuple(dict.fromkeys(names))[:count]


def renamed(graph: Graph, values: Mapping[str, str], operators: Mapping[str, str]) -> Graph:
    return Graph(
        tuple(Value(values[one.name], one.size, one.kind) for one in graph.values),
        tuple(
            Operator(
                operators[one.name], tuple(values[name] for name in one.inputs), tuple(values[name] for name in
                one.outputs), one.time, one.workspace, one.recomputable, tuple(operators[name] for name in one.after),
                one.reused,
            )
            for one in graph.operators
        ),
        tuple(Share(values[one.value], values[one.of], one.at, one.overwrites) for one in graph.shares),
    )  # fmt: skip


def shape(problem: MemoryProblem) -> list[tuple[object, ...]]:
    """Buffers without their names."""
    place = {buffer.name: number for number, buffer in enumerate(problem.buffers)}
    return [
        (one.size, one.begin, one.end, one.alias and (place[one.alias.of], one.alias.at, one.alias.overwrites))
        for one in problem.buffers
    ]


def twice(graph: Graph) -> Sequence[str]:
    """Every operator that may be, run again right behind itself."""
    return [name for one in graph.operators for name in [one.name] * (2 if one.recomputable else 1)]


@settings(max_examples=60)
@given(graphs(), st.data())
def test_names_decide_nothing(plain: Graph, data: st.DataObject) -> None:
    names = data.draw(spellings(len(plain.values)))
    others = data.draw(spellings(len(plain.operators)))
    values = dict(zip((one.name for one in plain.values), names, strict=True))
    operators = dict(zip((one.name for one in plain.operators), others, strict=True))
    odd = renamed(plain, values, operators)
    for of_plain, of_odd in ((None, None), (twice(plain), twice(odd))):
        one, other = memory_problem(plain, of_plain), memory_problem(odd, of_odd)
        assert shape(one) == shape(other)
        first, second = pack(one), pack(other)
        verify(other, second)
        assert (first.arena_size, list(first.offsets.values())) == (second.arena_size, list(second.offsets.values()))
    try:
        wanted = plan_tiers(plain, small_machine(60, 2000), mode="sync", method="heuristic", alignment=1)
    except TiersTooSmall:
        return
    verify_tiers(plain, wanted.memory, wanted.capacities, wanted.aliases, 1)
    found = plan_tiers(odd, small_machine(60, 2000), mode="sync", method="heuristic", alignment=1)
    verify_tiers(odd, found.memory, found.capacities, found.aliases, 1)
    assert found.time == wanted.time
