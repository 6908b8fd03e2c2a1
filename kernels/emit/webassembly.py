"""A listing as a module of WebAssembly: a memory with all that the program has, and a function that runs it.

    place() -> i32    where the program's memory starts; pieces lie behind it as `Laid` says
    run()             all runs, one after the other

Whoever has the module writes weights and inputs into its memory, and reads the outputs there.
"""

from __future__ import annotations

from dataclasses import dataclass

from kernels.emit.common import kernel_modules
from kernels.emit.program import compiled
from kernels.emit.standalone import Laid, NotStandalone, lay_out, moving, write_memory, write_runs
from kernels.listing import Listing
from kernels.llvm.function import Function, Value
from kernels.llvm.link import link_webassembly
from kernels.llvm.module import Module
from kernels.target import Target

EXPORTED = ("place", "run")


@dataclass(frozen=True, slots=True)
class WebAssembly:
    """The modules, and where the pieces lie."""

    modules: tuple[Module, ...]
    laid: Laid
    target: Target

    def linked(self) -> bytes:
        """The module as its file has it; raises CompileError and LinkError."""
        return link_webassembly(compiled(self.modules), self.target, EXPORTED)


def webassembly(listing: Listing, target: Target) -> WebAssembly:
    """The program; raises NotStandalone for another architecture, and where it takes too much memory."""
    if target.architecture.name != "wasm32":
        raise NotStandalone(f"'{target.triple}' is no WebAssembly.")
    laid = lay_out(listing)
    module = Module(target)
    write_memory(module, laid)
    f = Function(module, "place", (), exported=True, result="ptr")
    f.give(Value(("@memory",), "ptr"))
    f.finish()
    f = Function(module, "run", (), exported=True)
    write_runs(f, listing, laid)
    f.finish()
    return WebAssembly((module, *kernel_modules(listing.name, listing.kernels, target), moving(target)), laid, target)
