"""Quantize a model on calibration data, and see what became of its nodes:

python quantize.py MODEL.onnx CALIBRATION.npz OUT.onnx
"""

import sys

import graphopt

source, data, written = sys.argv[1:]
result = graphopt.quantize(source, data, minimize="size")  # "latency" measures, and refuses where nothing is faster
for node in result.record().nodes:
    print(f"{node.name}: {node.chosen}, error alone {node.error:.1e}")
print(f"error {result.error:.1e} of a budget of {result.budget_error:g}")
result.save(written)
