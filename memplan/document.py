"""JSON of problems, graphs, packings and plans: each a document that carries its schema's name and version.

`read(write(record)) == record`. A document of another kind or version, and a field that is missing or of the wrong
type, are refused by name.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

from memplan.errors import MemplanError
from memplan.graph import Graph
from memplan.plan import MemoryPlan, Packing
from memplan.problem import MemoryProblem

Record = MemoryProblem | Graph | Packing | MemoryPlan
R = TypeVar("R", MemoryProblem, Graph, Packing, MemoryPlan)
SCHEMAS: dict[type[Record], str] = {
    MemoryProblem: "memplan.problem/1",
    Graph: "memplan.graph/1",
    Packing: "memplan.packing/1",
    MemoryPlan: "memplan.plan/1",
}


class InvalidDocument(MemplanError):
    """Bytes that are no document of the kind that is asked for."""


class _Head(msgspec.Struct, frozen=True):
    schema: str
    content: msgspec.Raw


def write(record: Record) -> bytes:
    """The record as a JSON document, the same bytes for the same record."""
    content = msgspec.json.encode(record)
    document = msgspec.json.encode({"schema": SCHEMAS[type(record)], "content": msgspec.Raw(content)})
    return msgspec.json.format(document, indent=1) + b"\n"


def read(data: bytes, kind: type[R]) -> R:
    """The record of a document; raises InvalidDocument, or InvalidProblem for a record that means nothing."""
    wanted = SCHEMAS[kind]
    try:
        head = msgspec.json.decode(data, type=_Head)
    except msgspec.DecodeError as error:
        raise InvalidDocument(f"this is no document of memplan: {error}.") from error
    if head.schema != wanted:
        raise InvalidDocument(f"this is a document of '{head.schema}', not of '{wanted}'.")
    try:
        return msgspec.json.decode(head.content, type=kind)
    except msgspec.ValidationError as error:
        raise InvalidDocument(f"the document of '{wanted}' is not complete: {error}.") from error
