"""Compile a model, run it here, and write a bundle that needs no Python: python compile_and_run.py MODEL.onnx DIR"""

import sys

import numpy as np

import graphopt

source, folder = sys.argv[1:]
program = graphopt.compile(source)
feeds = {value.name: np.zeros(value.shape, value.dtype.numpy) for value in program.lowered.inputs}
for name, array in program(**feeds).items():
    print(f"{name} {array.dtype} {list(array.shape)}")
print(f"arena {program.linked.plan.arena_size:,} bytes, compared: {program.verification.status}")
program.save(folder)
