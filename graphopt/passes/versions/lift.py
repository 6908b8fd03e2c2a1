"""Lifting a model to a newer opset, one version after the other, each version one numbered change.

At each step an operator whose definition changes with that version is written as the new definition wants it; what
the new definition only extends stays as it is. A run that is cut after some steps has a model of an opset between.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import onnx
import onnx_ir as ir

from graphopt.errors import OptionError
from graphopt.model import nodes
from graphopt.passes.versions.table import ADAPTERS
from graphopt.rewrite.driver import Pass
from graphopt.rewrite.editor import Editor
from graphopt.rewrite.rule import Match, Refused, Replacement, bind

NEWEST = 26  # what the checking ONNX Runtime runs
DEFAULT_DOMAINS = ("", "ai.onnx")


@dataclass(frozen=True, slots=True)
class _Adapted:
    node: ir.Node
    match: Match
    values: Sequence[ir.Value | None]


def lifting(opset: int) -> Pass:
    """The pass that lifts a model to the opset."""

    def lift(editor: Editor, worklist: Sequence[ir.Node]) -> None:
        """operators of an older opset  -->  the same in operators of a newer one, in subgraphs and functions too"""
        lift_opset(editor, opset)

    return Pass("lift-opset", 0, run=lift)


def lift_opset(editor: Editor, opset: int) -> None:
    """Lift the model to the opset.

    Raises OptionError for an opset that is older than the model's, for one that nothing here can check, and naming an
    operator whose change is not known how to make good.
    """
    own = _version(editor.model.graph)
    if opset > NEWEST:
        raise OptionError(f"opset={opset}: the installed ONNX Runtime runs opsets up to {NEWEST}.")
    if opset < own:
        raise OptionError(f"opset={opset}: the model is at opset {own}, and is only ever lifted.")
    roots = [editor.model.graph, *(function.graph for function in editor.model.functions.values())]
    for version in range(min(_version(root) for root in roots) + 1, opset + 1):
        behind = [root for root in roots if _version(root) == version - 1]
        if behind and not _step(editor, behind, version, opset):
            return


def _version(graph: ir.Graph) -> int:
    imports = graph.opset_imports
    return next((imports[domain] for domain in DEFAULT_DOMAINS if domain in imports), 1)


def _step(editor: Editor, roots: Sequence[ir.Graph], version: int, wanted: int) -> bool:
    """Lift the graphs by one version; False when the change was refused."""
    adapted: list[_Adapted] = []
    for node in [node for root in roots for node in nodes.nodes_of(root)]:
        found = _adapt(editor, node, version, wanted)
        if found is not None:
            adapted.append(found)
    before = [one.node for one in adapted]
    after = [node for one in adapted for node in one.match.new_nodes]
    rule = f"lift-to-opset-{version}"
    if not editor.accept(rule, f"opset {version}", before, after):
        for one in adapted:
            editor.discard(one.match)
        return False
    for root in roots:
        for domain in DEFAULT_DOMAINS:
            if domain in root.opset_imports or domain == "":
                root.opset_imports[domain] = version
    editor.raise_ir_version(onnx.helper.OP_SET_ID_VERSION_MAP["ai.onnx", version])
    for one in adapted:
        _hand_on(one.node, one.match.new_nodes[-1])
        editor.insert(one.match)
        for old, new in zip(one.node.outputs, one.values, strict=True):
            if new is not None:
                editor.replace_value(old, new)
        editor.sweep([one.node])
    editor.touched.extend(after)
    return True


def _hand_on(old: ir.Node, new: ir.Node) -> None:
    """Let the node that took the place of another have its name and what is written on it."""
    new.name, old.name = old.name, None
    new.doc_string = old.doc_string
    new.metadata_props.update(old.metadata_props)


def _adapt(editor: Editor, node: ir.Node, version: int, wanted: int) -> _Adapted | None:
    """What stands for the node in the new version, None where it stays as it is."""
    if not nodes.is_standard(node) or not onnx.defs.has(node.op_type, version):
        return None
    new = onnx.defs.get_schema(node.op_type, version)
    if new.since_version != version:
        return None
    adapter = ADAPTERS.get(version, {}).get(node.op_type)
    where = f"opset={wanted}: {nodes.describe(node)} changes with opset {version}"
    if adapter is None:
        fault = _not_extended(node, onnx.defs.get_schema(node.op_type, version - 1), new)
        if fault is not None:
            raise OptionError(f"{where}, and no lift is known ({fault}).")
        return None
    match = Match(node, bind(node), editor.facts)
    try:
        made = adapter(match)
    except (Refused, nodes.ReferenceAttribute) as error:
        raise OptionError(f"{where}, and it cannot be lifted: {error}.") from error
    return None if made is None else _Adapted(node, match, _as_many(node, made))


def _as_many(node: ir.Node, made: Replacement) -> Sequence[ir.Value | None]:
    values = [made] if isinstance(made, ir.Value) else list(made)
    return [*values, *[None] * (len(node.outputs) - len(values))]


def _not_extended(node: ir.Node, old: onnx.defs.OpSchema, new: onnx.defs.OpSchema) -> str | None:
    """Why the node cannot stay as it is under the new definition; None where that only extends the old one."""
    if new.deprecated:
        return "it is deprecated"
    for name in node.attributes:
        if name not in new.attributes:
            return f"it has no attribute '{name}' any more"
    for name, attribute in new.attributes.items():
        if name in node.attributes:
            continue
        if attribute.required:
            return f"it wants an attribute '{name}'"
        if name in old.attributes and _default(old.attributes[name]) != _default(attribute):
            return f"the default of '{name}' is another one"
    if len(node.inputs) > new.max_input or len(node.inputs) < new.min_input:
        return "it takes another number of inputs"
    if len(node.outputs) > new.max_output:
        return "it has fewer outputs"
    return None


def _default(attribute: onnx.defs.OpSchema.Attribute) -> bytes:
    default: bytes = attribute.default_value.SerializeToString()
    return default
