"""Train a classifier with a step in plain ONNX, and write the trained model and the curve of its loss:

python train.py MODEL.onnx TRAINED.onnx CURVE.html
"""

import sys

import numpy as np

import graphopt

source, trained, curve = sys.argv[1:]
step = graphopt.train_step(source, loss="cross-entropy", optimizer=graphopt.Optimizer(name="adam", learning_rate=1e-3))
(image,) = step.original.graph.inputs
classes = step.original.graph.outputs[0].shape[-1]

# Images that the model has to know by heart, each with a class; a program of yours reads its own.
rng = np.random.default_rng(0)
samples = [
    {image.name: rng.normal(size=image.shape.numpy()).astype(np.float32), "target": rng.integers(0, classes, 1)}
    for _ in range(20)
]
result = graphopt.fit(step, samples * 15)
first, last = np.mean(result.losses[:20]), np.mean(result.losses[-20:])
print(f"mean loss {first:.2f} -> {last:.2f}")
assert last < first / 2
result.save(trained)
result.write(curve)
