"""Floating-point numbers of eight bits and less: sign, exponent, mantissa, and what their last codes mean.

Sources: OCP 8-bit Floating Point Specification (E4M3, E5M2), Noune et al., 8-bit Numerical Formats for Deep Neural
Networks (the two that have no infinity and no negative zero), OCP Microscaling Formats (E8M0, E2M1).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from kernels.dtype import DType

# What lies beyond the largest number. inf: an infinity, and NaN above it. nan: NaN in the last code. zero: NaN where
# a negative zero would be. none: nothing, the largest number stands for all beyond, and a NaN becomes a zero.
Beyond = Literal["inf", "nan", "zero", "none"]


@dataclass(frozen=True, slots=True)
class Format:
    """A format with a sign bit above `exponent` and `mantissa` bits."""

    exponent: int
    mantissa: int
    bias: int
    beyond: Beyond

    @property
    def sign(self) -> int:
        """The code of the sign bit alone."""
        return 1 << self.exponent + self.mantissa

    @property
    def largest(self) -> int:
        """The code of the largest number."""
        last = self.sign - 1
        return {"inf": last - (1 << self.mantissa), "nan": last - 1, "zero": last, "none": last}[self.beyond]

    @property
    def nan(self) -> int:
        """The code of a NaN with sign 0; that of the zero of the other sign where there is none."""
        last = self.sign - 1
        return {"inf": last - (1 << self.mantissa - 1) + 1, "nan": last}.get(self.beyond, self.sign)

    @property
    def maximum(self) -> float:
        """The largest number."""
        return self.value(self.largest)

    def value(self, code: int) -> float:
        """What a code without sign stands for."""
        exponent, mantissa = code >> self.mantissa, code & (1 << self.mantissa) - 1
        if code > self.largest:
            return float("inf") if self.beyond == "inf" and not mantissa else float("nan")
        if not exponent:
            return float(mantissa) * 2.0 ** (1 - self.bias - self.mantissa)
        return (1 + mantissa / (1 << self.mantissa)) * 2.0 ** (exponent - self.bias)


FORMATS: Mapping[DType, Format] = {
    DType.E4M3FN: Format(4, 3, 7, "nan"),
    DType.E4M3FNUZ: Format(4, 3, 8, "zero"),
    DType.E5M2: Format(5, 2, 15, "inf"),
    DType.E5M2FNUZ: Format(5, 2, 16, "zero"),
    DType.E2M1: Format(2, 1, 1, "none"),
}
