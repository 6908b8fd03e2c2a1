"""What numba compiled is fresh only while all that went into it is; compiling is told once, and no clock counts it."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest
from numba import njit

from memplan.compiling import COMPILING, Stopwatch, sources_of, telling

ROOT = Path(__file__).parent.parent
LIBRARIES = ("memplan", "scheduler", "kernels")
HELPER = """
from lib.compiling import compiled
from lib.numbers import STEP

@compiled
def more(x):
    return x + STEP
"""
CALLER = """
from lib.compiling import compiled
from lib.helper import more

@compiled
def twice(x):
    return more(more(x))
"""
ASK = (
    "from lib.compiling import telling\nfrom lib.caller import twice\n"
    "told = []\nwith telling(told.append):\n    print(twice(1), len(told))"
)


def ask(folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", ASK], cwd=folder, capture_output=True, text=True, check=True,
        env={**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"},
    )  # fmt: skip
    return done.stdout.strip()


def test_a_function_is_compiled_anew_when_a_file_changes_that_it_takes_code_or_numbers_from(tmp_path: Path) -> None:
    library = tmp_path / "lib"
    library.mkdir()
    (library / "__init__.py").write_text("")
    (library / "compiling.py").write_text((ROOT / "memplan" / "compiling.py").read_text())
    (library / "numbers.py").write_text("STEP = 1\n")
    (library / "helper.py").write_text(HELPER)
    (library / "caller.py").write_text(CALLER)
    assert ask(tmp_path) == "3 1"  # compiled, which was told once
    assert ask(tmp_path) == "3 0"  # read from the cache
    (library / "helper.py").write_text(HELPER.replace("x + STEP", "x * 10 + STEP"))
    assert ask(tmp_path) == "111 1"
    (library / "numbers.py").write_text("STEP = 2\n")
    assert ask(tmp_path) == "122 1"


def test_the_sources_of_a_module_are_its_own_file_and_what_it_imports() -> None:
    found = {file.relative_to(ROOT).as_posix() for file in sources_of("memplan.packing.walk")}
    assert {"memplan/packing/walk.py", "memplan/packing/sections.py", "memplan/bounds.py"} <= found
    assert "memplan/packing/solve.py" not in found


@pytest.mark.parametrize("library", LIBRARIES)
def test_every_compiled_function_has_that_cache(library: str) -> None:
    for path in sorted((ROOT / library).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "numba":
                assert path.name == "compiling.py", f"{path.relative_to(ROOT)}: compile with {library}.compiling"


def test_all_libraries_compile_alike() -> None:
    assert len({(ROOT / library / "compiling.py").read_text() for library in LIBRARIES}) == 1


def test_compiling_is_told_once_and_is_not_on_the_stopwatch() -> None:
    told: list[str] = []

    def one(x: int) -> int:
        return x + 1

    def other(x: int) -> int:
        return first(x) + first(x)

    first, second = njit(one), njit(other)  # without a cache
    compiling: list[bool] = []

    class Watched(Stopwatch):
        def on_start(self, event: object) -> None:
            super().on_start(event)
            compiling.append(True)

    watch = Watched()
    with telling(told.append), watch.running():
        assert second(1) == 4
        told_then = list(told)
        assert second(2) == 6
    assert told == told_then == [COMPILING]
    assert compiling == [True, True]  # one inside the other
    assert 0.0 <= watch.seconds() < watch.passed()
