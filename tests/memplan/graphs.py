"""Graphs for tests: small ones to follow by eye, and drawn ones."""

from __future__ import annotations

from hypothesis import strategies as st

from memplan.graph import Graph, Operator, Share, Value


def chain(*sizes: int) -> Graph:
    """in -> op0 -> v0 -> op1 -> v1 ...: each value read by the next operator, the last one an output."""
    values = [Value(f"v{n}", size, "output" if n == len(sizes) - 1 else "temporary") for n, size in enumerate(sizes)]
    operators = [Operator(f"op{n}", (f"v{n - 1}",) if n else (), (f"v{n}",), 1.0) for n in range(len(sizes))]
    return Graph(tuple(values), tuple(operators))


@st.composite
def graphs(draw: st.DrawFn, most: int = 9) -> Graph:
    """Graphs of up to `most` operators with views, results in place, slices and workspaces among them."""
    count = draw(st.integers(1, most))
    values = [Value("x", draw(st.integers(1, 40)), "input"), Value("w", 8, "constant")]
    operators: list[Operator] = []
    shares: list[Share] = []
    for number in range(count):
        known = [value.name for value in values]
        inputs = tuple(dict.fromkeys(draw(st.lists(st.sampled_from(known), min_size=1, max_size=3))))
        name = f"v{number}"
        size_of = {value.name: value.size for value in values}
        kind = draw(st.sampled_from(["plain", "plain", "view", "in place", "concat"]))
        size = draw(st.integers(0, 40))
        if kind == "view" and inputs[0] != "w":
            start = draw(st.sampled_from([0, 0, size_of[inputs[0]] // 2]))
            size = size_of[inputs[0]] - start
            inputs = inputs[:1]
            shares.append(Share(name, inputs[0], start))
        elif kind == "in place":
            size = size_of[inputs[0]]
            shares += [Share(name, one, overwrites=True) for one in inputs if size_of[one] == size]
        elif kind == "concat":
            size = sum(size_of[one] for one in inputs)
            at = 0
            for one in inputs:
                shares.append(Share(one, name, at))
                at += size_of[one]
        workspace = draw(st.sampled_from([0, 0, 5]))
        operators.append(Operator(f"op{number}", inputs, (name,), float(draw(st.integers(0, 9))), workspace))
        values.append(Value(name, size, draw(st.sampled_from(["temporary", "temporary", "output"]))))
    return Graph(tuple(values), tuple(operators), tuple(shares))
