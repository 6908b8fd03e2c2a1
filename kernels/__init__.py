"""Tensor programs to machine code: expressions and loop nests, lowered with LLVM.

This release holds only the package's name and its error class; the compiler arrives with a later
release.
"""
