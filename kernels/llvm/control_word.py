"""The processor's control word of floating-point arithmetic while kernels run: nearest, no traps, no subnormal numbers.

A subnormal number costs a hundred cycles or more on many cores, an operand as well as a result. The word that kernels
run under flushes them to zero, which is what our programs promise of them: zero or right. It also says how numbers are
rounded, so that a result does not depend on what the caller has set.

The word belongs to a thread. Whoever calls kernels sets it before and restores it afterwards; here is the only place
that knows how.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from kernels.llvm.function import Function, Value
from kernels.target import ArchitectureName

MXCSR = 0x1F80 | 1 << 15 | 1 << 6  # all exceptions masked, nearest; flush results to zero, read operands as zero
NEAREST = 1  # as LLVM counts ways to round
FPCR = 1 << 24  # FZ: operands and results; no traps, nearest
FPSCR = 0  # of a microcontroller, where subnormal numbers cost nothing: as they are, nearest


def _enter_x86(f: Function) -> Value:
    f.module.declare("llvm.x86.sse.stmxcsr", "void", ["ptr"])
    f.module.declare("llvm.x86.sse.ldmxcsr", "void", ["ptr"])
    caller, ours = (f.value("ptr", "alloca i32, align 4") for _ in range(2))
    f.line(f"call void @llvm.x86.sse.stmxcsr(ptr {caller.text})")
    f.store(f.number("i32", MXCSR), ours)
    f.line(f"call void @llvm.x86.sse.ldmxcsr(ptr {ours.text})")
    return caller


def _enter_arm(f: Function) -> Value:
    f.module.declare("llvm.aarch64.get.fpcr", "i64", [])
    f.module.declare("llvm.aarch64.set.fpcr", "void", ["i64"])
    caller = f.value("i64", "call i64 @llvm.aarch64.get.fpcr()")
    f.line(f"call void @llvm.aarch64.set.fpcr(i64 {FPCR})")
    return caller


def _enter_riscv(f: Function) -> Value:
    """It has neither traps nor a way to flush subnormal numbers, which cost nothing extra by its manuals."""
    f.module.declare("llvm.get.rounding", "i32", [])
    f.module.declare("llvm.set.rounding", "void", ["i32"])
    caller = f.value("i32", "call i32 @llvm.get.rounding()")
    f.line(f"call void @llvm.set.rounding(i32 {NEAREST})")
    return caller


def _enter_thumb(f: Function) -> Value:
    f.module.declare("llvm.arm.get.fpscr", "i32", [])
    f.module.declare("llvm.arm.set.fpscr", "void", ["i32"])
    caller = f.value("i32", "call i32 @llvm.arm.get.fpscr()")
    f.line(f"call void @llvm.arm.set.fpscr(i32 {FPSCR})")
    return caller


def _enter_wasm(f: Function) -> Value:
    """There is one way to round, no traps, and subnormal numbers are as they are."""
    return f.number("i32", NEAREST)


_ENTER: Mapping[ArchitectureName, Callable[[Function], Value]] = {
    "x86_64": _enter_x86, "aarch64": _enter_arm, "riscv64": _enter_riscv,
    "wasm32": _enter_wasm, "thumbv7em": _enter_thumb,
}  # fmt: skip
_SET: Mapping[ArchitectureName, str | None] = {
    "x86_64": "llvm.x86.sse.ldmxcsr", "aarch64": "llvm.aarch64.set.fpcr", "riscv64": "llvm.set.rounding",
    "wasm32": None, "thumbv7em": "llvm.arm.set.fpscr",
}  # fmt: skip


def enter(f: Function) -> Value:
    """Set the kernels' word; gives the caller's, for `leave`. Written into the function's first block."""
    return _ENTER[f.module.target.architecture.name](f)


def leave(f: Function, caller: Value) -> None:
    """Set the caller's word again."""
    setting = _SET[f.module.target.architecture.name]
    if setting is not None:
        f.line(f"call void @{setting}({caller.type} {caller.text})")
