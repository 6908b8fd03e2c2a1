"""The zeros around an image, by `pads` or by `auto_pad`."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from graphopt.model.nodes import ints_attribute, string_attribute


def padding(
    node: ir.Node, size: Sequence[int], out: Sequence[int], reach: Sequence[int], strides: Sequence[int]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Zeros before and after each spatial dim, by `pads` or by `auto_pad`; `reach` is what a window spans."""
    rank = len(size)
    automatic = string_attribute(node, "auto_pad", "NOTSET")
    if automatic == "NOTSET":
        given = ints_attribute(node, "pads", (0,) * (2 * rank))
        return given[:rank], given[rank:]
    if automatic == "VALID":
        return (0,) * rank, (0,) * rank
    needed = [max(0, (o - 1) * step + span - s) for s, o, span, step in zip(size, out, reach, strides, strict=True)]
    less = tuple(one // 2 for one in needed)
    more = tuple(one - half for one, half in zip(needed, less, strict=True))
    return (less, more) if automatic == "SAME_UPPER" else (more, less)
