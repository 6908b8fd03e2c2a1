"""What a thread needs around kernels that use matrix units: the system's permission, and a configuration of the tiles.

A process asks Linux once for the registers' state (arch_prctl with ARCH_REQ_XCOMP_PERM), and all of its threads have it
then. A thread configures its tiles when it begins with a program's runs, for all of their kernels alike, and releases
them when it ends, so that the system need not save them while it waits.
"""

from __future__ import annotations

import ctypes
import functools
import os

from kernels.llvm.function import Function, Value
from kernels.units.instructions import ROW_BYTES, ROWS, TILES

ARCH_PRCTL, ARCH_REQ_XCOMP_PERM, TILE_DATA = 158, 0x1023, 18  # the system call on x86-64, its command, the component
PALETTE = 1


def configuration() -> bytes:
    """All tiles whole: the palette, then bytes of a row and rows of each tile."""
    rows = ROW_BYTES.to_bytes(2, "little") * TILES
    return bytes([PALETTE]) + bytes(15) + rows.ljust(32, b"\0") + (bytes([ROWS]) * TILES).ljust(16, b"\0")


def configure(f: Function) -> None:
    """Configure the thread's tiles, which become zeros."""
    f.module.declare("llvm.x86.ldtilecfg", "void", ["ptr"])
    place = f.module.constant("units.configuration", "i8", [str(byte) for byte in configuration()])
    f.line(f"call void @llvm.x86.ldtilecfg(ptr {place})")


def release(f: Function) -> None:
    """Give the thread's tiles back."""
    f.module.declare("llvm.x86.tilerelease", "void", [])
    f.line("call void @llvm.x86.tilerelease()")


def ask(f: Function) -> Value:
    """Ask for permission: an i64 that is 0 where it is given, else -1 with the reason in errno."""
    f.module.declare("syscall", "i64", ["i64", "..."])
    call = f"i64 {ARCH_PRCTL}, i64 {ARCH_REQ_XCOMP_PERM}, i64 {TILE_DATA}"
    return f.value("i64", f"call i64 (i64, ...) @syscall({call})")


@functools.cache
def permitted() -> str | None:
    """Ask for this process; the reason in the system's words where it is denied."""
    library = ctypes.CDLL(None, use_errno=True)
    if library.syscall(ARCH_PRCTL, ARCH_REQ_XCOMP_PERM, TILE_DATA) == 0:
        return None
    return os.strerror(ctypes.get_errno())
