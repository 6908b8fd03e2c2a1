"""A machine for PTX: it runs the text that LLVM emits on this processor, in any order of blocks, and reports faults."""
