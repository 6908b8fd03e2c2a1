"""What a new node says of those it stands for, and what of theirs it hands on."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from graphopt.rewrite.provenance import PROVENANCE
from graphopt.rewrite.rule import Match, Replacement
from tests.rewrite.editing import at, edited, written


def said(build: Callable[[Match], Replacement], *inner: str, names: Sequence[str] = ()) -> dict[str, str]:
    editor = edited()
    for node, name in zip(editor.model.graph, names, strict=False):
        node.name, node.doc_string, node.metadata_props["of"] = name, f"{name} of the author", name
    match = at(editor, "b", *inner)
    assert editor.apply("r", match, build(match))
    return {
        f"{node.name} ({node.op_type})": node.metadata_props.get(PROVENANCE, "") for node in editor.model.graph
    }  # fmt: skip


def test_a_new_node_says_what_it_stands_for() -> None:
    def other(match: Match) -> Replacement:
        return match.op("Sin", match.root.inputs[0])

    def alike(match: Match) -> Replacement:
        return match.op("Exp", match.root.inputs[0])

    assert said(other, names=["one", "two", "three"]) == {
        "one (Neg)": "", "two (Sin)": "r(Exp)", "three (Abs)": "",
    }  # fmt: skip
    assert said(alike, names=["one", "two", "three"])["two (Exp)"] == "", "of one operator of its own kind it says none"
    assert said(lambda match: match.op("Sin", match.root.graph.inputs[0]), "a", names=["one", "two"]) == {  # type: ignore[union-attr]
        "two (Sin)": "r(Exp, one)", " (Abs)": "",
    }  # fmt: skip
    assert said(lambda match: match.op("Sin", match.root.graph.inputs[0]), "a") == {  # type: ignore[union-attr]
        "b/Sin (Sin)": "r(Exp, Neg)", " (Abs)": "",
    }  # fmt: skip


def test_a_new_node_inherits_what_the_author_wrote() -> None:
    editor = edited()
    for node, name in zip(editor.model.graph, ("one", "two"), strict=False):
        node.name, node.doc_string, node.metadata_props["of"] = name, f"{name} of the author", name
        node.metadata_props[name] = "own"
        node.metadata_props[PROVENANCE] = f"earlier({name})"
    match = at(editor, "b", "a")
    assert editor.apply("r", match, match.op("Sin", editor.model.graph.inputs[0]))
    made = next(iter(editor.model.graph))
    assert (made.name, made.doc_string) == ("two", "two of the author")
    assert dict(made.metadata_props) == {
        "of": "two", "one": "own", "two": "own", PROVENANCE: "earlier(two); r(Exp, one)",
    }  # fmt: skip


def test_nodes_put_before_a_place_are_traced_where_that_is_asked() -> None:
    editor = edited()
    match = at(editor, "b", "a")
    last = match.op("Sin", match.op("Cos", editor.model.graph.inputs[0]), match.ints_constant(5))
    match.ints_constant(6)
    editor.insert(match, "r", match.binding.inner)
    assert written(editor)[:3] == [
        "a = Neg(x)",
        "b/Cos_output = Cos(x)",
        "b/Sin_output = Sin(b/Cos_output, b/constant)",
    ]
    assert list(editor.model.graph.initializers) == ["b/constant"], "the other one is read by nobody"
    made = last.producer()
    assert made is not None and made.metadata_props == {PROVENANCE: "r(Exp, Neg)"}
    quiet = at(editor, "y")
    other = quiet.op("Cos", quiet.root.inputs[0])
    editor.insert(quiet)
    assert not other.producer().metadata_props  # type: ignore[union-attr]
