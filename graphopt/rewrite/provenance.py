"""What a new node says of the nodes it stands for: their name, doc string and metadata, and a line of its own."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from graphopt.rewrite.rule import Match

PROVENANCE = "graphopt.from"  # metadata key on a node that stands for several
SEPARATOR = "; "  # between what several rules say
NAMED = 16  # nodes that are named for one; a rolled-up recurrence stands for hundreds


def inherit(rule: str, match: Match, values: Sequence[ir.Value | None]) -> None:
    """Hand on what is written on the matched nodes to the new one that computes the result."""
    main = next((v.producer() for v in values if v is not None and v.producer() in match.new_nodes), None)
    if main is None:
        return
    root = match.root
    main.name, root.name = root.name, None
    main.doc_string = root.doc_string
    for node in reversed(match.binding.inner):
        main.metadata_props.update(node.metadata_props)
    sources = [node.name or node.op_type for node in match.binding.inner if node is not root]
    if sources or main.op_type != root.op_type:
        _say(main, rule, [root.op_type, *sources])


def trace(rule: str, node: ir.Node, sources: Sequence[ir.Node]) -> None:
    """Write on a new node which nodes it stands for, and hand on their metadata; they may keep their names."""
    for source in reversed(sources):
        node.metadata_props.update(source.metadata_props)
    names = [source.name or source.op_type for source in sources]
    more = [f"{len(names) - NAMED} more"] if len(names) > NAMED else []
    _say(node, rule, [*names[:NAMED], *more])


def _say(node: ir.Node, rule: str, sources: Sequence[str]) -> None:
    earlier = node.metadata_props.get(PROVENANCE)
    line = f"{rule}({', '.join(sources)})"
    node.metadata_props[PROVENANCE] = line if earlier is None else f"{earlier}{SEPARATOR}{line}"
