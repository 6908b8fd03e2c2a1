"""Tasks: what a block of threads does of a region, as LLVM IR in the form of entry that all kernels have.

    void entry(ptr arguments, i64 block, ptr scratch)

All `THREADS` threads of a block call the entry together. `scratch_bytes` is what it takes of the block's shared memory,
whose beginning `scratch` is; who calls two tasks one after the other puts a barrier between them. Problems are those of
the templates, so that the same regions become kernels of a processor and tasks of a GPU.
"""
