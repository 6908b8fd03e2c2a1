"""Operators of images that take what is elementwise behind them along, and how each is lowered."""

from __future__ import annotations

from graphopt.errors import NotLowered
from graphopt.program.regions.fusion import Tree
from graphopt.program.regions.images.convolve import CONVOLUTIONS, lower_convolution
from graphopt.program.regions.images.pool import POOLS, is_global, lower_pool
from graphopt.program.regions.images.resizing import RESIZES, lower_resize
from graphopt.program.regions.scope import Scope
from kernels.errors import KernelsError

_LOWERINGS = {
    **dict.fromkeys(CONVOLUTIONS, lower_convolution),
    **dict.fromkeys(POOLS, lower_pool),
    **dict.fromkeys(RESIZES, lower_resize),
}


def lower_images(scope: Scope, tree: Tree) -> bool:
    """Lower a tree whose anchor works on images; False for any other. Raises NotLowered for sizes no kernel takes."""
    node = tree.anchor
    assert node is not None, "the caller has looked"
    lowering = _LOWERINGS.get(node.op_type, lower_pool if is_global(scope, node) else None)
    if lowering is None:
        return False
    try:
        lowering(scope, tree)
    except KernelsError as error:
        raise NotLowered(f"{node.op_type} '{node.name or node.outputs[0].name}' has no kernel: {error}") from error
    return True
