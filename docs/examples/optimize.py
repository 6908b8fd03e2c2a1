"""Optimize a model, say what was done, and save it: python optimize.py MODEL.onnx OUT.onnx"""

import sys

import graphopt

source, destination = sys.argv[1:]
result = graphopt.optimize(source)
print(f"{result.before.nodes} -> {result.after.nodes} nodes, {result.verification.status}")
for rewrite in result.rewrites[:5]:
    print(f"{rewrite.number}. {rewrite.rule} at '{rewrite.site}'")
result.save(destination)
