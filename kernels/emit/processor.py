"""Whether the processor has what the code needs: asked of cpuid on x86, elsewhere of Linux's auxiliary vector.

Only features that LLVM uses on its own for code like ours are asked for; a host's list names many more (instructions
for cryptography, for virtual machines) that no kernel contains.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from kernels.emit.refusal import text
from kernels.llvm.function import Function, Value
from kernels.llvm.module import Module
from kernels.target import ArchitectureName, Target


@dataclass(frozen=True, slots=True)
class Requirement:
    """One bit that must be set: of a cpuid leaf's register (0 to 3: eax, ebx, ecx, edx) and of XCR0, or of AT_HWCAP."""

    name: str
    leaf: int  # on ARM and RISC-V the entry of the auxiliary vector: 16 or 26
    subleaf: int
    register: int
    bit: int
    state: int = 0  # bits of XCR0: registers that the operating system must save


_AVX, _AVX512 = 0x6, 0xE6
_X86 = tuple(
    Requirement(name, leaf, subleaf, register, bit, state)
    for leaf, subleaf, register, state, bits in (
        (1, 0, 2, 0, {"sse3": 0, "ssse3": 9, "cx16": 13, "sse4.1": 19, "sse4.2": 20, "movbe": 22, "popcnt": 23}),
        (1, 0, 2, _AVX, {"fma": 12, "avx": 28, "f16c": 29}),
        (7, 0, 1, 0, {"bmi": 3, "bmi2": 8, "adx": 19}),
        (7, 0, 1, _AVX, {"avx2": 5}),
        (7, 0, 1, _AVX512, {
            "avx512f": 16, "avx512dq": 17, "avx512ifma": 21, "avx512cd": 28, "avx512bw": 30, "avx512vl": 31,
        }),
        (7, 0, 2, 0, {"gfni": 8}),
        (7, 0, 2, _AVX512, {
            "avx512vbmi": 1, "avx512vbmi2": 6, "avx512vnni": 11, "avx512bitalg": 12, "avx512vpopcntdq": 14,
        }),
        (7, 0, 3, _AVX512, {"avx512vp2intersect": 8, "avx512fp16": 23}),
        (7, 1, 0, _AVX, {"avxvnni": 4, "avxifma": 23}),
        (7, 1, 0, _AVX512, {"avx512bf16": 5}),
        (7, 1, 3, _AVX, {"avxvnniint8": 4, "avxneconvert": 5, "avxvnniint16": 10}),
        (0x80000001, 0, 2, 0, {"lzcnt": 5, "sse4a": 6, "prfchw": 8, "tbm": 21}),
        (0x80000001, 0, 2, _AVX, {"xop": 11, "fma4": 16}),
    )
    for name, bit in bits.items()
)  # fmt: skip
_ARM = tuple(
    Requirement(name, entry, 0, 0, bit)
    for entry, bits in (
        (16, {
            "neon": 1, "fp-armv8": 0, "crc": 7, "lse": 8, "fullfp16": 10, "rdm": 12, "jsconv": 13, "complxnum": 14,
            "rcpc": 15, "dotprod": 20, "sve": 22, "fp16fml": 23,
        }),
        (26, {"sve2": 1, "i8mm": 13, "bf16": 14}),
    )
    for name, bit in bits.items()
)  # fmt: skip

_RISCV = tuple(Requirement(name, 16, 0, 0, ord(name) - ord("a")) for name in "acdfmv")  # a bit for each letter

FEATURES: Mapping[ArchitectureName, tuple[Requirement, ...]] = {
    "x86_64": _X86,
    "aarch64": _ARM,
    "riscv64": _RISCV,
    "wasm32": (),
}

# What a function begins with may be given as bytes: no assembler for the target needs to be built into our LLVM.
# cpuid(leaf, subleaf, four words): push rbx; eax, ecx = edi, esi; r8 = rdx; cpuid; store the four; pop rbx; ret.
_CPUID = "53 89F8 89F1 4989D0 0FA2 418900 41895804 41894808 4189500C 5B C3"
# xcr0() -> i64: ecx = 0; xgetbv; rax = rdx << 32 | rax; ret.
_XCR0 = "31C9 0F01D0 48C1E220 4809D0 C3"


def requirements(target: Target) -> tuple[Requirement, ...]:
    """What code for a target needs of a processor."""
    return tuple(one for one in FEATURES[target.architecture.name] if target.has(one.name))


def write_missing(module: Module, name: str, needed: Sequence[Requirement]) -> None:
    """Add name() -> ptr: the name of a feature that the processor lacks, or null."""
    f = Function(module, name, (), result="ptr")
    bits = f.value("ptr", "alloca [4 x i32], align 16")
    is_missing = _QUESTIONS[module.target.architecture.name](f, bits)
    for one in needed:
        missing = is_missing(one)
        bad, good = f.fresh("bad"), f.fresh("good")
        f.line(f"br i1 {missing.text}, label %{bad}, label %{good}")
        f.label(bad)
        f.give(text(module, one.name))
        f.label(good)
    f.line("ret ptr null")
    f.finish()


_Question = Callable[[Requirement], Value]  # writes whether the processor lacks it, i1


def _by_cpuid(f: Function, bits: Value) -> _Question:
    _write_bytes(f.module, "void", "cpuid", "i32 %leaf, i32 %subleaf, ptr %words", _CPUID)
    _write_bytes(f.module, "i64", "xcr0", "", _XCR0)
    f.line(f"call void @cpuid(i32 1, i32 0, ptr {bits.text})")
    saves = f.binary("and", f.load("i32", f.at(bits, 8, "i8")), f.number("i32", 1 << 27))
    (saved,) = f.when(
        f.compare("ne", saves, f.number("i32", 0)), lambda: [f.value("i64", "call i64 @xcr0()")],
        lambda: [f.integer(0)],
    )  # fmt: skip

    def is_missing(one: Requirement) -> Value:
        # A leaf above the last one answers with another leaf's bits.
        f.line(f"call void @cpuid(i32 {one.leaf & 0x80000000}, i32 0, ptr {bits.text})")
        beyond = f.compare("ult", f.load("i32", bits), f.number("i32", one.leaf))
        f.line(f"call void @cpuid(i32 {one.leaf}, i32 {one.subleaf}, ptr {bits.text})")
        word = f.load("i32", f.at(bits, 4 * one.register, "i8"))
        unset = f.compare("eq", f.binary("and", word, f.number("i32", 1 << one.bit)), f.number("i32", 0))
        state = f.binary("and", saved, f.integer(one.state))
        return f.binary("or", f.binary("or", beyond, unset), f.compare("ne", state, f.integer(one.state)))

    return is_missing


def _by_auxiliary_vector(f: Function, bits: Value) -> _Question:
    f.module.declare("getauxval", "i64", ["i64"])

    def is_missing(one: Requirement) -> Value:
        flags = f.value("i64", f"call i64 @getauxval(i64 {one.leaf})")
        return f.compare("eq", f.binary("and", flags, f.integer(1 << one.bit)), f.integer(0))

    return is_missing


def _by_nothing(f: Function, bits: Value) -> _Question:
    """An engine refuses a module with instructions that it lacks."""
    del bits
    return lambda one: f.number("i1", False)


_QUESTIONS: Mapping[ArchitectureName, Callable[[Function, Value], _Question]] = {
    "x86_64": _by_cpuid,
    "aarch64": _by_auxiliary_vector,
    "riscv64": _by_auxiliary_vector,
    "wasm32": _by_nothing,
}


def _write_bytes(module: Module, result: str, name: str, parameters: str, code: str) -> None:
    content = bytes.fromhex(code)
    text = "".join(f"\\{byte:02X}" for byte in content)
    end = "ret void" if result == "void" else f"ret {result} 0"
    module.add(
        name,
        f'define internal {result} @{name}({parameters}) #1 prologue [{len(content)} x i8] c"{text}" {{\n  {end}\n}}',
    )
