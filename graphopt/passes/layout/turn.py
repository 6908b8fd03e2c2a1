"""The layout that the caller asks for: channels last for everything that Transposes reach."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from graphopt.passes.layout.channels import Turner
from graphopt.passes.layout.push import push
from graphopt.rewrite.editor import Editor

RULE = "turn-to-channels-last"


def turn_to_channels_last(editor: Editor, worklist: Sequence[ir.Node]) -> None:
    """Transpose(Conv(Transpose(x), W))  -->  NhwcConv(x, W)

    with the model-local function NhwcConv, and likewise all operators that are defined for channels first, as long as
    that adds no Transpose to the graph. Leaves alone regions that no Transpose reaches.
    """
    turner = Turner(editor)
    push(editor, worklist, RULE, turner.answer, turner.settle)
