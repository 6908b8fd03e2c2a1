"""Where a node comes from in the program that was exported, as exporters write it beside the node or into its name.

torch's exporter writes the scopes of modules, in newer versions the stack of the call too; its older exporter writes
modules into the names of nodes: /encoder/layer.0/MatMul.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass

import onnx_ir as ir

SCOPES = "pkg.torch.onnx.name_scopes"  # "['', 'encoder', 'encoder.layer.0', 'linear']": from the outermost to the call
STACK = "pkg.torch.onnx.stack_trace"
NAMESPACE = "namespace"  # ": Net/encoder: Encoder/encoder.layer.0: Layer/linear: aten.linear.default"
FRAME = re.compile(r'File "([^"\n]+)", line (\d+)')


@dataclass(frozen=True, slots=True)
class Provenance:
    """A module's name and a line of source; each is empty where the exporter did not write it."""

    module: str
    source: str  # "net.py:12", the innermost frame


def origin_of(node: ir.Node) -> Provenance:
    """What is written beside a node, or in its name. Text that cannot be read counts as not written."""
    return Provenance(_module(node), _source(node.metadata_props.get(STACK, "")))


def _module(node: ir.Node) -> str:
    props = node.metadata_props
    if SCOPES in props:
        scopes = _scopes(props[SCOPES])
    elif NAMESPACE in props:
        scopes = [part.partition(": ")[0].strip() for part in re.split(r"(?<!:)/", props[NAMESPACE])]
    else:
        name = node.name or ""
        return name.rpartition("/")[0].strip("/").replace("/", ".") if name.startswith("/") else ""
    return scopes[-2] if len(scopes) > 1 else ""


def _scopes(text: str) -> list[str]:
    try:
        found = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return []
    return [str(scope) for scope in found] if isinstance(found, list) else []


def _source(stack: str) -> str:
    frames = FRAME.findall(stack)
    return f"{frames[-1][0]}:{frames[-1][1]}" if frames else ""
