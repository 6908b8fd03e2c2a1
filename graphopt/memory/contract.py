"""The options of ONNX Runtime under which a memory plan is what it takes."""

from __future__ import annotations

import onnxruntime


def contract_options() -> onnxruntime.SessionOptions:
    """Options without an arena, without one block packed by the runtime, and without reuse of dead buffers.

    The arena grows in powers of two; the block is packed worse than the plan; and with reuse a dead tensor's buffer is
    kept for the next one of the same size, however far away: tiles and values that are computed again are such, and
    pile up.
    """
    options = onnxruntime.SessionOptions()
    options.enable_cpu_mem_arena = False
    options.enable_mem_reuse = False
    options.enable_mem_pattern = False
    options.log_severity_level = 3
    return options
