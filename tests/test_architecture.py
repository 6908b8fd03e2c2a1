"""Imports point down: the floors and rooms of the design, kept by a test."""

from __future__ import annotations

import ast
import itertools
import re
from functools import cache
from pathlib import Path

import networkx
import pytest

ROOT = Path(__file__).parent.parent
LIBRARIES = ("memplan", "scheduler", "kernels")
# From the ground up; a module may import its own room and those before it.
ROOMS = (
    "errors", "extras", "lazy", "version", "files", "machine", "model", "check", "rewrite", "passes", "gradient",
    "quantization", "memory",
    "program", "flows", "report", "refusals", "cli",
)  # fmt: skip


@cache
def _parsed(source: str) -> ast.Module:
    return ast.parse(source)


def _module(path: Path) -> str:
    """The module of a file, by which it is imported."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _file(module: str) -> Path | None:
    """The file of a module of ours; None where the name is that of something in one, or of somebody else's."""
    path = ROOT.joinpath(*module.split("."))
    return next((one for one in (path.with_suffix(".py"), path / "__init__.py") if one.is_file()), None)


def _imports(path: Path) -> set[str]:
    """What a file imports, also for types alone; what comes through an `__init__` by where that has it."""
    found: set[str] = set()
    waiting: list[ast.AST] = [_parsed(path.read_text())]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = _absolute(path, node)
            for alias in node.names:
                found |= _sources_of(module, alias.name)
        waiting += ast.iter_child_nodes(node)
    return found


def _absolute(path: Path, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    package = path.parent.relative_to(ROOT).parts
    return ".".join([*package[: len(package) - node.level + 1], *([node.module] if node.module else [])])


def _sources_of(module: str, name: str) -> set[str]:
    """Where `from module import name` leads: a module, or what an `__init__` has from elsewhere."""
    if _file(f"{module}.{name}") is not None:
        return {f"{module}.{name}"}
    file = _file(module)
    found = {module, f"{module}.{name}"}
    if file is None or file.name != "__init__.py":
        return found
    for node in ast.walk(_parsed(file.read_text())):
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    found |= _sources_of(_absolute(file, node), alias.name)
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
            assert name != "graphopt" or not above, f"{path.relative_to(ROOT)} imports graphopt, which stands above it"
            if parts[0] == "graphopt" and len(parts) > 1:
                assert parts[1] not in above, f"{path.relative_to(ROOT)} imports {name} from a floor above"


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("from graphopt import load", {"graphopt", "graphopt.model.load"}),
        ("from memplan.remat import recompute", {"memplan.remat.recompute"}),
        ("if TYPE_CHECKING:\n    from graphopt.cli import options", {"graphopt.cli.options"}),
        ("from . import options", {"graphopt.cli.options"}),
        ("from ..report import page", {"graphopt.report.page"}),
    ],
)
def test_imports_are_followed_to_where_they_lead(source: str, names: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    read = Path.read_text
    asking = ROOT / "graphopt" / "cli" / "asking.py"
    monkeypatch.setattr(Path, "read_text", lambda path: source if path == asking else read(path))
    assert names <= _imports(asking)


def test_every_room_is_in_the_tables_and_every_room_in_them_exists() -> None:
    there = {
        path.name.removesuffix(".py")
        for path in (ROOT / "graphopt").iterdir()
        if path.suffix == ".py" or (path / "__init__.py").is_file()
    }
    assert there - {"__init__", "__main__"} == set(ROOMS)
    assert _table("architecture.md", "graphopt") == list(ROOMS)


@pytest.mark.parametrize(("page", "library"), [("memory.md", "memplan"), ("kernels.md", "kernels")])
def test_rooms_of_libraries_are_those_that_their_pages_name(page: str, library: str) -> None:
    there = {path.parent.name for path in (ROOT / library).glob("*/__init__.py")}
    named = _table(page, library)
    assert there <= set(named), f"{page} does not name {sorted(there - set(named))}"
    for room in named:
        assert _file(f"{library}.{room}") is not None, f"{page} names '{room}', which {library} does not have"


def _table(page: str, package: str) -> list[str]:
    """The rooms that the table of a page names in its first column."""
    lines = (ROOT / "docs" / page).read_text().split("| room | what is in it |", 1)[1].splitlines()[2:]
    rows = itertools.takewhile(lambda line: line.startswith("|"), lines)
    names = [name for row in rows for name in re.findall(r"`([^`]+)`", row.split("|")[1])]
    return [name.removeprefix(f"{package}/").strip("/") for name in names]


def test_no_import_hides_in_a_function() -> None:
    for package in ("graphopt", *LIBRARIES):
        for path in _sources(package):
            for function in ast.walk(_parsed(path.read_text())):
                if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
                    hidden = [n for n in ast.walk(function) if isinstance(n, (ast.Import, ast.ImportFrom))]
                    assert not hidden, f"{path.relative_to(ROOT)}: {function.name} imports inside"


def test_the_product_does_not_import_tests_models_or_bench() -> None:
    for package in ("graphopt", *LIBRARIES):
        for path in _sources(package):
            roots = {name.split(".")[0] for name in _imports(path)}
            assert not roots & {"tests", "models", "bench"}, path


def _packages_of(module: str) -> set[str]:
    """The packages that a module is in; importing it runs their `__init__` first."""
    parts = module.split(".")
    return {".".join(parts[:length]) for length in range(1, len(parts))}


@pytest.mark.parametrize("package", ("graphopt", *LIBRARIES))
def test_no_module_reaches_itself_through_its_imports(package: str) -> None:
    """Neither for types alone nor through the `__init__` of a package that another one's module is in."""
    names = {_module(path): path for path in _sources(package)}
    imports = networkx.DiGraph(
        (name, run)
        for name, path in names.items()
        for other in _imports(path)
        for run in (other, *_packages_of(other) - _packages_of(name))
        if run in names and run != name
    )
    circles = [sorted(one) for one in networkx.strongly_connected_components(imports) if len(one) > 1]
    assert not circles, f"modules that import each other: {circles}"


def test_reports_import_no_planner_and_no_solver() -> None:
    """They print records; what is planned is planned in the flows."""
    planners = ("graphopt.memory", "graphopt.program", "memplan", "scheduler.policies", "graphopt.rewrite.optimizer")
    records = {"graphopt.memory.budgeted.BudgetRecord", "graphopt.memory.budgeted"}
    for path in _sources("graphopt/report"):
        planned = {name for name in _imports(path) if name.startswith(planners)} - records
        assert not planned, f"{path.relative_to(ROOT)} imports {sorted(planned)}"
