"""Functions that several kernels have alike: compiled once, and seen by nobody outside."""

from __future__ import annotations

import ctypes
import re
from dataclasses import replace

import numpy as np

from kernels.dtype import DType
from kernels.emit.common import CommonFunctions, kernel_modules
from kernels.kernel import Kernel, Operand, write_kernel
from kernels.llvm.compile import compile_object
from kernels.llvm.function import Function, Parameter, Value
from kernels.llvm.load import Loaded
from kernels.llvm.module import Module
from kernels.target import host

TARGET = host()
OPERANDS = (Operand("x", "input", DType.F32, 4), Operand("y", "output", DType.F32, 4))


def scaling(name: str, factor: float, *, counting: bool = False) -> Kernel:
    """y = factor * x, in a function of its own that reads the factor from a table; `counting` in a variable as well."""
    module = Module(TARGET)
    inner = Function(module, f"{name}_scale", (Parameter("x"), Parameter("y")))
    x, y = inner.parameter("x"), inner.parameter("y")
    table = Value((module.constant(f"{name}_factors", "float", [str(factor)] * 4, align=16),), "ptr")
    if counting:
        counter = Value((module.variable(f"{name}_calls", "internal global i64 0"),), "ptr")
        inner.store(inner.add(inner.load("i64", counter), 1), counter)
    for number in range(4):
        one, many = (inner.load("float", inner.at(start, number, "float")) for start in (x, table))
        inner.store(inner.value("float", f"fmul float {one.text}, {many.text}"), inner.at(y, number, "float"))
    inner.finish()
    return write_kernel(
        module, name, OPERANDS, 1, lambda f, pointers, *_: f.call(f"{name}_scale", pointers["x"], pointers["y"])
    )


def defined(module: Module) -> list[str]:
    """The functions that all objects of a program see."""
    return re.findall(r"^define hidden .*@([\w.]+)\(", module.text(), re.MULTILINE)


def test_equal_functions_are_written_once_and_others_apart() -> None:
    kernels = [scaling("k_0", 2.0), scaling("k_1", 3.0), scaling("k_2", 2.0)]
    modules = kernel_modules("model", kernels, TARGET)
    assert [len(defined(one)) for one in modules] == [1, 1, 0]
    assert defined(modules[0])[0].startswith("model.scale.") and defined(modules[0]) != defined(modules[1])
    assert f"declare hidden fastcc void @{defined(modules[0])[0]}(" in modules[2].text()
    assert "_factors" not in modules[2].text(), "what nobody here names is left out"


def test_results() -> None:
    kernels = [scaling(f"k_{number}", factor) for number, factor in enumerate((2.0, 3.0, 2.0))]
    modules = kernel_modules("model", kernels, TARGET)
    loaded = Loaded([compile_object(one.text(), TARGET) for one in modules], TARGET)
    driven = kernels_run(loaded, [f"model.{one.name}" for one in kernels])
    assert driven == [[2.0, 4.0, 6.0, 8.0], [3.0, 6.0, 9.0, 12.0], [2.0, 4.0, 6.0, 8.0]]


def kernels_run(loaded: Loaded, names: list[str]) -> list[list[float]]:
    """What each makes of 1, 2, 3, 4."""
    found = []
    for name in names:
        x, y = np.arange(1, 5, dtype=np.float32), np.zeros(4, np.float32)
        table = np.array([x.ctypes.data, y.ctypes.data], np.uint64)
        entry = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p)(loaded.address(name))
        entry(table.ctypes.data, 0, None)
        found.append(y.tolist())
    return found


def test_what_changes_is_each_kernels_own() -> None:
    modules = kernel_modules("model", [scaling(f"k_{number}", 2.0, counting=True) for number in range(2)], TARGET)
    assert all("define internal fastcc void @k_" in one.text() and not defined(one) for one in modules)


def test_order_of_the_listing_does_not_matter() -> None:
    """Kernels begun one by one as they are written give the texts that the whole program has."""
    kernels = [scaling("k_0", 2.0), scaling("k_2", 3.0), scaling("k_10", 2.0)]
    common = CommonFunctions("model", TARGET)
    begun = [one.text() for kernel in kernels for one in common.modules_of("model", [kernel])]
    assert [one.text() for one in kernel_modules("model", kernels[::-1], TARGET)] == begun


def test_kernels_with_names_in_common_share_a_module() -> None:
    first = scaling("k_0", 2.0)
    entry = scaling("k_0", 2.0).module
    entry.rename("k_0", "k_0_shared")
    (module,) = kernel_modules("model", [first, replace(first, name="k_0_shared", module=entry)], TARGET)
    assert "@model.k_0(" in module.text() and "@model.k_0_shared(" in module.text() and len(defined(module)) == 1


def test_listings_of_one_library_share_functions() -> None:
    common = CommonFunctions("model__0", TARGET)
    one = kernel_modules("model__0_0", [scaling("k_0", 2.0)], TARGET, common)
    other = kernel_modules("model__0_1", [scaling("k_0", 2.0)], TARGET, common)
    assert len(defined(one[0])) == 1 and not defined(other[0])
    assert "@model__0_1.k_0(" in other[0].text() and defined(one[0])[0] in other[0].text()
