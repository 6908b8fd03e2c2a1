"""Whole models as programs of tasks on the PTX machine, beside ONNX Runtime: what their tests share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir

from graphopt.program.deploy.cuda.bundle import TaskProgram
from graphopt.program.gpu import link_tasks
from graphopt.program.regions.lower import lower
from graphopt.program.regions.region import Lowered
from kernels.ptx.emulated import EmulatedTasks, RunWay
from kernels.ptx.machine.launching import ORDERS, Adversary
from kernels.ptx.tables import TaskDescription
from kernels.target import Target, cuda
from tests import support

Array = npt.NDArray[Any]
SM_90 = cuda("sm_90")
WAYS: tuple[RunWay, ...] = ("ticketed", "pinned", "launches")
WORKERS = 4  # of pinned programs


def compared(
    proto: onnx.ModelProto, feeds: Mapping[str, Array], tolerance: float, *, target: Target = SM_90,
    ways: Sequence[RunWay] = WAYS, orders: Sequence[Any] = ORDERS,
) -> Lowered:  # fmt: skip
    """The model's regions, after runs in all orders that had no fault and gave what ONNX Runtime gives.

    `tolerance` is of an output's largest element, or of 1 where that is less.
    """
    lowered = lower(ir.from_proto(proto), target)
    linked = link_tasks(lowered, "model")
    text = TaskProgram.of(linked, target).text
    session = support.session(proto, optimized=True)
    expected = session.run(None, dict(feeds))
    description = TaskDescription.of(linked.listing, target, WORKERS, linked.bytes_of)
    program = EmulatedTasks(text, description, linked.weights)
    given = [np.ascontiguousarray(feeds[one.name]) for one in linked.listing.inputs]
    for way in ways:
        for order in orders:
            ran = program.run(given, Adversary(order, 1), way=way)
            assert not ran.faults, f"{way}, {order}: {ran.faults[:3]}"
            for found, want in zip(ran.outputs, expected, strict=True):
                scale = max(1.0, float(np.abs(want).max(initial=1.0)))
                np.testing.assert_allclose(found, want, rtol=0, atol=tolerance * scale, err_msg=f"{way}, {order}")
    return lowered
