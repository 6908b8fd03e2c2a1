"""Find where a model that should equal another goes wrong: python find_divergence.py RIGHT.onnx WRONG.onnx"""

import sys

import graphopt

right, wrong = sys.argv[1:]
verdict = graphopt.verify(right, wrong)
print(f"{verdict.status}, largest error {verdict.max_rel:.0e}")
if verdict.status == "different":
    parting = graphopt.first_divergence(right, wrong)
    print(f"first at '{parting.name}', made by {parting.node_b}: {parting.reason}")
