"""The body that an operator's ONNX schema has: what the operator computes, in terms of others."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable
from typing import Any

import onnx
import onnx_ir as ir

from graphopt.model import nodes
from graphopt.model.contrib.bodies import contrib_body, has_body
from graphopt.model.facts import Facts
from graphopt.model.functions import inline
from graphopt.model.known import Knowledge
from graphopt.model.operators.contrib import CACHES
from graphopt.model.schema import told_type

_DOMAIN = "graphopt.body"


def put_bodies(model: ir.Model, wanting: Callable[[Facts], Iterable[ir.Node]]) -> None:
    """Put bodies in the places of the nodes that `wanting` gives, and of those in bodies, where they have one."""
    found = True
    while found:
        facts = Facts(model)
        bodies = [(node, body) for node in wanting(facts) if (body := body_of(node, facts)) is not None]
        for number, (node, body) in enumerate(bodies):
            name = f"{node.op_type}_{number}"
            body.domain, body.name, body.overload = _DOMAIN, name, ""
            body.opset_imports.clear()
            body.opset_imports.update({domain: facts.opset(node, domain) for domain in ("", node.domain)} | {CACHES: 1})
            node.domain, node.op_type = _DOMAIN, name
            _name_results(node)
            model.functions[body.identifier()] = body
        found = bool(bodies)
        if found:
            inline(model, lambda function: function.domain == _DOMAIN)
            model.graph.opset_imports.pop(_DOMAIN, None)


def _name_results(node: ir.Node) -> None:
    """Give names to results that the node leaves out: in a body they are those of operators that have to give them."""
    known = next((value.name for value in node.outputs if value.name), None)
    for number, value in enumerate(node.outputs):
        if known is not None and not value.name:
            value.name = f"{known}:result{number}"


def body_of(node: ir.Node, facts: Knowledge) -> ir.Function | None:
    """The body of a node of the standard or of com.microsoft as a function with its inputs and outputs, or None.

    A body that depends on the node is made for its attributes and the types of its operands, and is None where a type
    is not known. A body holds for all versions up to the next one that the schema has, by the rules of ONNX.
    """
    if nodes.has_reference_attributes(node) or nodes.has_subgraphs(node):
        return None
    if has_body(node):
        return contrib_body(node, facts)
    version = facts.opset(node, node.domain)
    try:
        schema: Any = onnx.defs.get_schema(node.op_type, version, node.domain)  # whose stub lacks bodies
    except onnx.defs.SchemaError:
        return None
    plain = _newest(schema.function_opset_versions, version)
    if plain is not None:
        data = schema.get_function_with_opset_version(plain)
    else:
        made_for = _newest(schema.context_dependent_function_opset_versions, version)
        types = [_type(value, facts) for value in node.inputs]
        if made_for is None or any(one is None for one in types):
            return None
        given = [one for one in types if one is not None]
        data = schema.get_context_dependent_function_with_opset_version(made_for, _proto(node), given)
    if not data:
        return None
    proto = onnx.FunctionProto.FromString(data)
    defaults = [one.default_value for one in schema.attributes.values() if one.default_value.name]
    named = {one.name for one in (*defaults, *proto.attribute_proto)}
    proto.attribute_proto.extend(one for one in defaults if one.name in proto.attribute)
    kept = [name for name in proto.attribute if name not in named]
    del proto.attribute[:]
    proto.attribute.extend(kept)
    del proto.output[len(node.outputs) :]
    return ir.serde.deserialize_function(proto)


def _newest(versions: list[int], limit: int) -> int | None:
    """The last of these versions that is not beyond a limit."""
    at = bisect_right(sorted(versions), limit)
    return sorted(versions)[at - 1] if at else None


def _proto(node: ir.Node) -> bytes:
    proto = onnx.NodeProto(op_type=node.op_type, domain=node.domain, name=node.name or "")
    proto.input.extend("" if value is None else value.name or "" for value in node.inputs)
    proto.output.extend(
        value.name or "" if nodes.is_used(value) or not number else "" for number, value in enumerate(node.outputs)
    )
    proto.attribute.extend(ir.to_proto(one) for one in node.attributes.values())
    found: bytes = proto.SerializeToString()
    return found


def _type(value: ir.Value | None, facts: Knowledge) -> bytes | None:
    """The type of an operand, serialized; None where it is not known."""
    if value is None:
        return b""
    proto = told_type(facts.known(value), {})
    return None if proto is None else bytes(proto.SerializeToString())
