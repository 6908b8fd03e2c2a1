"""Bar 5 of the kernels: how long 46 typical kernels take to generate and compile, and a cached object to load.

The kernels are those of a ResNet, a MobileNet and a BERT: 18 direct convolutions, 3 by Winograd's transform, 9
depthwise, 16 matrix products. Seconds are CPU seconds of one core, from the problem to the object in memory.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from bench.bar import Bar, Sheet
from bench.kernels.timing import pin
from bench.peers import OURS
from bench.script import main
from kernels.dtype import DType
from kernels.kernel import Kernel
from kernels.llvm.compile import compile_object
from kernels.llvm.load import Loaded, ObjectCache
from kernels.target import host
from kernels.templates.convolution.choose import DIRECT
from kernels.templates.convolution.depthwise import DEPTHWISE
from kernels.templates.convolution.layout import Order
from kernels.templates.convolution.problem import convolution
from kernels.templates.convolution.winograd import WINOGRAD
from kernels.templates.epilogue import ACCUMULATED, Epilogue
from kernels.templates.gemm import GEMM, Gemm
from kernels.tensor.expression import Buffer, relu

ISSUE = 4
MOST_SECONDS, MOST_LOADING = 2.0, 5.0  # seconds for all; milliseconds for one
ROUNDS, QUICK_ROUNDS = 3, 1

_DIRECT = (  # channels, output channels, kernel, stride, size
    (64, 64, 3, 1, 56), (128, 128, 3, 1, 28), (256, 256, 3, 1, 14), (512, 512, 3, 1, 7), (64, 256, 1, 1, 56),
    (256, 64, 1, 1, 56), (128, 512, 1, 1, 28), (512, 128, 1, 1, 28), (256, 1024, 1, 1, 14), (1024, 256, 1, 1, 14),
    (512, 2048, 1, 1, 7), (2048, 512, 1, 1, 7), (3, 64, 7, 2, 224), (128, 128, 3, 2, 56), (256, 256, 3, 2, 28),
    (256, 512, 1, 2, 56), (512, 1024, 1, 2, 28), (1024, 2048, 1, 2, 14),
)  # fmt: skip
_WINOGRAD = ((64, 56), (128, 28), (256, 14))
_DEPTHWISE = ((32, 112, 1), (96, 112, 2), (144, 56, 1), (144, 56, 2), (192, 28, 1), (192, 28, 2), (384, 14, 1),
              (576, 14, 1), (960, 7, 1))  # fmt: skip
_PRODUCTS = tuple(
    (rows, *dims)
    for rows in (1, 32, 128, 384)
    for dims in ((768, 768), (3072, 768), (768, 3072), (2304, 768))
)  # fmt: skip


def measure(sheet: Sheet, *, data: Path | None = None, quick: bool = False, optimizer: str = OURS) -> list[Bar]:
    """The least of some rounds, by kind; then loading from a cache on disk."""
    pin()
    target = host()
    compile_object(_products()[0]().module.text(), target)  # LLVM sets itself up once
    rows: list[tuple[str, int, float, float, int | None]] = []
    total, objects = 0.0, []
    for name, makers in (
        ("direct convolution", _direct()), ("Winograd", _winograd()), ("depthwise", _depthwise()),
        ("matrix product", _products()),
    ):  # fmt: skip
        best, found = min(
            (_round(makers) for _ in range(QUICK_ROUNDS if quick else ROUNDS)), key=lambda one: sum(one[0])
        )
        rows.append((name, len(makers), sum(best), 1e3 * max(best), len(found[0]) // 1024))
        total += sum(best)
        objects += found
    rows.append(("all", sum(row[1] for row in rows), total, max(row[3] for row in rows), None))
    sheet.table("generating and compiling", ("kernels", "count", "CPU s", "longest ms", "object kB"), rows)
    loading = _loading()
    sheet.table("loading", ("from", "median ms"), [("a folder of objects", loading)])
    return [
        Bar(ISSUE, 5, "compile 46 kernels", f"<= {MOST_SECONDS} s", f"{total:.2f} s", total <= MOST_SECONDS),
        Bar(ISSUE, 5, "load a cached object", f"<= {MOST_LOADING} ms", f"{loading:.2f} ms", loading <= MOST_LOADING),
    ]  # fmt: skip


Maker = Callable[[], Kernel]


def _round(makers: list[Maker]) -> tuple[list[float], list[bytes]]:
    seconds, objects = [], []
    for make in makers:
        started = time.thread_time()
        kernel = make()
        objects.append(compile_object(kernel.module.text(), kernel.module.target))
        seconds.append(time.thread_time() - started)
    return seconds, objects


def _loading() -> float:
    """Milliseconds to read an object that is on disk and to have its function's address."""
    kernel, target = _products()[5](), host()
    text = kernel.module.text()
    with tempfile.TemporaryDirectory() as folder:
        cache = ObjectCache(Path(folder))
        cache.get(text, target)
        taken = []
        for _ in range(20):
            started = time.perf_counter()
            Loaded(cache.get(text, target), target).address(kernel.name)
            taken.append(time.perf_counter() - started)
    return 1e3 * float(np.median(taken))


def _products() -> list[Maker]:
    target = host()

    def make(rows: int, columns: int, depth: int) -> Kernel:
        plain = Gemm(rows, columns, depth)
        bias = Buffer("bias", DType.F32, (columns,))[plain.column]
        problem = Gemm(rows, columns, depth, epilogue=Epilogue(relu(ACCUMULATED[()] + bias)))
        return GEMM.kernel(problem, target)

    return [partial(make, *dims) for dims in _PRODUCTS]


def _direct() -> list[Maker]:
    target = host()

    def make(channels: int, output: int, kernel: int, stride: int, size: int) -> Kernel:
        order: Order = "NCHW" if channels < 16 else "NCHWc"
        problem = convolution(
            1, channels, output, (size, size), (kernel, kernel), strides=(stride, stride), pads=(kernel // 2,) * 4,
            order=order, output_order="NCHWc", halo=kernel // 2 or None,
        )  # fmt: skip
        return DIRECT.kernel(problem, target)

    return [partial(make, *one) for one in _DIRECT]


def _winograd() -> list[Maker]:
    target = host()

    def make(channels: int, size: int) -> Kernel:
        problem = convolution(1, channels, channels, (size, size), (3, 3), pads=(1,) * 4, order="NCHWc", halo=1)
        return WINOGRAD.kernel(problem, target)

    return [partial(make, *one) for one in _WINOGRAD]


def _depthwise() -> list[Maker]:
    target = host()

    def make(channels: int, size: int, stride: int) -> Kernel:
        problem = convolution(
            1, channels, channels, (size, size), (3, 3), strides=(stride, stride), pads=(1,) * 4, groups=channels,
            order="NCHWc", halo=1,
        )  # fmt: skip
        return DEPTHWISE.kernel(problem, target)

    return [partial(make, *one) for one in _DEPTHWISE]


if __name__ == "__main__":
    main(measure)
