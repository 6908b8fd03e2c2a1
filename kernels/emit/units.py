"""Matrix units around the runs of a program, as LLVM: the system's permission, and the configuration of tiles.

    units_begin()    the thread's tiles are configured, once for all kernels that it runs of a call
    units_end()      they are given back

Both are in the module of the kernels: the C interface is compiled for processors that have no such instructions.
"""

from __future__ import annotations

from kernels.emit.refusal import BAD_PROCESSOR, refuse_when
from kernels.listing import Listing
from kernels.llvm.function import Function, Value
from kernels.llvm.module import Module
from kernels.units import state


def write_units(module: Module, listing: Listing) -> None:
    """Add both functions, where a kernel runs on matrix units."""
    if not listing.uses_units:
        return
    for name, body in (("units_begin", state.configure), ("units_end", state.release)):
        f = Function(module, listing.symbol(name), (), exported=True)
        body(f)
        f.finish()


def begin_units(f: Function, listing: Listing) -> None:
    """Call the first one."""
    _call(f, listing, "units_begin")


def end_units(f: Function, listing: Listing) -> None:
    """Call the second one."""
    _call(f, listing, "units_end")


def _call(f: Function, listing: Listing, name: str) -> None:
    if listing.uses_units:
        f.module.declare(listing.symbol(name), "void", [])
        f.line(f"call void @{listing.symbol(name)}()")


def require_units(f: Function, listing: Listing, record: Value) -> None:
    """Return BAD_PROCESSOR with the system's reason where it denies the process its matrix units."""
    if not listing.uses_units:
        return
    answer = state.ask(f)
    f.module.declare("__errno_location", "ptr", [])
    f.module.declare("strerror", "ptr", ["i32"])
    number = f.load("i32", f.value("ptr", "call ptr @__errno_location()"))
    reason = f.value("ptr", f"call ptr @strerror(i32 {number.text})")
    refuse_when(
        f, f.compare("ne", answer, f.integer(0)), BAD_PROCESSOR, record,
        "the system does not let this process use the matrix units, which the code was compiled for: %s; compile it "
        "in float32.", reason,
    )  # fmt: skip
