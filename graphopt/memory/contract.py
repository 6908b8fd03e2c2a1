"""The options of ONNX Runtime under which a memory plan is what it takes."""

from __future__ import annotations

import onnxruntime


def contract_options() -> onnxruntime.SessionOptions:
    """Options without an arena, which grows in powers of two, and without reuse of dead buffers by their size.

    With reuse, a dead tensor's buffer is kept for the next one of the same size, however far away: tiles and values
    that are computed again are such, and pile up.
    """
    options = onnxruntime.SessionOptions()
    options.enable_cpu_mem_arena = False
    options.enable_mem_reuse = False
    options.log_severity_level = 3
    return options
