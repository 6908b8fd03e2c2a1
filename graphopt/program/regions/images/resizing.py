"""Resize and Upsample as regions, with the elementwise nodes behind them as epilogue."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import onnx_ir as ir

from graphopt.errors import NotLowered
from graphopt.model.nodes import attribute_of, input_at, int_attribute, ints_attribute, required_input, string_attribute
from graphopt.program.regions.fusion import Tree, root_of
from graphopt.program.regions.images.pool import like
from graphopt.program.regions.images.sources import ImageReader, image_of, result_layout
from graphopt.program.regions.scope import Places, Scope
from kernels.templates.convolution.windows import side_by_side
from kernels.templates.epilogue import ACCUMULATED, Epilogue
from kernels.templates.resize import RESIZE, Coordinates, Resize, Rounding

RESIZES = ("Resize", "Upsample")


def lower_resize(scope: Scope, tree: Tree) -> None:
    """The region of a resizing of rows and columns and its epilogue."""
    node, root = tree.anchor, root_of(tree).outputs[0]
    assert node is not None, "the tree of a resizing has one"
    problem_name = f"{node.op_type} '{node.name or node.outputs[0].name}'"
    before, after = scope.shape(required_input(node, 0)), scope.shape(node.outputs[0])
    if before[:2] != after[:2]:
        raise NotLowered(f"{problem_name} changes images or channels, not rows and columns alone.")
    old = node.op_type == "Upsample" or scope.facts.opset(node) < 11  # always asymmetric, and rounded down
    mode = string_attribute(node, "mode", "nearest")
    coordinates = "asymmetric" if old else string_attribute(node, "coordinate_transformation_mode", "half_pixel")
    rounding = "floor" if old else string_attribute(node, "nearest_mode", "round_prefer_floor")
    if (
        mode not in ("nearest", "linear")
        or coordinates not in get_args(Coordinates)
        or rounding not in get_args(Rounding)
    ):
        raise NotLowered(f"{problem_name} with mode '{mode}' and coordinates '{coordinates}' has no kernel.")
    if (
        int_attribute(node, "antialias", 0)
        or string_attribute(node, "keep_aspect_ratio_policy", "stretch") != "stretch"
    ):
        raise NotLowered(f"{problem_name} with antialias or a kept aspect ratio has no kernel.")
    source = image_of(scope, required_input(node, 0))
    if not side_by_side(source.layout, scope.target.lanes()):
        raise NotLowered(f"{problem_name} is of images whose channels lie apart; loops over rows are faster.")
    wanted = result_layout(scope, root)  # of rows where a caller or a reshape wants them
    apart = wanted.order == "NCHW" and not scope.target.is_gpu and source.layout.channels > 1
    output = wanted if apart else scope.laid(root, like(source.layout, after))
    problem = Resize(
        source.layout, output, mode, coordinates, rounding,  # type: ignore[arg-type]
        _scales(scope, node, len(after)),
    )  # fmt: skip
    reader = ImageReader(scope, tree, problem.places)
    reader.accumulated[node.outputs[0]] = ACCUMULATED[()]
    problem = replace(problem, epilogue=Epilogue(reader.value(root, reader.at(len(after)))))
    kernel = scope.kernel(RESIZE, problem)
    places: Places = {**reader.buffers, "x": source.place, "y": scope.image(root, problem.output).place}
    scope.add(kernel, places, (node, *tree.in_order))


def _scales(scope: Scope, node: ir.Node, rank: int) -> tuple[float, float, float] | None:
    """The scales of planes, rows and columns; None where sizes were given."""
    position = 2 if node.op_type == "Resize" and scope.facts.opset(node) >= 11 else 1
    value = input_at(node, position)
    given = attribute_of(node, "scales")
    if given is not None:
        scales = list(given.value)
    elif value is None or scope.shape(value) == (0,):
        return None
    else:
        array = scope.constant(value)
        if array is None:
            raise NotLowered(f"{node.op_type} '{node.name}' has scales that are known only when it runs.")
        scales = array.tolist()
    found = [1.0] * 5
    for axis, scale in zip(ints_attribute(node, "axes", range(rank)), scales, strict=True):
        found[axis % rank + 5 - rank] = float(scale)
    return found[2], found[3], found[4]
