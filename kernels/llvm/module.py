"""A module: functions, constants and declarations, put together as the text that LLVM parses."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from kernels.target import Target

# Tiled kernels are unrolled and vectorised as written; LLVM's own unrolling would only cost time and registers.
_NO_UNROLL = "!0 = distinct !{!0, !1}"
_FOOT = (
    "attributes #0 = { nounwind }",
    "attributes #1 = { nounwind noinline }",
    "attributes #2 = { nounwind noinline minsize optsize }",
    _NO_UNROLL,
    '!1 = !{!"llvm.loop.unroll.disable"}',
)
OPTIMIZED = "; what follows is for LLVM's optimizer"
NAME = re.compile(r"@([\w.]+)")


class Module:
    """Collects text; a function of one name is written once.

    `sized` are the internal functions that read the sizes of a run, and how many. `uses_units`: whether anything in it
    runs on matrix units, which whoever calls it has to configure (`kernels/units/state.py`).
    """

    def __init__(self, target: Target) -> None:
        self.target = target
        self.sized: dict[str, int] = {}
        self.uses_units = False
        self._declarations: dict[str, str] = {}
        self._globals: dict[str, str] = {}
        self._functions: dict[str, str] = {}
        self._plain: set[str] = set()

    def declare(self, name: str, result: str, parameters: Sequence[str]) -> None:
        """Declare an intrinsic or an outside function."""
        if name not in self._declarations:
            self._declarations[name] = f"declare {result} @{name}({', '.join(parameters)})"

    def declare_like(self, name: str, text: str) -> None:
        """Declare a function that another module defines by this text."""
        head = text.partition(" {\n")[0]
        self._declarations[name] = f"declare {head.removeprefix('define ')}"

    def constant(self, name: str, kind: str, values: Sequence[str], align: int = 64) -> str:
        """An array of constants; returns its name as an operand."""
        body = ", ".join(f"{kind} {value}" for value in values)
        self._globals[name] = f"@{name} = internal constant [{len(values)} x {kind}] [{body}], align {align}"
        return f"@{name}"

    def variable(self, name: str, text: str) -> str:
        """A global as LLVM writes it after its name: "internal global i32 0"; returns its name as an operand."""
        self._globals[name] = f"@{name} = {text}"
        return f"@{name}"

    def has(self, name: str) -> bool:
        """Whether a function of this name is there already."""
        return name in self._functions

    def add(self, name: str, text: str) -> None:
        """Add a function's text."""
        self._functions[name] = text

    def leave_to_optimizer(self, name: str) -> None:
        """Say that an exported function, and what it calls, are plain loops, for LLVM's optimizer to work on.

        All code for a GPU goes through it, and its modules are not divided.
        """
        if not self.target.is_gpu:
            self._plain.add(name)

    def rename(self, name: str, other: str) -> None:
        """Give a function that nothing here calls another name."""
        self._functions[other] = self._functions.pop(name).replace(f"@{name}(", f"@{other}(", 1)
        if name in self._plain:
            self._plain = self._plain - {name} | {other}

    def agrees(self, other: Module) -> bool:
        """Whether what both define is defined alike, so that one can include the other."""
        pairs = ((self._globals, other._globals), (self._functions, other._functions))
        return all(mine.get(name, text) == text for mine, theirs in pairs for name, text in theirs.items())

    @property
    def is_divided(self) -> bool:
        """Whether a part of it is for LLVM's optimizer."""
        return bool(self._plain)

    @property
    def functions(self) -> Mapping[str, str]:
        """The text of each function."""
        return self._functions

    @property
    def globals(self) -> Mapping[str, str]:
        """The text of each constant or variable."""
        return self._globals

    def serve(self, other: Module) -> None:
        """Take over what another module declares, and those of its globals that functions here name."""
        self._declarations |= other._declarations
        pending = [name for text in self._functions.values() for name in NAME.findall(text)]
        used = set[str]()
        while pending:
            name = pending.pop()
            if name in other._globals and name not in used:
                used.add(name)
                pending += NAME.findall(other._globals[name])
        self._globals |= {name: text for name, text in other._globals.items() if name in used}
        self.sized |= other.sized
        self.uses_units |= other.uses_units

    @property
    def defined(self) -> tuple[str, ...]:
        """The names of its functions and globals."""
        return (*self._functions, *self._globals)

    def include(self, other: Module) -> None:
        """Take over all that another module holds; equal names must mean equal text."""
        for mine, theirs in (
            (self._declarations, other._declarations),
            (self._globals, other._globals),
            (self._functions, other._functions),
        ):
            for name, text in theirs.items():
                assert mine.get(name, text) == text, f"two different definitions of '{name}'"
                mine[name] = text
        self._plain |= other._plain
        self.sized |= other.sized
        self.uses_units |= other.uses_units

    def text(self) -> str:
        """The whole module; behind the line OPTIMIZED a module of its own with the functions left to the optimizer."""
        plain = self._reached(self._plain)
        tiled = self._reached(name for name in self._functions if name not in plain)
        text = self._part(tiled)
        return text if not plain else f"{text}{OPTIMIZED}\n{self._part(plain)}"

    def _reached(self, roots: Iterable[str]) -> dict[str, None]:
        """Functions, and all that they name, in the order in which they were written."""
        pending, found = list(roots), set[str]()
        while pending:
            name = pending.pop()
            if name in self._functions and name not in found:
                found.add(name)
                pending += NAME.findall(self._functions[name]) if self._plain else ()
        return {name: None for name in self._functions if name in found}

    def _part(self, names: Iterable[str]) -> str:
        """One module. The triple must come first: it decides how everything after it is laid out."""
        functions = [self._functions[name] for name in names]
        declarations, held = self._declarations, self._globals
        if self._plain:
            used = {name for text in functions for name in NAME.findall(text)}
            used |= {name for text in map(held.get, list(used)) if text for name in NAME.findall(text)}
            declarations = {name: text for name, text in declarations.items() if name in used}
            held = {name: text for name, text in held.items() if name in used}
        declared = [text for name, text in declarations.items() if name not in names]
        foot: tuple[str, ...] = _FOOT
        if self.target.is_gpu:  # all threads of a block meet in what is called
            foot = tuple(line.replace("nounwind", "convergent nounwind") for line in foot)
        parts = (f'target triple = "{self.target.triple}"', *held.values(), *functions, *declared, *foot)
        return "\n".join(parts) + "\n"
