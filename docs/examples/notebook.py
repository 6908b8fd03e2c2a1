"""As in a notebook: a result shows itself, runs, and becomes bytes: python notebook.py MODEL.onnx"""

import sys

import numpy as np

import graphopt

result = graphopt.optimize(sys.argv[1])
print(result)  # a notebook shows the table of result._repr_html_() for a cell that ends in `result`
session = result.session()  # ONNX Runtime's, as code that is there expects it
(given,) = session.get_inputs()
(answer, *_) = session.run(None, {given.name: np.ones(given.shape, np.float32)})
print(f"{given.name} {given.shape} -> {answer.shape}, {len(result.to_bytes()):,} bytes")
