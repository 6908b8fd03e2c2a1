"""Caches of keys and values that hold a sliding window of them, as GroupQueryAttention's `sliding_window_cache` asks.

A cache has room for C rows, of which the window needs W. Behind T keys its first L(T) rows are the last of them, in
order; the others are zeros. Where the room is used up, C - W + 1 rows leave at once:

    L(T) = T - (C - W + 1) max(0, ceil((T - C) / (C - W + 1)))

so the rows depend on T alone, and not on how many keys came in each run. That is the contract in the operator's
description (com.microsoft, ONNX Runtime 1.31); what lies behind L(T) rows is ONNX Runtime's.
"""

from __future__ import annotations

from graphopt.model.contrib.lines import dim_of, float_like, int_vector


def seen_keys(window: int) -> list[str]:
    """Lines that make k and v of the caches' rows and the new ones, and `keys`, the place of each in its sequence.

    Of: i3 and i4, the caches; k_x and v_n, the new rows [batch, groups, n, size]; `before`, how many keys were seen,
    [batch]; `here`, the places of the new ones [batch, n]; `one`, `zero` and `r_0`, `r_1`. Rows that hold nothing have
    a place no query looks at.
    """
    far = -(1 << 40)
    return [*dim_of("c", "i3", 2), "c_e = Squeeze(c)", "slots = Range(r_0, c_e, r_1)", int_vector("less", window - 1),
            "goes = Sub(c, less)", "round = Sub(goes, one)", *_held("l_old", "before"), *_held("l_new", "ends"),
            "l_old_u = Unsqueeze(l_old, one)", "is_held = Less(slots, l_old_u)", "moved = Sub(before, l_old)",
            "moved_u = Unsqueeze(moved, one)", "old_at = Add(slots, moved_u)", int_vector("far", far),
            "old_keys = Where(is_held, old_at, far)", "keys_all = Concat <axis = 1> (old_keys, here)",
            "keys = Unsqueeze(keys_all, one)", int_vector("row_axes", 1, 3), "held_u = Unsqueeze(is_held, row_axes)",
            *float_like("nothing", 0.0, "i3"),
            *(line for at, name, new in ((3, "k", "k_x"), (4, "v", "v_n"))
              for line in (f"{name}_old = Where(held_u, i{at}, nothing)",
                           f"{name} = Concat <axis = 2> ({name}_old, {new})"))]  # fmt: skip


def kept_rows() -> list[str]:
    """Lines that make o1 and o2, the caches behind the new rows, of what `seen_keys` makes."""
    lines = ["l_new_u = Unsqueeze(l_new, one)", "stays = Less(slots, l_new_u)", "begin = Sub(ends, l_new)",
             "begin_u = Unsqueeze(begin, one)", "place = Add(slots, begin_u)", "is_old = Less(place, before_u)",
             "old_row = Sub(place, moved_u)", "new_at = Sub(place, before_u)", "new_row = Add(new_at, c)",
             "row = Where(is_old, old_row, new_row)", "row_0 = Where(stays, row, zero)",
             "row_u = Unsqueeze(row_0, row_axes)", "stays_u = Unsqueeze(stays, row_axes)",
             "cache_to = Shape(i3)", "rows_to = Expand(row_u, cache_to)"]  # fmt: skip
    for at, name in ((1, "k"), (2, "v")):
        lines += [f"{name}_all = GatherElements <axis = 2> ({name}, rows_to)",
                  f"o{at} = Where(stays_u, {name}_all, nothing)"]  # fmt: skip
    return lines


def _held(name: str, keys: str) -> list[str]:
    """Lines that make how many rows a cache holds behind so many keys."""
    return [f"{name}_o = Sub({keys}, c)", f"{name}_p = Add({name}_o, round)", f"{name}_q = Div({name}_p, goes)",
            f"{name}_m = Max({name}_q, zero)", f"{name}_g = Mul({name}_m, goes)",
            f"{name} = Sub({keys}, {name}_g)"]  # fmt: skip
