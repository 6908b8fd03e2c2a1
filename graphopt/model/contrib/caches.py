"""Keys and values of a decoder with new rows behind those that they have.

    Extend(past, new, begins, rows, cleared)  -->  past's first rows, then the new ones, then zeros

Each sequence has a place of its own where the new rows begin. There are so many `rows` in the result; those up to the
one at `cleared` are zeros behind the new ones, and others stay what they are in the past. Where the result lies in the
memory of the old rows nothing of them is copied; the body here is for programs in which it does not, and for
comparison.
"""

from __future__ import annotations

from graphopt.model.contrib.lines import dim_of, float_like, int_scalar, int_vector
from graphopt.model.contrib.node import Node
from graphopt.model.operators.contrib import CACHES as DOMAIN

__all__ = ["DOMAIN", "extended"]


def extended(node: Node) -> str | None:
    """The rows by conditions: one new row where its place is equal, several scattered to their places."""
    new = node.dims[1]
    if new is None or len(new) != 4:
        return None
    lines = [*dim_of("c", "i0", 2), int_vector("one", 1), int_vector("axes", 1, 3), "missing = Sub(i3, c)",
             *(line for at in (0, 1, 3) for line in dim_of(f"d{at}", "i0", at)),
             "more_to = Concat <axis = 0> (d0, d1, missing, d3)", *float_like("nought", 0.0, "i0"),
             "more = Expand(nought, more_to)", "whole = Concat <axis = 2> (i0, more)",
             int_scalar("r_0", 0), int_scalar("r_1", 1), "rows = Squeeze(i3)", "places = Range(r_0, rows, r_1)",
             "begins = Unsqueeze(i2, one)", "is_first = Less(places, begins)",
             "is_last = GreaterOrEqual(places, i4)", "is_old = Or(is_first, is_last)", "old = Unsqueeze(is_old, axes)",
             "kept = Where(old, whole, nought)"]  # fmt: skip
    if new[2] == 1:
        lines += ["is_new = Equal(places, begins)", "here = Unsqueeze(is_new, axes)", "y = Where(here, i1, kept)"]
        return "\n ".join(lines)
    lines += [*dim_of("n", "i1", 2), "count = Squeeze(n)", "steps = Range(r_0, count, r_1)", "at = Add(begins, steps)",
              "batch = Squeeze(d0)", "b = Range(r_0, batch, r_1)", int_vector("b_a", 1, 2), "b_u = Unsqueeze(b, b_a)",
              "heads = Squeeze(d1)", "h = Range(r_0, heads, r_1)", "h_u = Unsqueeze(h, one)",
              "at_u = Unsqueeze(at, one)", "to = Concat <axis = 0> (d0, d1, n)", int_vector("last", 3)]  # fmt: skip
    for name in ("b", "h", "at"):
        lines += [f"{name}_x = Expand({name}_u, to)", f"{name}_y = Unsqueeze({name}_x, last)"]
    lines += ["at_all = Concat <axis = 3> (b_y, h_y, at_y)", "y = ScatterND(kept, at_all, i1)"]
    return "\n ".join(lines)
