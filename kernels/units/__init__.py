"""Matrix units: tiles of rows of 64 bytes, and instructions that multiply them (Intel AMX).

`instructions` is the grammar of tile programs, `write` makes LLVM of one, `interpret` says with NumPy what one means,
and `state` is what a thread needs around kernels that use the units.
"""
