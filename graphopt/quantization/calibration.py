"""Ranges of activations over calibration data, as ONNX Runtime's calibrators find them."""

from __future__ import annotations

import contextlib
import io
import logging
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnxruntime.quantization.calibrate import CalibrationDataReader, CalibrationMethod, TensorsData, create_calibrator

from graphopt.check.feeds import Feed
from graphopt.quantization.formats import RangeName
from graphopt.quantization.graph import CARRIERS, RANK

PERCENTILE = 99.99  # of the elements that a range holds
TOGETHER = 4  # feeds of which a histogram's activations are held at a time
METHODS: Mapping[RangeName, tuple[CalibrationMethod, dict[str, object]]] = {
    "minmax": (CalibrationMethod.MinMax, {"symmetric": False}),
    "percentile": (CalibrationMethod.Percentile, {"symmetric": False, "num_bins": 2048, "percentile": PERCENTILE}),
}


class Reader(CalibrationDataReader):  # type: ignore[misc]  # onnxruntime has no types
    """Feeds, one after the other."""

    def __init__(self, feeds: Sequence[Feed]) -> None:
        self._left = iter(feeds)

    def get_next(self) -> Feed | None:
        """The next one; None after the last."""
        return next(self._left, None)


def ranges_of(proto: onnx.ModelProto, feeds: Sequence[Feed], method: RangeName) -> TensorsData:
    """The least and the greatest of each activation around what may be quantized."""
    kind, options = METHODS[method]
    with tempfile.TemporaryDirectory() as folder, quiet():
        model, augmented = Path(folder) / "model.onnx", Path(folder) / "augmented.onnx"
        onnx.save(proto, model)
        calibrator: Any = create_calibrator(
            model, [*RANK, *CARRIERS], str(augmented), kind, extra_options=dict(options)
        )
        for start in range(0, len(feeds), TOGETHER):
            calibrator.collect_data(Reader(feeds[start : start + TOGETHER]))
        return calibrator.compute_data()


def scale_of(ranges: TensorsData, name: str) -> tuple[np.ndarray, np.ndarray] | None:
    """Scale and zero point of a tensor in uint8, by ONNX's formula; None where its range is not known."""
    if name not in ranges:
        return None
    low, high = (float(np.asarray(one).min()) for one in ranges[name].range_value)
    low, high = min(low, 0.0), max(high, 0.0)
    scale = np.float32((high - low) / 255 or 1.0)
    return np.asarray(scale), np.asarray(np.clip(np.round(-low / scale), 0, 255), np.uint8)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep back what ONNX Runtime's quantizers print and warn of: they advise steps that were taken."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        logging.disable(before)
