"""In which types products and convolutions of float32 are computed: as they are, or rounded to bfloat16.

Weights and what they are multiplied with are rounded, sums and all else stay in float32. A region is rounded where its
kernel is estimated to be faster for it, and where it is not among those that have to stay. Of a recurrent layer's steps
the matrix alone is rounded, where it is large. In a program for a range of sizes the greatest and the least ones decide
for all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

PrecisionName = Literal["float32", "bf16"]


@dataclass(frozen=True, slots=True)
class Precision:
    """What may be rounded."""

    name: PrecisionName = "float32"
    wide: frozenset[str] = frozenset()  # products and convolutions that stay in float32, by the names of origins
    only: frozenset[str] | None = None  # those that are rounded, faster or not; None: where that is faster

    def rounds(self, name: str) -> bool:
        """Whether the product or convolution of this name may be rounded."""
        return self.name == "bf16" and name not in self.wide and (self.only is None or name in self.only)


FLOAT32 = Precision()
