"""One meaning for one name: no two classes of the package are called alike."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import kernels

SAME = {"Array"}  # an alias for NumPy's arrays wherever it stands


def test_no_two_classes_or_types_are_called_alike() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for path in Path(kernels.__file__).parent.rglob("*.py"):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef):
                places[node.name].append(path.name)
            elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                name = node.targets[0].id
                if name.strip("_")[:1].isupper() and not name.isupper():
                    places[name].append(path.name)
    assert len(places) > 100
    assert {name: files for name, files in places.items() if len(files) > 1 and name not in SAME} == {}
