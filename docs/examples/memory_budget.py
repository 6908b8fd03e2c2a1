"""Show what a model needs between its weights, and make it need less: python memory_budget.py MODEL.onnx OUT.onnx"""

import sys

import graphopt

source, destination = sys.argv[1:]
record = graphopt.memory(source, order="best").record
print(f"peak {record.peak:,} bytes at {record.peak_operator}, arena {record.arena:,} bytes")
for lever in record.levers:
    print(f"{lever.name}: {lever.arena:,} bytes, {lever.extra_time_percent:.0f} % more time ({lever.note})")
graphopt.optimize(source, memory_budget=record.arena).save(destination)
