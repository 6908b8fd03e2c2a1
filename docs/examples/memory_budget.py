"""Make a model's intermediate results fit a budget, and run it with the options that keep it:

python memory_budget.py MODEL.onnx BUDGET OUT.onnx, where the budget is 40MiB or 50% for example
"""

import sys

import numpy as np
import onnxruntime

import graphopt

source, budget, destination = sys.argv[1:]
record = graphopt.memory(source, order="best").record
print(f"peak {record.peak:,} bytes at {record.peak_operator}, arena {record.arena:,} bytes")
for lever in record.levers:
    print(f"{lever.name}: {lever.arena:,} bytes, {lever.extra_time_percent:.0f} % more time ({lever.note})")
result = graphopt.optimize(source, memory_budget=budget)  # raises BudgetNotKept, with the least that was found
result.save(destination)

# The plan is what ONNX Runtime takes where it neither keeps an arena nor reuses dead buffers by size.
options = onnxruntime.SessionOptions()
options.enable_cpu_mem_arena = options.enable_mem_reuse = options.enable_mem_pattern = False
session = onnxruntime.InferenceSession(destination, options)  # as result.session() makes it
(given,) = session.get_inputs()
session.run(None, {given.name: np.ones(given.shape, np.float32)})
