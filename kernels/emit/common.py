"""Functions that several kernels of a program have alike: each is compiled once, with the first kernel that has it.

Kernels of one template call the same tiles, transforms and formulas under names of their own. What decides a function
is its text, with the contents of all that it names in the place of the names. By that it has a symbol, which all
objects of a program see and nobody outside of it; a kernel whose functions were written before only declares them.
Kernels are gone through in the order in which they were written, whatever the order of a listing.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence

from kernels.kernel import Kernel, symbol
from kernels.llvm.module import NAME, Module
from kernels.target import Target

_NUMBER = re.compile(r"_(\d+)(?:_|$)")
_DIGITS = 16  # of the hash of what decides a function, in its symbol: 64 bits, which no two of a program share
_INTERNAL, _HIDDEN, _CONSTANT = "define internal ", "define hidden ", " = internal constant "


class CommonFunctions:
    """The functions that the kernels of a program, or of several in one library, have written so far.

    `name` is what their symbols begin with.
    """

    def __init__(self, name: str, target: Target) -> None:
        self.name, self.target = name, target
        self._written: set[str] = set()

    def modules_of(self, listing: str, kernels: Iterable[Kernel]) -> tuple[Module, ...]:
        """Further kernels of a listing: each in a module, with those that define functions of the same names."""
        groups: dict[int, list[Kernel]] = {}
        owners: dict[str, int] = {}
        for number, kernel in enumerate(kernels):
            others = {owners[one] for one in kernel.module.defined if one in owners}
            groups[number] = [*(one for other in sorted(others) for one in groups.pop(other)), kernel]
            owners |= {one: number for member in groups[number] for one in member.module.defined}
        return tuple(self._module_of(listing, one) for one in groups.values())

    def _module_of(self, listing: str, kernels: Sequence[Kernel]) -> Module:
        """Some kernels in one module, with those of their functions that no module before has."""
        together = Module(self.target)
        for kernel in kernels:
            together.include(kernel.module)
            together.rename(kernel.name, symbol(listing, kernel.name))
        if together.is_divided:  # LLVM's optimizer may do with its part what it likes
            return together
        found, contents = Module(self.target), _Contents(together)
        symbols = self._symbols(contents, [kernel.name for kernel in kernels])
        for name in together.functions:
            there, text = symbols.get(name, name), contents.renamed(name, symbols)
            if there in self._written:
                found.declare_like(there, text.replace(_INTERNAL, _HIDDEN, 1))
            elif there == name:
                found.add(name, text)
            else:
                self._written.add(there)
                found.add(there, text.replace(_INTERNAL, _HIDDEN, 1))
        found.serve(together)
        return found

    def _symbols(self, contents: _Contents, kernels: Sequence[str]) -> dict[str, str]:
        """What each function is called that others may have as well, by its name in the module."""
        found = {}
        for name, text in contents.module.functions.items():
            content = contents.of(name) if text.startswith(_INTERNAL) else None
            if content is not None:
                own = max((one for one in kernels if name.startswith(f"{one}_")), key=len, default="")
                kind = name[len(own) :].lstrip("_").partition("_")[0]
                found[name] = symbol(self.name, f"{kind}.{content[:_DIGITS]}")
        return found


class _Contents:
    """What decides the functions and constants of a module."""

    def __init__(self, module: Module) -> None:
        self.module = module
        self._known: dict[str, str | None] = {}
        self._names: dict[str, frozenset[str]] = {}

    def of(self, name: str) -> str | None:
        """A hash of a text and all that it names; None where something of it may change, or it calls itself."""
        if name not in self._known:
            self._known[name] = None
            self._known[name] = self._hash(name)
        return self._known[name]

    def renamed(self, name: str, names: Mapping[str, str]) -> str:
        """A text with other names for itself and what it names, as far as there are others."""
        text, own = self._text(name), names.get(name, name)
        if any(names.get(one, one) != one for one in self._named(name)):
            return NAME.sub(lambda match: f"@{names.get(match[1], match[1])}", text)
        return text if own == name else text.replace(f"@{name}", f"@{own}", 1)

    def _hash(self, name: str) -> str | None:
        text = self._text(name)
        if not text:  # an intrinsic, or a function of the C library
            return name
        if name in self.module.globals and _CONSTANT not in text:
            return None
        hashes = {one: known for one in self._named(name) if (known := self.of(one)) is not None}
        if len(hashes) < len(self._named(name)):
            return None
        return hashlib.sha256(self.renamed(name, {**hashes, name: ""}).encode()).hexdigest()

    def _text(self, name: str) -> str:
        return self.module.functions.get(name) or self.module.globals.get(name) or ""

    def _named(self, name: str) -> frozenset[str]:
        """What a text names besides itself."""
        if name not in self._names:
            self._names[name] = frozenset(NAME.findall(self._text(name))) - {name}
        return self._names[name]


def kernel_modules(
    listing: str, kernels: Iterable[Kernel], target: Target, common: CommonFunctions | None = None
) -> tuple[Module, ...]:
    """All kernels of a listing; with `common` beside those of other listings in one library."""
    return (common or CommonFunctions(listing, target)).modules_of(listing, sorted(kernels, key=_written))


def _written(kernel: Kernel) -> tuple[int, str]:
    """The number in a kernel's name, which is that of its turn to be written."""
    number = _NUMBER.search(kernel.name)
    return (int(number[1]) if number else 0, kernel.name)
