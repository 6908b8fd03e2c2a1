"""Imports point down: the floors and rooms of the design, kept by a test."""

from __future__ import annotations

import ast
from pathlib import Path

import networkx
import pytest

ROOT = Path(__file__).parent.parent
LIBRARIES = ("memplan", "scheduler", "kernels")
# From the ground up; a module may import its own room and those before it.
ROOMS = (
    "errors", "files", "machine", "model", "rewrite", "passes", "lowering", "planning", "deploy", "report", "refusals",
    "api", "cli",
)  # fmt: skip


def _imports(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            found.add(node.module)
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return found


def _sources(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


@pytest.mark.parametrize("library", LIBRARIES)
def test_libraries_know_neither_onnx_nor_each_other(library: str) -> None:
    forbidden = {"onnx", "onnx_ir", "onnxruntime", "graphopt", *LIBRARIES} - {library}
    for path in _sources(library):
        roots = {name.split(".")[0] for name in _imports(path)}
        assert not roots & forbidden, f"{path.relative_to(ROOT)} imports {sorted(roots & forbidden)}"


def test_rooms_of_graphopt_import_only_downwards() -> None:
    for path in _sources("graphopt"):
        room = path.relative_to(ROOT / "graphopt").parts[0].removesuffix(".py")
        if room in ("__init__", "__main__"):
            continue
        above = ROOMS[ROOMS.index(room) + 1 :]
        for name in _imports(path):
            parts = name.split(".")
            if parts[0] == "graphopt" and len(parts) > 1:
                assert parts[1] not in above, f"{path.relative_to(ROOT)} imports {name} from a floor above"


def test_no_import_hides_in_a_function() -> None:
    for package in ("graphopt", *LIBRARIES):
        for path in _sources(package):
            for function in ast.walk(ast.parse(path.read_text())):
                if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
                    hidden = [n for n in ast.walk(function) if isinstance(n, (ast.Import, ast.ImportFrom))]
                    assert not hidden, f"{path.relative_to(ROOT)}: {function.name} imports inside"


def test_the_product_does_not_import_tests_models_or_bench() -> None:
    for package in ("graphopt", *LIBRARIES):
        for path in _sources(package):
            roots = {name.split(".")[0] for name in _imports(path)}
            assert not roots & {"tests", "models", "bench"}, path


@pytest.mark.parametrize("package", ("graphopt", *LIBRARIES))
def test_no_module_reaches_itself_through_its_imports(package: str) -> None:
    names = {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in _sources(package)}
    imports = networkx.DiGraph(
        (name, other) for name, path in names.items() for other in _imports(path) if other in names and other != name
    )
    circles = [sorted(one) for one in networkx.strongly_connected_components(imports) if len(one) > 1]
    assert not circles, f"modules that import each other: {circles}"
