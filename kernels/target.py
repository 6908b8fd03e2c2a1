"""The machine that code is generated for: instruction set, vector registers, caches.

Nothing in the package assumes a width or a feature: a template asks its `Target`, and its `Architecture` for what all
processors of one architecture share. `host()` describes the machine that runs; the named targets describe levels of an
architecture that a deployed object may rely on.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from llvmlite import binding as llvm

from kernels.cores import Core, known_core
from kernels.dtype import DType
from kernels.errors import KernelsError

# Usual cores, of a server: those that do vectors of 64 bytes as two of 32, and others.
_WIDE = Core(products=1.0, loads=1.0, broadcasts=2.0)
_NARROW = Core(products=2.0, loads=2.0, broadcasts=2.0)
# A Cortex-M4 with vectors of two numbers, each of which it loads, stores and multiplies by itself (its manual, 7.2.3).
_MICRO = Core(
    products=0.17, loads=0.33, broadcasts=0.5, stores=0.33, l1=4.0, l2=4.0, l3=4.0, memory=4.0, call=8.0,
    gigahertz=0.1, latency=50.0,
)  # fmt: skip
SHARE_OF_LAST = 16  # second caches that a core's share of a last cache takes at most: others fill the rest
_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")


class UnknownTarget(KernelsError):
    """A machine that no code is generated for."""


ArchitectureName = Literal["x86_64", "aarch64", "riscv64", "wasm32", "thumbv7em", "nvptx64"]


@dataclass(frozen=True, slots=True)
class Architecture:
    """What all processors of one architecture share. Where instructions differ, a table has an entry for its name."""

    name: ArchitectureName  # as a triple begins
    cpu: str  # the oldest processor, which every other can stand in for, as LLVM names it
    features: tuple[str, ...]  # of that processor
    emulation: str  # as lld names the form of its programs
    page: int  # bytes: the largest page that a Linux kernel for it may be set to
    futex: int  # the number of the system call
    asynchronous: tuple[int, int, int, int]  # those of io_setup, io_submit, io_getevents and io_destroy
    # Registers as far as LLVM keeps up: x86 broadcasts from memory; more sums were seen on the stack all the same.
    free_of_product: int  # registers of 32 that the sums, the row of B and the broadcast of a product leave free
    free_of_convolution: int  # registers that sums, weights and a broadcast of a direct convolution leave free
    sums_of_convolution: int  # that a tile of a direct convolution may have at the most, with 32 registers
    is_fused: bool = True  # whether it multiplies and adds with one rounding
    pointer: int = 8  # bytes of an address
    is_bare: bool = False  # whether nothing lies beneath its programs: no system, no cache to ask ahead, fixed places


_NEW, _OLD = (0, 2, 4, 1), (206, 209, 208, 207)  # all newer architectures share the first ones
_WASM = ("+simd128", "+bulk-memory", "+nontrapping-fptoint", "+sign-ext", "+mutable-globals")
_RV64 = ("+m", "+a", "+f", "+d", "+c", "+zihintpause")
_M4 = ("+vfp4d16sp",)
ARCHITECTURES: Mapping[str, Architecture] = {
    "x86_64": Architecture("x86_64", "x86-64", ("+sse2",), "elf_x86_64", 4 << 10, 202, _OLD, 1, 1, 27),
    "aarch64": Architecture("aarch64", "generic", ("+neon", "+fp-armv8"), "aarch64linux", 64 << 10, 98, _NEW, 2, 4, 24),
    "riscv64": Architecture("riscv64", "generic-rv64", _RV64, "elf64lriscv", 4 << 10, 98, _NEW, 2, 4, 24),
    "wasm32": Architecture(
        "wasm32", "generic", _WASM, "wasm32", 64 << 10, 0, _NEW, 1, 1, 27, is_fused=False, pointer=4
    ),
    "thumbv7em": Architecture("thumbv7em", "cortex-m4", _M4, "armelf", 64, 0, _NEW, 1, 1, 27, pointer=4, is_bare=True),
}
# NVIDIA's GPUs run no program of their own, only kernels (kernels/ptx): no table of systems or links has them.
_GPU = Architecture("nvptx64", "sm_75", (), "", 64 << 10, 0, _NEW, 1, 1, 27)
# By compute capability, what the usual device has: multiprocessors, kilobytes of shared memory of a block.
_DEVICES: Mapping[str, tuple[int, int]] = {
    "sm_75": (40, 64), "sm_80": (108, 163), "sm_86": (84, 99), "sm_89": (142, 99), "sm_90": (132, 227),
    "sm_100": (148, 227),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Target:
    """An instruction set and the sizes that decide tiles."""

    triple: str
    cpu: str
    features: tuple[str, ...]  # as LLVM names them, each with + or -
    vector_bytes: int
    vector_registers: int
    l1: int = 32 << 10  # bytes of data cache, per core
    l2: int = 1 << 20  # bytes, per core
    l3: int = 16 << 20  # bytes, of all cores together
    line: int = 64  # bytes
    core: Core = _NARROW
    workers: int = 0  # that share the blocks of a kernel; 0: any number, of which none is known
    constants: int | None = None  # bytes of all weights of a program, which say where they lie; None: in memory
    outlined: bool = False  # kernels are described, and have no code: those of a size that is one of many

    def memory_level(self, size: int) -> Literal["l1", "l2", "l3", "memory"]:
        """Where data of so many bytes lie for a core that comes back to them again and again."""
        if size <= self.l1 // 2:
            return "l1"
        if size <= self.l2:
            return "l2"
        return "l3" if size <= min(self.l3, SHARE_OF_LAST * self.l2) else "memory"

    def rate(self, size: int) -> float:
        """Bytes that a core reads in a cycle of data of so many bytes which it comes back to again and again."""
        found: float = getattr(self.core, self.memory_level(size))
        return found

    @property
    def constant_level(self) -> Literal["l1", "l2", "l3", "memory"]:
        """Where the weights of the program lie when a kernel asks for its own in a run."""
        return "memory" if self.constants is None else self.memory_level(self.constants)

    @property
    def constant_rate(self) -> float:
        """Bytes of weights that a core reads in a cycle, the first time that a kernel asks for them in a run."""
        found: float = getattr(self.core, self.constant_level)
        return found

    def lanes(self, dtype: DType = DType.F32) -> int:
        """How many elements one vector register holds."""
        return self.vector_bytes // dtype.bytes

    def has(self, feature: str) -> bool:
        """Whether the machine has a feature, by LLVM's name without the sign: "avx512vnni"."""
        return f"+{feature}" in self.features

    @property
    def level(self) -> str:
        """What a machine must have to run the code, as people call it: x86-64-v4 (AVX-512)."""
        name = self.architecture.name
        if self.architecture.is_bare:
            return "microcontrollers: Cortex-M4F, Cortex-M7 and later"
        if self.is_gpu:
            return f"NVIDIA GPUs of compute capability {self.capability}"
        if not name.startswith("x86"):
            return name
        return "x86-64-v4 (AVX-512)" if self.has("avx512f") else "x86-64-v3 (AVX2)"

    @property
    def capability(self) -> str:
        """Of a GPU: "9.0" of sm_90."""
        digits = self.cpu.removeprefix("sm_")
        return f"{digits[:-1]}.{digits[-1]}"

    @property
    def is_gpu(self) -> bool:
        """Whether its kernels are tasks of blocks of threads (`kernels/ptx/tasks`)."""
        return self.triple.startswith(_GPU.name)

    @property
    def architecture(self) -> Architecture:
        """What it shares with all of its kind; raises UnknownTarget."""
        name = self.triple.partition("-")[0]
        if name == _GPU.name:
            return _GPU
        if name not in ARCHITECTURES:
            raise UnknownTarget(f"no code is generated for '{self.triple}'; known are {', '.join(ARCHITECTURES)}.")
        return ARCHITECTURES[name]


_V3 = ("+avx", "+avx2", "+bmi", "+bmi2", "+f16c", "+fma", "+lzcnt", "+movbe", "+popcnt", "+sse4.2")
_UNITS = ("+amx-bf16", "+amx-int8", "+amx-tile", "+avx512bf16", "+avx512vnni")
_V4 = (*_V3, "+avx512f", "+avx512bw", "+avx512cd", "+avx512dq", "+avx512vl")


def x86_64_v3() -> Target:
    """x86-64 with AVX2 and FMA: 16 registers of 32 bytes."""
    return Target("x86_64-unknown-linux-gnu", "x86-64-v3", _V3, 32, 16)


def x86_64_v4() -> Target:
    """x86-64 with AVX-512: 32 registers of 64 bytes."""
    return Target("x86_64-unknown-linux-gnu", "x86-64-v4", _V4, 64, 32, core=_WIDE)


def x86_64_v4_256() -> Target:
    """x86-64 with AVX-512 in vectors of 32 bytes, of which there are 32: for cores that slow down for wider ones."""
    return Target("x86_64-unknown-linux-gnu", "x86-64-v4", _V4, 32, 32)


def x86_64_amx() -> Target:
    """x86-64 with AVX-512 and matrix units of bfloat16 and bytes (AMX), as Intel's servers since 2023 have them."""
    return Target("x86_64-unknown-linux-gnu", "x86-64-v4", (*_V4, *_UNITS), 64, 32, l1=48 << 10, l2=2 << 20, core=_WIDE)


def aarch64() -> Target:
    """64-bit ARM with NEON: 32 registers of 16 bytes."""
    return Target("aarch64-unknown-linux-gnu", "generic", ("+neon", "+fp-armv8"), 16, 32, l1=64 << 10)


def riscv64() -> Target:
    """64-bit RISC-V with the vector extension, whose 32 registers have at least 16 bytes: it uses so many."""
    return Target("riscv64-unknown-linux-gnu", "generic-rv64", (*_RV64, "+v"), 16, 32)


def wasm32() -> Target:
    """WebAssembly with vectors of 16 bytes.

    It has no registers, and an engine on x86 has 16 of them; tiles for 32 are faster all the same, since loads of what
    lies on the stack cost less than those of smaller tiles (in node: ResNet-18 by 10 %, BERT by 15 %).
    """
    return Target("wasm32-unknown-unknown", "generic", _WASM, 16, 32)


def thumbv7em() -> Target:
    """Microcontrollers: Cortex-M4F, and Cortex-M7 of any kind, in single precision.

    They have no vectors. Those of two numbers are taken apart by LLVM, so that 16 of them are the 32 registers and all
    tiles are those of other machines. The first cache is that of a usual M7; memory beside it answers as fast.
    """
    triple = (
        "thumbv7em-unknown-none-eabihf"  # with all four words: else LLVM calls functions that no such compiler brings
    )
    return Target(triple, "cortex-m4", _M4, 8, 16, 16 << 10, 64 << 10, 256 << 10, 32, _MICRO, workers=1)


def cuda(processor: str) -> Target:
    """NVIDIA's GPUs of a compute capability, such as sm_90: a thread has one lane, and a worker is a multiprocessor.

    `l1` is what a block may have of shared memory. Raises UnknownTarget.
    """
    if processor not in _DEVICES:
        raise UnknownTarget(f"there is no GPU '{processor}'; known are {', '.join(_DEVICES)}.")
    multiprocessors, shared = _DEVICES[processor]
    triple = f"{_GPU.name}-nvidia-cuda"
    return Target(triple, processor, (), 4, 255, l1=shared << 10, l2=40 << 20, workers=multiprocessors)


@functools.cache
def host() -> Target:
    """The machine this process runs on; raises UnknownTarget for one that is neither x86-64 with AVX2 nor ARM64."""
    triple, cpu = llvm.get_default_triple(), llvm.get_host_cpu_name()
    features = dict(llvm.get_host_cpu_features())
    named = tuple(f"{'+' if present else '-'}{name}" for name, present in sorted(features.items()))
    caches = (_cache(1, 32 << 10), _cache(2, 1 << 20), _cache(3, 16 << 20))
    if triple.startswith("x86_64") and features.get("avx512f") and features.get("avx512vl"):
        return Target(triple, cpu, named, 64, 32, *caches, core=known_core(cpu, 64) or _WIDE)
    if triple.startswith("x86_64") and features.get("avx2") and features.get("fma"):
        return Target(triple, cpu, named, 32, 16, *caches, core=known_core(cpu, 32) or _NARROW)
    if triple.startswith("aarch64"):
        return Target(triple, cpu, named, 16, 32, *caches, core=known_core(cpu, 16) or _NARROW)
    raise UnknownTarget(f"no code is generated for '{triple}' with the CPU '{cpu}': x86-64 needs AVX2 and FMA.")


TargetName = Literal[
    "host", "x86-64-v3", "x86-64-v4", "x86-64-v4-256", "x86-64-amx", "aarch64", "riscv64", "wasm32", "thumbv7em",
    "cuda:sm_75", "cuda:sm_80", "cuda:sm_86", "cuda:sm_89", "cuda:sm_90", "cuda:sm_100",
]  # fmt: skip
_MAKERS: dict[TargetName, Callable[[], Target]] = {
    "host": host,
    "x86-64-v3": x86_64_v3,
    "x86-64-v4": x86_64_v4,
    "x86-64-v4-256": x86_64_v4_256,
    "x86-64-amx": x86_64_amx,
    "aarch64": aarch64,
    "riscv64": riscv64,
    "wasm32": wasm32,
    "thumbv7em": thumbv7em,
    "cuda:sm_75": functools.partial(cuda, "sm_75"),
    "cuda:sm_80": functools.partial(cuda, "sm_80"),
    "cuda:sm_86": functools.partial(cuda, "sm_86"),
    "cuda:sm_89": functools.partial(cuda, "sm_89"),
    "cuda:sm_90": functools.partial(cuda, "sm_90"),
    "cuda:sm_100": functools.partial(cuda, "sm_100"),
}


def named(name: TargetName) -> Target:
    """A target by its name; raises UnknownTarget."""
    if name not in _MAKERS:
        raise UnknownTarget(f"there is no target '{name}'; known are {', '.join(_MAKERS)}.")
    return _MAKERS[name]()


def why_not_here(target: Target) -> str | None:
    """Why this machine cannot run code for a target, as a clause; None where it can. Such code ends the process."""
    if target.is_gpu:
        return f"the code is for an NVIDIA GPU of compute capability {target.capability}"
    here = host()
    wanted, architecture = target.architecture, here.architecture
    if wanted != architecture:
        return f"this machine cannot run {wanted.name}: it is {architecture.name}"
    lacking = [one[1:] for one in target.features if one.startswith("+") and not here.has(one[1:])]
    return f"this machine cannot run {target.cpu}: it lacks {', '.join(lacking)}" if lacking else None


def _cache(level: int, otherwise: int) -> int:
    """Bytes of a data cache as the kernel lists it; `otherwise` where it lists none."""
    for entry in sorted(_CACHES.glob("index*")):
        try:
            kind, found = (entry / "type").read_text().strip(), int((entry / "level").read_text())
            size = (entry / "size").read_text().strip()
        except (OSError, ValueError):
            continue
        if found == level and kind in ("Data", "Unified") and size.endswith("K"):
            return int(size[:-1]) << 10
    return otherwise
