"""Tensor programs to machine code: templates and scheduled loop nests, lowered with LLVM, and programs made of them.

Knows neither ONNX nor the packages beside it. `docs/kernels.md` leads in.

Part of graphopt.
"""
