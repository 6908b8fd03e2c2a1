"""Windows and reductions over one element: Pad by nothing, pooling of kernel 1, Resize to the same size."""

from __future__ import annotations

from graphopt.model import nodes
from graphopt.passes.operands import operand
from graphopt.rewrite.rule import Match, Replacement, Rule, any_node

EXACT_RESIZE = frozenset({"half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel"})


@any_node("Pad", level=0)
def pad_by_nothing(match: Match) -> Replacement:
    """Pad(x, pads=[0, 0, ...])  -->  x

    Leaves alone pads that are computed.
    """
    if match.opset < 11:
        pads = nodes.ints_attribute(match.root, "pads" if match.opset >= 2 else "paddings")
        match.require(pads is not None, "Pad lacks its pads")
    else:
        pads = match.ints(nodes.input_at(match.root, 1), "the pads")
    match.require(not any(pads or ()), "the pads are not all zero")
    return operand(match)


@any_node("AveragePool", "MaxPool", level=0)
def pool_of_one(match: Match) -> Replacement:
    """MaxPool(x, kernel 1x1, stride 1), AveragePool(x, kernel 1x1, stride 1)  -->  x

    Leaves alone a stride above 1 (which drops elements), pads, and a MaxPool whose indices are read.
    """
    kernel = nodes.ints_attribute(match.root, "kernel_shape") or ()
    strides = nodes.ints_attribute(match.root, "strides") or ()
    pads = nodes.ints_attribute(match.root, "pads") or ()
    match.require(kernel and all(size == 1 for size in kernel), "the kernel is larger than 1")
    match.require(all(step == 1 for step in strides), "the stride is larger than 1")
    match.require(not any(pads), "the input is padded")
    match.require(not any(nodes.is_used(indices) for indices in match.root.outputs[1:]), "the indices are read")
    return operand(match)


@any_node("GlobalAveragePool", "GlobalMaxPool", level=0)
def global_pool_of_one(match: Match) -> Replacement:
    """GlobalAveragePool(x of [n, c, 1, 1])  -->  x"""
    value = operand(match)
    spatial = match.shape(value)[2:]
    match.require(spatial and all(dim == 1 for dim in spatial), "the spatial dimensions are not all 1")
    return value


@any_node("Resize", "Upsample", level=0)
def resize_to_same_size(match: Match) -> Replacement:
    """Resize(x, scales=[1, 1, ...])  -->  x,  Resize(x, sizes=shape of x)  -->  x

    For nearest and linear, whose samples then lie on the elements. Leaves alone cubic and antialiased resizing, and
    tf_crop_and_resize and tf_half_pixel_for_nn, which read other places.
    """
    value = operand(match)
    node = match.root
    mode = nodes.string_attribute(node, "mode", "nearest")
    match.require(mode in ("nearest", "linear", "bilinear"), f"mode '{mode}' may round")
    coordinates = nodes.string_attribute(node, "coordinate_transformation_mode", "half_pixel")
    match.require(coordinates in EXACT_RESIZE, f"{coordinates} may read other places")
    match.require(not nodes.int_attribute(node, "antialias", 0), "antialiasing may round")
    if node.op_type == "Upsample" and match.opset < 9:
        attribute = node.attributes.get("scales")
        match.require(attribute is not None, "Upsample lacks its scales")
        assert attribute is not None
        scales = list(attribute.as_floats())
        match.require(all(scale == 1.0 for scale in scales), "a scale is not 1")
        return value
    place = 2 if node.op_type == "Resize" and match.opset >= 11 else 1
    given = nodes.input_at(node, place)
    if given is not None:
        array = match.array(given)
        if array.size:
            match.require((array == 1.0).all(), "a scale is not 1")
            return value
    sizes = nodes.input_at(node, 3) if place == 2 else None
    content = None if sizes is None else match.facts.content(sizes)
    if content is None:
        match.refuse("the sizes are not known")
    shape = match.shape(value)
    axes = nodes.ints_attribute(node, "axes") or tuple(range(len(shape)))
    wanted = tuple(content.reshape(-1).tolist())
    match.require(wanted == tuple(shape[axis] for axis in axes), "the sizes are not those of the input")
    return value


RULES: tuple[Rule, ...] = (pad_by_nothing, pool_of_one, global_pool_of_one, resize_to_same_size)
