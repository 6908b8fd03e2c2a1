"""Whether the processor has what the code needs: asked of cpuid on x86, elsewhere of Linux's auxiliary vector.

Only features that LLVM uses on its own for code like ours are asked for; a host's list names many more (instructions
for cryptography, for virtual machines) that no kernel contains.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from kernels.emit.refusal import return_when
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
    state: int = 0  # bits of XCR0, below 31: registers that the operating system must save


_AVX, _AVX512, _TILES = 0x6, 0xE6, 0x60000
UNITS = frozenset(("amx-bf16", "amx-tile", "amx-int8"))  # of programs whose kernels run on matrix units alone
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
        (7, 0, 3, _TILES, {"amx-bf16": 22, "amx-tile": 24, "amx-int8": 25}),
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
    "thumbv7em": (),
}

# What a function begins with may be given as bytes: no assembler for the target needs to be built into our LLVM.
# cpuid(leaf, subleaf, four words): push rbx; eax, ecx = edi, esi; r8 = rdx; cpuid; store the four; pop rbx; ret.
_CPUID = "53 89F8 89F1 4989D0 0FA2 418900 41895804 41894808 4189500C 5B C3"
# xcr0() -> i64: ecx = 0; xgetbv; rax = rdx << 32 | rax; ret.
_XCR0 = "31C9 0F01D0 48C1E220 4809D0 C3"


def requirements(target: Target, *, units: bool = False) -> tuple[Requirement, ...]:
    """What code for a target needs of a processor; `units`: code that runs on its matrix units."""
    known = FEATURES[target.architecture.name]
    return tuple(one for one in known if target.has(one.name) and (units or one.name not in UNITS))


def write_missing(module: Module, name: str, needed: Sequence[Requirement]) -> None:
    """Add name() -> ptr: the name of the first feature that the processor lacks, or null.

    Words of its answers are filled once each, as a cpuid leaves a virtual machine; then a table's rows are compared.
    """
    f, answer = Function(module, name, (), result="ptr"), _ANSWERS[module.target.architecture.name]
    if needed:
        _write_comparison(f, name, needed, answer)
    f.line("ret ptr null")
    f.finish()


WORDS = 4  # of an answer
_Asking = Callable[[Function, Value, Sequence[tuple[int, int]]], Value]  # fills words of leaves; the bits of XCR0


def _write_comparison(f: Function, name: str, needed: Sequence[Requirement], answer: _Asking) -> None:
    """Return the name in the first row of which a bit is missing."""
    leaves = list(dict.fromkeys((one.leaf, one.subleaf) for one in needed))
    words = f.value("ptr", f"alloca [{WORDS * len(leaves)} x i32], align 16")
    saved = answer(f, words, leaves)
    rows, names = [], b""
    for one in needed:
        word = WORDS * leaves.index((one.leaf, one.subleaf)) + one.register
        rows += [word, (1 << one.bit) - (1 << 32 if one.bit == 31 else 0), one.state, len(names)]
        names += one.name.encode() + b"\0"
    table = Value((f.module.constant(f"{name}.table", "i32", [str(number) for number in rows], align=4),), "ptr")
    spelled = Value((f.module.constant(f"{name}.names", "i8", [str(byte) for byte in names], align=1),), "ptr")

    def row(number: Value, _: tuple[Value, ...]) -> None:
        start = f.at(table, f.mul(number, 4), "i32")
        word, bit, state, offset = (f.load("i32", f.at(start, place, "i32")) for place in range(4))
        found = f.load("i32", f.at(words, f.convert("sext", "i64", word), "i32"))
        unset = f.compare("eq", f.binary("and", found, bit), f.number("i32", 0))
        unsaved = f.compare("ne", f.binary("and", saved, state), state)
        place = f.at(spelled, f.convert("sext", "i64", offset), "i8")
        return_when(f, f.binary("or", unset, unsaved), place)

    f.loop(f.integer(0), f.integer(len(needed)), 1, row)


def _by_cpuid(f: Function, words: Value, leaves: Sequence[tuple[int, int]]) -> Value:
    """A leaf above the last one answers with another leaf's bits: it has none."""
    _write_bytes(f.module, "void", "cpuid", "i32 %leaf, i32 %subleaf, ptr %words", _CPUID)
    _write_bytes(f.module, "i64", "xcr0", "", _XCR0)
    f.line(f"call void @cpuid(i32 1, i32 0, ptr {words.text})")
    saves = f.binary("and", f.load("i32", f.at(words, 8, "i8")), f.number("i32", 1 << 27))
    (saved,) = f.when(
        f.compare("ne", saves, f.number("i32", 0)), lambda: [f.value("i64", "call i64 @xcr0()")],
        lambda: [f.integer(0)],
    )  # fmt: skip
    lasts: dict[int, Value] = {}
    for number, (leaf, subleaf) in enumerate(leaves):
        place, first = f.at(words, WORDS * number, "i32"), leaf & 0x80000000
        if first not in lasts:
            f.line(f"call void @cpuid(i32 {first}, i32 0, ptr {place.text})")
            lasts[first] = f.load("i32", place)
        f.line(f"call void @cpuid(i32 {leaf}, i32 {subleaf}, ptr {place.text})")
        beyond = f.compare("ult", lasts[first], f.number("i32", leaf))
        f.when(beyond, partial(f.line, f"store <4 x i32> zeroinitializer, ptr {place.text}, align 4"))
    return f.convert("trunc", "i32", saved)


def _by_auxiliary_vector(f: Function, words: Value, leaves: Sequence[tuple[int, int]]) -> Value:
    f.module.declare("getauxval", "i64", ["i64"])
    for number, (entry, _) in enumerate(leaves):
        flags = f.value("i64", f"call i64 @getauxval(i64 {entry})")
        f.store(f.convert("trunc", "i32", flags), f.at(words, WORDS * number, "i32"))
    return f.number("i32", 0)


def _by_nothing(f: Function, words: Value, leaves: Sequence[tuple[int, int]]) -> Value:
    """Nothing is asked for: an engine refuses a module with instructions that it lacks, and a board is known."""
    raise AssertionError("WebAssembly and microcontrollers have no requirements")


_ANSWERS: Mapping[ArchitectureName, _Asking] = {
    "x86_64": _by_cpuid,
    "aarch64": _by_auxiliary_vector,
    "riscv64": _by_auxiliary_vector,
    "wasm32": _by_nothing,
    "thumbv7em": _by_nothing,
}


def _write_bytes(module: Module, result: str, name: str, parameters: str, code: str) -> None:
    content = bytes.fromhex(code)
    text = "".join(f"\\{byte:02X}" for byte in content)
    end = "ret void" if result == "void" else f"ret {result} 0"
    module.add(
        name,
        f'define internal {result} @{name}({parameters}) #1 prologue [{len(content)} x i8] c"{text}" {{\n  {end}\n}}',
    )
