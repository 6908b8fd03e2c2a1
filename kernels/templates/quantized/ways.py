"""All ways to convolve bytes by one name: which candidates there are for a problem, and building any of them."""

from __future__ import annotations

from kernels.kernel import Kernel
from kernels.target import Target
from kernels.templates.quantized import build as bytewise
from kernels.templates.quantized import depthwise
from kernels.templates.quantized.build import Bytewise
from kernels.templates.quantized.depthwise import ByteDepthwise
from kernels.templates.quantized.problem import QuantizedConvolution
from kernels.templates.template import Template

ByteWay = Bytewise | ByteDepthwise


def candidates(problem: QuantizedConvolution, target: Target) -> tuple[ByteWay, ...]:
    """The likely best first. Depthwise ones alone where they apply: a tile of all channels would mostly add zeros."""
    return depthwise.candidates(problem, target) or bytewise.candidates(problem, target)


def estimate(problem: QuantizedConvolution, candidate: ByteWay, target: Target) -> float:
    """Nanoseconds of all blocks on one core."""
    if isinstance(candidate, ByteDepthwise):
        return depthwise.estimate(problem, candidate, target)
    return bytewise.estimate(problem, candidate, target)


def build(problem: QuantizedConvolution, candidate: ByteWay, target: Target, name: str = "quantized") -> Kernel:
    """The kernel: operands "x", "weights", "x_zero" where that is no constant, those of the epilogue, "y"."""
    if isinstance(candidate, ByteDepthwise):
        return depthwise.build(problem, candidate, target, name)
    return bytewise.build(problem, candidate, target, name)


QUANTIZED = Template("quantized", QuantizedConvolution, candidates, build, estimate)
