"""Constants that are sums of others, of which there are fewer: those are stored, and a library makes the sums."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from kernels.kernel import Sums
from kernels.templates.packing import summed


class PointsTensor(ir.LazyTensor):
    """A tensor of f32 [points, ...], made of [taps, ...] anew whenever it is read."""

    def __init__(self, taps: npt.NDArray[Any], sums: Sums) -> None:
        def points() -> ir.TensorProtocol:
            return ir.Tensor(summed(sums.down, taps.astype(np.float64)).astype(np.float32))

        super().__init__(points, ir.DataType.FLOAT, ir.Shape((sums.points, *taps.shape[1:])))
        self.taps, self.sums = taps, sums
