"""Dims of inputs that a caller need not give: operators decide them, or they follow from others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx_ir as ir
import sympy

from graphopt.model.dimensions import change_dims, symbols_of
from graphopt.model.facts import Facts
from graphopt.model.nodes import input_at, int_attribute
from graphopt.model.text import shown
from graphopt.model.tied import CACHE_RANK, Ties

IMAGE_RANK, SIDE = 4, 224  # of a batch of images, and what is told as an example of a side


def settle(model: ir.Model) -> None:
    """Give free dims of inputs the one size with which the model's operators run, where there is just one."""
    names = symbols_of(model)
    if names:
        found = Ties(model.graph, Facts(model)).following()
        decided = {name: size for name, size in found.items() if name in names and isinstance(size, int)}
        if decided:
            change_dims(model, {}, decided)


def way_to_fix(graph: ir.Graph, facts: Facts) -> str:
    """What a caller may give so that all dims of the inputs are numbers: "give 'n' a value, dims={'n': 1} for example".

    Dims that follow from others are left out. Sides of images are those that most networks see. Empty where all are
    numbers.
    """
    named: dict[str, int] = {}
    nameless: dict[str, list[int]] = {}
    for value in graph.inputs:
        dims = facts.shape(value) or ()
        is_image = len(dims) == IMAGE_RANK and not any(isinstance(side, int) for side in dims[2:])
        usual = [SIDE if is_image and axis > 1 else 1 for axis in range(len(dims))]
        for dim, size in zip(dims, usual, strict=True):
            symbols = () if isinstance(dim, int) else sorted(map(str, dim.free_symbols))
            named |= {one: size for one in symbols if not one.startswith("?") and one not in named}
            if any(one.startswith("?") for one in symbols) and value.shape is not None:
                nameless[value.name or ""] = [
                    one if isinstance(one, int) else other for one, other in zip(value.shape, usual, strict=True)
                ]
    named |= {name: rows for name, rows in _windows(graph, facts).items() if name in named}
    leading = Ties(graph, facts).leading(list(named))
    named = {one: named[one] for one in leading}
    ways = []
    for kind, found, what in (("dims", named, "value"), ("shapes", nameless, "shape")):
        listed = ", ".join(f"'{shown(one)}'" for one in found)
        if found:
            ways.append(f"{listed} a {what}{' each' if len(found) > 1 else ''}, {kind}={found}")
    return f"give {', and '.join(ways)} for example" if ways else ""


def sizes_from(graph: ir.Graph, facts: Facts, names: Sequence[str], given: Mapping[str, int]) -> dict[str, int]:
    """A size of each of these dims: as `given`, or what follows from others; 1, or a window's rows, of the rest."""
    ties, found, windows = Ties(graph, facts), dict(given), _windows(graph, facts)
    for name in ties.leading([one for one in names if one not in given], list(given)):
        found[name] = windows.get(name, 1)
    for name, dim in ties.following(found, certainly=True).items():
        found[name] = dim if isinstance(dim, int) else int(dim.subs({one: found[str(one)] for one in dim.free_symbols}))
    return {name: found.get(name, 1) for name in (*names, *given)}


def _windows(graph: ir.Graph, facts: Facts) -> dict[str, int]:
    """Names of dims that count rows of caches of a sliding window, and how many it needs."""
    found = dict[str, int]()
    for node in graph:
        cache = input_at(node, 3) if int_attribute(node, "sliding_window_cache", 0) else None
        shape = None if cache is None else facts.shape(cache)
        rows = shape[2] if shape is not None and len(shape) == CACHE_RANK else None
        if isinstance(rows, sympy.Symbol):
            found[rows.name] = max(int_attribute(node, "local_window_size", 1), found.get(rows.name, 1))
    return found
