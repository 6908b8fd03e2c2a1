"""The bytes that regions of whole programs read and write on the PTX machine, beside those of the plan."""

from __future__ import annotations

from collections.abc import Callable

import onnx
import pytest

import models
from bench.gpu.whole import moved, prepared
from tests.program.gpu.running import SM_90
from tests.program.gpu.test_bundle import small


def _zoo(name: str) -> Callable[[], onnx.ModelProto]:
    return lambda: models.load(name)


@pytest.mark.parametrize(
    ("make", "regions"), [(small, 2), (_zoo("mlp_tiny"), 5), (_zoo("dscnn_kws"), 12)], ids=["small", "mlp", "dscnn"]
)
def test_each_region_moves_the_bytes_of_the_plan(make: Callable[[], onnx.ModelProto], regions: int) -> None:
    plans, counts = moved(prepared(make(), SM_90))
    assert len(plans) >= regions and all(one.exact for one in plans)
    assert [(one.read, one.written) for one in plans] == counts
